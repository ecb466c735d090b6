"""The heap of a serving process: freed memory goes back to the system.

With its defaults glibc keeps the memory of a body of several megabytes after its request: after the
first it takes such blocks from the heap, where a small block above them holds them. With fixed
thresholds they are mapped apart and unmapped when they are freed. Fewer arenas than threads share
what small blocks leave free.

Payloads of a usual context window, half a megabyte, stay below the thresholds: mapping and clearing
new pages for each of their copies takes a quarter of a millisecond and more of a build.
"""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""The parameters of glibc's `mallopt`."""
_SETTINGS = ((_MMAP_THRESHOLD, 2**20), (_TRIM_THRESHOLD, 2 * 2**20), (_ARENA_MAX, 2))


def return_freed_memory() -> None:
    """Set the heap's thresholds, on Linux with glibc; elsewhere do nothing."""
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return
    for parameter, value in _SETTINGS:
        mallopt(parameter, value)
