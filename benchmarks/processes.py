"""The processes that are measured: the service as it is really served, floor B, PostgreSQL."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.connection import Connection, UnexpectedAnswer, request
from benchmarks.floor_server import URL_VARIABLE
from tests.commands import COMMAND, environment, free_port

ROOT = Path(__file__).parents[1]
START_SECONDS = 60
_POLL_SECONDS = 0.002


@dataclass(frozen=True, slots=True)
class Served:
    """A server process that answers on loopback."""

    process: subprocess.Popen[bytes]
    port: int
    start_seconds: float

    @property
    def memory_bytes(self) -> int:
        """Resident memory of the process."""
        return self._status("VmRSS")

    @property
    def peak_memory_bytes(self) -> int:
        """The most resident memory since the start or since `forget_peak`."""
        return self._status("VmHWM")

    def _status(self, name: str) -> int:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

    def forget_peak(self) -> None:
        """Let `peak_memory_bytes` begin again."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")


@contextmanager
def service(
    data_dir: Path, *arguments: str, environ: Mapping[str, str] | None = None, log: Path
) -> Iterator[Served]:
    """Run `context-service serve` over a data directory."""
    command = [*COMMAND, "serve", "--data-dir", str(data_dir), *arguments]
    with started(command, environ or {}, log) as served:
        yield served


@contextmanager
def floor_b(url: str, log: Path) -> Iterator[Served]:
    """Run floor B with uvloop and httptools over the PostgreSQL at `url`."""
    command = [sys.executable, "-m", "uvicorn", "benchmarks.floor_server:app"]
    command += ["--loop", "uvloop", "--http", "httptools", "--no-access-log"]
    command += ["--log-level", "warning"]
    with started(command, {URL_VARIABLE: url}, log) as served:
        yield served


@contextmanager
def started(
    command: Sequence[str], environ: Mapping[str, str], log: Path, folder: Path = ROOT
) -> Iterator[Served]:
    """Run a server in a folder, on a port of its own, until the end of the block (SIGTERM)."""
    began, port = time.perf_counter(), free_port()
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*command, "--port", str(port)],
            env=environment(**environ),
            cwd=folder,
            stdout=output,
            stderr=output,
        )
    try:
        _wait_until_ready(process, port, log)
        yield Served(process, port, time.perf_counter() - began)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(OSError, UnexpectedAnswer), Connection(port) as connection:
            if connection.exchange(request("GET", "/readyz"))[0] == 200:
                return
        time.sleep(_POLL_SECONDS)
    raise RuntimeError(f"{process.args!r} is not ready. {log.read_text(errors='replace')[-2000:]}")


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """CPU seconds of a server, and of PostgreSQL."""

    server: float
    postgres: float


@dataclass(frozen=True, slots=True)
class CpuMeter:
    """CPU times of servers and of the PostgreSQL in a data directory, in nanoseconds.

    Processes that end between two readings are left out.
    """

    data_dir: Path

    def read(self, *servers: Served | None) -> CpuTimes:
        """Return the CPU times so far; of no server, those of PostgreSQL alone."""
        server = sum(_cpu_seconds(each.process.pid) for each in servers if each is not None)
        first = (self.data_dir / "postgres" / "postmaster.pid").read_text().split()[0]
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        return CpuTimes(server, sum(_cpu_seconds(int(pid)) for pid in (first, *children)))

    def since(self, before: CpuTimes, *servers: Served | None) -> CpuTimes:
        """Return the CPU times after a reading."""
        now = self.read(*servers)
        return CpuTimes(
            max(0.0, now.server - before.server), max(0.0, now.postgres - before.postgres)
        )


def _cpu_seconds(pid: int) -> float:
    """Read the clock of a process, which includes the threads that have ended."""
    try:
        return time.clock_gettime(~pid << 3 | 2)  # the id that clock_getcpuclockid returns
    except OSError:
        return 0.0
