"""The command line in processes of its own, as tests and benchmarks start it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol
from unittest import mock

from app.settings import Settings, read_settings
from tests.patience import PATIENCE_SECONDS

COMMAND = (sys.executable, "-c", "from app.cli import main; main()")
"""What the console script `context-service` does, by this interpreter."""


def environment(**given: str) -> dict[str, str]:
    """Return the variables of this process, of the service's own only those given."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("CONTEXT_")}
    return kept | given


def settings_from(environ: Mapping[str, str]) -> Settings:
    """Return the settings that a process with this environment reads."""
    with mock.patch.dict(os.environ, environ, clear=True):
        return read_settings()


def free_port() -> int:
    """Return a port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(
    data_dir: Path, *arguments: str, environ: Mapping[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run the service on a free port and yield it, with the port, once it is announced."""
    command = (*COMMAND, "serve", "--port", "0", "--data-dir", str(data_dir), *arguments)
    with subprocess.Popen(
        command, env=environment(**(environ or {})), stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process, announced_port(process)
        finally:
            process.kill()


def announced_port(process: subprocess.Popen[str]) -> int:
    """Read the service's log until it names its port; requests wait there until it is ready."""
    assert process.stderr is not None
    log = []
    for line in process.stderr:
        log.append(line)
        if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
            return int(found[1])
    raise AssertionError("".join(log))


def stop(process: subprocess.Popen[str]) -> None:
    """Send SIGTERM and wait until the process is gone."""
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_SECONDS)


class Process(Protocol):
    """What can be done to a running process."""

    def poll(self) -> int | None:
        """Return its exit code, None while it runs."""

    def send_signal(self, sig: int, /) -> None:
        """Send it a signal."""

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait until it has ended; raises TimeoutExpired."""

    def kill(self) -> None:
        """End it at once."""


Launch = Callable[[Sequence[str], Mapping[str, str], Path], Process]
"""Starts a command of the command line with these variables; its output goes to a log."""


def launched(command: Sequence[str], environ: Mapping[str, str], log: Path) -> Process:
    """Start the command line as its users do."""
    with log.open("ab") as output:
        return subprocess.Popen((*COMMAND, *command), env=environ, stdout=output, stderr=output)
