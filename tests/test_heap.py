"""The heap of a serving process. [storage.memory-bounds]"""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

_CODE = """
from app.operation.heap import return_freed_memory

def resident():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) * 1024

return_freed_memory()
before, kept = resident(), []
for size in range(1, 31):  # each of them larger, so that no earlier block is used again
    large = b"a" * (size << 20)
    kept.append([bytearray(600) for _ in range(100)])
    del large
print(resident() - before)
"""


on_glibc = pytest.mark.skipif(
    not sys.platform.startswith("linux") or not hasattr(ctypes.CDLL(None), "mallopt"),
    reason="the C library is not glibc",
)


@on_glibc
def test_large_blocks_are_returned_at_once() -> None:
    """After thirty blocks of up to 30 MB none of them is left in the process."""
    done = subprocess.run((sys.executable, "-c", _CODE), check=True, capture_output=True, text=True)
    assert int(done.stdout) < 8 << 20
