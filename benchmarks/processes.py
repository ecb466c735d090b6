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

import psutil

from benchmarks.connection import Connection, UnexpectedAnswer, request
from benchmarks.floor_server import URL_VARIABLE
from tests.commands import COMMAND, environment, free_port

START_SECONDS = 60
_POLL_SECONDS = 0.002


@dataclass(frozen=True, slots=True)
class Served:
    """A server process that answers on loopback."""

    process: subprocess.Popen[bytes]
    port: int
    start_seconds: float

    @property
    def cpu_seconds(self) -> float:
        """CPU time the process has used so far."""
        spent = psutil.Process(self.process.pid).cpu_times()
        return float(spent.user + spent.system)

    @property
    def memory_bytes(self) -> int:
        """Resident memory of the process."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    @property
    def peak_memory_bytes(self) -> int:
        """The most resident memory since the start or since `forget_peak`."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return self.memory_bytes

    def forget_peak(self) -> None:
        """Let `peak_memory_bytes` begin again."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")


@contextmanager
def service(
    data_dir: Path,
    *arguments: str,
    environ: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
    log: Path | None,
) -> Iterator[Served]:
    """Run `context-service serve` over a data directory; leaves it by SIGTERM.

    The command begins with `prefix`, which replaces itself by what follows.
    """
    port = free_port()
    command = [*prefix, *COMMAND, "serve"]
    command += ["--port", str(port), "--data-dir", str(data_dir), *arguments]
    with _served(command, port, environ or {}, log) as served:
        yield served


@contextmanager
def floor_b(url: str, log: Path | None) -> Iterator[Served]:
    """Run floor B with uvloop and httptools over the PostgreSQL at `url`."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "benchmarks.floor_server:app"]
    command += ["--port", str(port), "--loop", "uvloop", "--http", "httptools"]
    command += ["--no-access-log", "--log-level", "warning"]
    with _served(command, port, {URL_VARIABLE: url}, log) as served:
        yield served


@contextmanager
def _served(
    command: list[str], port: int, environ: Mapping[str, str], log: Path | None
) -> Iterator[Served]:
    began = time.perf_counter()
    with _running(command, environ, log) as process:
        _wait_until_ready(process, port, log)
        yield Served(process, port, time.perf_counter() - began)


@contextmanager
def _running(
    command: list[str], environ: Mapping[str, str], log: Path | None
) -> Iterator[subprocess.Popen[bytes]]:
    output = log.open("ab") if log else subprocess.DEVNULL
    process = subprocess.Popen(
        command,
        env=environment(**environ),
        cwd=Path(__file__).parents[1],
        stdout=output,
        stderr=output,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if not isinstance(output, int):
            output.close()


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path | None) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with suppress(OSError, UnexpectedAnswer), Connection(port) as connection:
            if connection.exchange(request("GET", "/readyz"))[0] == 200:
                return
        time.sleep(_POLL_SECONDS)
    said = log.read_text(errors="replace")[-2000:] if log else ""
    raise RuntimeError(f"{process.args!r} does not get ready. {said}")


@dataclass(frozen=True, slots=True)
class PostgresProcesses:
    """The processes of the cluster in a data directory."""

    data_dir: Path

    @property
    def pid(self) -> int:
        """The process that starts all others."""
        return int((self.data_dir / "postgres" / "postmaster.pid").read_text().split()[0])

    @property
    def cpu_seconds(self) -> float:
        """CPU time of the server and all its backends, with those that have ended."""
        server = psutil.Process(self.pid)
        own = server.cpu_times()
        total = float(own.user + own.system + own.children_user + own.children_system)
        for process in server.children():
            with suppress(psutil.NoSuchProcess):
                spent = process.cpu_times()
                total += spent.user + spent.system
        return total


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """CPU seconds of a server, and of PostgreSQL."""

    server: float
    postgres: float


@dataclass(frozen=True, slots=True)
class CpuMeter:
    """CPU times fine enough for one request, in nanoseconds.

    Processes that end between two readings are left out.
    """

    postgres: PostgresProcesses

    def read(self, *servers: Served | None) -> CpuTimes:
        """Return the CPU times so far; of no server, those of PostgreSQL alone."""
        server = sum(_cpu_seconds(each.process.pid) for each in servers if each is not None)
        first = self.postgres.pid
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        return CpuTimes(server, sum(_cpu_seconds(pid) for pid in (first, *map(int, children))))

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
