"""The longest stall of the event loop of a served process, measured inside it.

A task in the process sleeps 1 ms again and again; the longest that it overslept is the stall. A
`sitecustomize` starts it with uvicorn's loop, and writes what it finds to a file that is mapped
into memory here and there. Beside the stall is the CPU time that the thread of the loop used in it:
on a busy machine a stall without CPU time is a wait for a processor, or for the interpreter lock.
"""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

TICK_SECONDS = 0.001
START_SECONDS = 10
_FIGURES = struct.Struct("ddd")
_SITE = """
import asyncio, mmap, struct, time

figures = struct.Struct("ddd")

async def tick():
    with open({file!r}, "r+b") as file:
        shared = mmap.mmap(file.fileno(), figures.size)
    before, cpu_before = time.perf_counter(), time.thread_time()
    while True:
        await asyncio.sleep({tick})
        now, cpu = time.perf_counter(), time.thread_time()
        longest, spent, ticks = figures.unpack(shared[:])
        stall = now - before - {tick}
        if stall > longest:
            longest, spent = stall, cpu - cpu_before
        shared[:] = figures.pack(longest, spent, ticks + 1)
        before, cpu_before = time.perf_counter(), time.thread_time()

try:
    from uvicorn.server import Server
except ImportError:
    pass
else:
    serve = Server.main_loop

    async def main_loop(self):
        ticker = asyncio.create_task(tick())
        try:
            await serve(self)
        finally:
            ticker.cancel()

    Server.main_loop = main_loop
"""


@dataclass(frozen=True, slots=True)
class Stall:
    """The longest stall since the last reset, in seconds."""

    seconds: float
    loop_cpu_seconds: float


@dataclass(frozen=True, slots=True)
class LoopStalls:
    """Reads the figures of the task in the served process."""

    environ: Mapping[str, str]
    _shared: mmap.mmap

    def reset(self) -> None:
        """Forget the stalls so far, and wait until the task has run again."""
        time.sleep(0.02)
        self._shared[:] = _FIGURES.pack(0, 0, 0)
        deadline = time.monotonic() + START_SECONDS
        while not self._figures()[2]:
            if time.monotonic() > deadline:
                raise RuntimeError("no task measures the stalls of the served event loop")
            time.sleep(0.005)

    def read(self) -> Stall:
        """Return the longest stall since the last reset, after the loop has run once more."""
        ticks, deadline = self._figures()[2], time.monotonic() + START_SECONDS
        while self._figures()[2] < ticks + 2 and time.monotonic() < deadline:
            time.sleep(0.002)
        return self.longest()

    def longest(self) -> Stall:
        """Return the longest stall since the last reset."""
        longest, spent, _ = self._figures()
        return Stall(longest, spent)

    def _figures(self) -> tuple[float, float, float]:
        longest, spent, ticks = _FIGURES.unpack(self._shared[:])
        return longest, spent, ticks


@contextmanager
def loop_stalls() -> Iterator[LoopStalls]:
    """Yield the reader; the service to measure runs with its `environ`."""
    with TemporaryDirectory(prefix="bench-stalls-") as folder:
        file = Path(folder, "figures")
        file.write_bytes(bytes(_FIGURES.size))
        site = _SITE.format(file=str(file), tick=TICK_SECONDS)
        Path(folder, "sitecustomize.py").write_text(site, encoding="utf-8")
        with file.open("r+b") as opened, mmap.mmap(opened.fileno(), _FIGURES.size) as shared:
            yield LoopStalls({"PYTHONPATH": folder}, shared)
