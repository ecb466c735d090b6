"""How much structure a JSON text has, found in its bytes before any object is made of it.

1. Objects, lists, strings, numbers and so on are values; a value may take a hundred times the
   memory of its text. So values, keys and depth are counted first, without parsing.
2. Most texts are judged by counting their brackets, commas and colons wherever they stand: that is
   never less than the truth, and takes a millisecond per megabyte. Only a text with too many of
   them is read again without what is inside its strings.
3. A text is read in slices, so that a thread that does this lets others run in between. Counting
   ends as soon as a limit is passed.
4. Text that is no JSON is counted up to its first mistake as if it were, which is as far as a
   parser gets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

_SLICE = 1 << 17
_ALL = bytes(range(256))
_MARKS = b"[{,:"
_NO_MARKS = _ALL.translate(None, _MARKS)
_SPACES = b" \t\r\n"
_BRACKETS = b"[]{}"
_NO_BRACKETS = _ALL.translate(None, _BRACKETS)
_STEPS = bytes.maketrans(_BRACKETS, b"\x01\xff\x01\xff")
"""What a bracket adds to the depth, as a signed byte."""


@dataclass(frozen=True, slots=True)
class StructureLimits:
    """The most values, keys and levels that a JSON text may have."""

    values: int = 200_000
    keys: int = 150_000
    depth: int = 100


@dataclass(frozen=True, slots=True)
class ExceededLimit:
    """What a text has too much of: `values`, `keys` or `depth`, its limit, and how many at least.

    Counting ended there.
    """

    what: str
    limit: int
    found: int


def exceeded_limit(text: bytes, limits: StructureLimits) -> ExceededLimit | None:
    """Return the first limit that a JSON text is over, or None."""
    return None if is_surely_within(text, limits) else _counted(text, limits)


def has_more_values(value: Any, most: int) -> bool:
    """Tell whether a parsed value is, with all that it holds, more than so many values."""
    waiting = [value] if isinstance(value, dict | list) else []
    count = 1
    while waiting:
        holder = waiting.pop()
        count += len(holder)
        if count > most:
            return True
        items = holder.values() if isinstance(holder, dict) else holder
        waiting += [item for item in items if isinstance(item, dict | list)]
    return False


def is_surely_within(text: bytes, limits: StructureLimits) -> bool:
    """Tell whether even everything that could be structure is within the limits (rule 2)."""
    marks = brackets = colons = 0
    if len(text) // 2 + 1 > min(limits.values, limits.keys):
        for start in range(0, len(text), _SLICE):
            found = text[start : start + _SLICE].translate(None, _NO_MARKS)
            marks += len(found)
            colons += found.count(b":")
            brackets += found.count(b"[") + found.count(b"{")
    else:
        brackets = text.count(b"[") + text.count(b"{")
    return brackets <= limits.depth and marks - colons < limits.values and colons <= limits.keys


def _counted(text: bytes, limits: StructureLimits) -> ExceededLimit | None:
    values, keys, depth = 1, 0, 0
    held = b""
    for outside in _without_strings(text):
        piece = held + outside.translate(None, _SPACES)
        # Whether a bracket at the end opens an empty container is for the next slice to tell.
        held = piece[-1:] if piece[-1:] in (b"[", b"{") else b""
        piece = piece.removesuffix(held)
        opened = piece.count(b"[") + piece.count(b"{")
        # A container is followed by its first value or by its end.
        values += piece.count(b",") + opened - piece.count(b"[]") - piece.count(b"{}")
        keys += piece.count(b":")
        if values > limits.values:
            return ExceededLimit("values", limits.values, values)
        if keys > limits.keys:
            return ExceededLimit("keys", limits.keys, keys)
        deepest, depth = _levels(piece, depth)
        if deepest > limits.depth:
            return ExceededLimit("depth", limits.depth, deepest)
    return None


def _levels(piece: bytes, depth: int) -> tuple[int, int]:
    """Return the deepest level of a piece that begins at a depth, and the level at its end."""
    steps = memoryview(piece.translate(_STEPS, _NO_BRACKETS)).cast("b")
    deepest = depth
    for level in accumulate(steps, initial=depth):
        deepest, depth = max(deepest, level), level
    return deepest, depth


def _without_strings(text: bytes) -> Iterator[bytes]:
    """Yield the text slice by slice, of its strings only the quotes (rule 3)."""
    is_inside, held = False, b""
    for start in range(0, len(text), _SLICE):
        piece = held + text[start : start + _SLICE]
        # A backslash that escapes what is in the next slice waits for it.
        is_cut = (len(piece) - len(piece.rstrip(b"\\"))) % 2 == 1
        piece, held = (piece[:-1], b"\\") if is_cut else (piece, b"")
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = piece.split(b'"')
        inside = slice(0 if is_inside else 1, None, 2)
        parts[inside] = [b""] * len(parts[inside])
        is_inside ^= len(parts) % 2 == 0
        yield b'"'.join(parts)
