"""Processes of the service that are forked from one that has imported it.

A start by the command line imports the service and LiteLLM for seconds of CPU time each. Python's
fork server imports them once. What it forks is a process of its own, which runs the same command
and can be killed like any other.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.commands import Process

_CONTEXT = multiprocessing.get_context("forkserver")


class Forked:
    """A forked process, used as one that `subprocess` has started."""

    def __init__(self, process: BaseProcess) -> None:
        self._process = process
        process.start()

    def poll(self) -> int | None:
        """Return its exit code, None while it runs."""
        return self._process.exitcode

    def send_signal(self, sig: int, /) -> None:
        """Send it a signal."""
        assert self._process.pid is not None
        if self.poll() is None:
            os.kill(self._process.pid, sig)

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait until it has ended; raises TimeoutExpired."""
        self._process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return self.poll()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()


def forked(command: Sequence[str], environ: Mapping[str, str], log: Path) -> Process:
    """Run a command of the command line."""
    _CONTEXT.set_forkserver_preload(["tests.torture.preloaded"])
    return Forked(_CONTEXT.Process(target=_run, args=(dict(environ), str(log), *command)))


def _run(environ: Mapping[str, str], log: str, *command: str) -> None:
    os.environ.clear()
    os.environ.update(environ)
    with open(log, "ab") as output:
        os.dup2(output.fileno(), sys.stdout.fileno())
        os.dup2(output.fileno(), sys.stderr.fileno())
    from app.cli import cli

    cli(command, prog_name="context-service")
