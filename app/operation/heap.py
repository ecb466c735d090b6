"""The heap of a serving process: freed memory goes back to the system.

With its defaults glibc keeps the memory of a body of several megabytes after its request: after the
first it takes such blocks from the heap, where a small block above them holds them. With fixed
thresholds they are mapped apart and unmapped when they are freed. Fewer arenas than threads share
what small blocks leave free.

Payloads of a usual context window, half a megabyte, stay below the thresholds: mapping and clearing
new pages for each of their copies takes a quarter of a millisecond and more of a build. The pages
that they leave free between other blocks are returned every few seconds, in less than a
millisecond.
"""

from __future__ import annotations

import ctypes
import sys
import time
from functools import cache
from threading import Thread

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""The parameters of glibc's `mallopt`."""
_SETTINGS = ((_MMAP_THRESHOLD, 2**20), (_TRIM_THRESHOLD, 2 * 2**20), (_ARENA_MAX, 2))
_TRIM_SECONDS = 3.0


@cache  # once for a process: the command that serves calls it, and so does `app.main`
def return_freed_memory(trim_seconds: float = _TRIM_SECONDS) -> None:
    """Set the heap's thresholds and trim it regularly, on Linux with glibc; else do nothing."""
    if not sys.platform.startswith("linux"):
        return
    try:
        library = ctypes.CDLL(None)
        mallopt, trim = library.mallopt, library.malloc_trim
    except (AttributeError, OSError):  # another C library
        return
    for parameter, value in _SETTINGS:
        mallopt(parameter, value)

    def trim_regularly() -> None:
        while True:
            time.sleep(trim_seconds)
            trim(0)

    Thread(target=trim_regularly, name="heap", daemon=True).start()
