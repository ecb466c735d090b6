"""Limits of the structure of a JSON text, checked in its bytes before it is parsed.

1. A parsed value may take a hundred times the memory of its text. So values, keys and depth are
   counted first. Objects, lists, strings, numbers and literals are values.
2. First all brackets, commas and colons are counted, also those inside strings: an upper bound that
   takes a millisecond per megabyte. Only a text over a limit is counted again without strings.
   The depth is at most the number of brackets that open, without those of `},{`: these close a
   level before they open one, and inside a string they add nothing. So a list of flat objects is
   within its bound.
3. A text is read in slices, so that other threads run in between. Counting ends at the first limit
   that is exceeded.
4. Invalid JSON is counted as if it were valid. A parser gets no further than that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from sys import maxsize
from typing import Any

MAX_MESSAGE_VALUES = 10_000
"""The maximum values of one message; lower than that of a body, as it is parsed repeatedly."""
_SLICE = 1 << 17
_ALL = bytes(range(256))
_STRUCTURE = b"[{,:"
_NOT_STRUCTURE = _ALL.translate(None, _STRUCTURE)
_SPACES = b" \t\r\n"
_BRACKETS = b"[]{}"
_NOT_BRACKETS = _ALL.translate(None, _BRACKETS)
_DEPTH_CHANGES = bytes.maketrans(_BRACKETS, b"\x01\xff\x01\xff")
"""Maps a bracket to its change of the depth, as a signed byte."""


@dataclass(frozen=True, slots=True)
class StructureLimits:
    """The maximum values, keys, levels and bytes of a JSON text."""

    values: int = 200_000
    keys: int = 150_000
    depth: int = 100
    bytes: int = maxsize

    def at_most(self, values: int) -> StructureLimits:
        """Return the limits with at most so many values and keys."""
        return replace(self, values=min(self.values, values), keys=min(self.keys, values))


MESSAGE_LIMITS = StructureLimits().at_most(MAX_MESSAGE_VALUES)
"""The limits of what is parsed whenever its message is read."""


@dataclass(frozen=True, slots=True)
class ExceededLimit:
    """A limit that a text exceeds: `what` is `values`, `keys`, `depth` or `bytes`.

    `count` is a lower bound of what the text has: counting ends at the first exceeded limit.
    """

    what: str
    limit: int
    count: int


def exceeded_limit(text: bytes, limits: StructureLimits) -> ExceededLimit | None:
    """Return the first limit that a JSON text exceeds, or None."""
    if len(text) > limits.bytes:
        return ExceededLimit("bytes", limits.bytes, len(text))
    return None if is_within_upper_bound(text, limits) else _count_structure(text, limits)


def has_more_values(value: Any, max_values: int) -> bool:
    """Return whether a parsed value has, with itself, more than so many values in it."""
    pending = [value] if isinstance(value, dict | list) else []
    count = 1
    while pending:
        container = pending.pop()
        count += len(container)
        if count > max_values:
            return True
        items = container.values() if isinstance(container, dict) else container
        pending += [item for item in items if isinstance(item, dict | list)]
    return False


def is_within_upper_bound(text: bytes, limits: StructureLimits) -> bool:
    """Return whether the upper bound is within the limits (rule 2)."""
    separators = brackets = colons = 0
    if len(text) // 2 + 1 > min(limits.values, limits.keys):
        for start in range(0, len(text), _SLICE):
            structure = text[start : start + _SLICE].translate(None, _NOT_STRUCTURE)
            separators += len(structure)
            colons += structure.count(b":")
            brackets += structure.count(b"[") + structure.count(b"{")
    else:
        brackets = text.count(b"[") + text.count(b"{")
    if separators - colons >= limits.values or colons > limits.keys:
        return False
    for neighbours in (b"},{", b"}, {"):
        if brackets > limits.depth:
            # Those at the border of two slices are left out, which makes the bound larger.
            brackets -= sum(
                text[start : start + _SLICE].count(neighbours)
                for start in range(0, len(text), _SLICE)
            )
    return brackets <= limits.depth


def _count_structure(text: bytes, limits: StructureLimits) -> ExceededLimit | None:
    values, keys, depth = 1, 0, 0
    carried = b""
    for outside in _without_strings(text):
        text_slice = carried + outside.translate(None, _SPACES)
        # Only the next slice shows whether a bracket at the end opens an empty container.
        carried = text_slice[-1:] if text_slice[-1:] in (b"[", b"{") else b""
        text_slice = text_slice.removesuffix(carried)
        opened = text_slice.count(b"[") + text_slice.count(b"{")
        # A container is followed by its first value or by its end.
        values += (
            text_slice.count(b",") + opened - text_slice.count(b"[]") - text_slice.count(b"{}")
        )
        keys += text_slice.count(b":")
        if values > limits.values:
            return ExceededLimit("values", limits.values, values)
        if keys > limits.keys:
            return ExceededLimit("keys", limits.keys, keys)
        max_depth, depth = _depths(text_slice, depth)
        if max_depth > limits.depth:
            return ExceededLimit("depth", limits.depth, max_depth)
    return None


def _depths(text_slice: bytes, depth: int) -> tuple[int, int]:
    """Return the maximum depth of a slice that begins at `depth`, and the depth at its end."""
    changes = memoryview(text_slice.translate(_DEPTH_CHANGES, _NOT_BRACKETS)).cast("b")
    max_depth = depth
    for level in accumulate(changes, initial=depth):
        max_depth, depth = max(max_depth, level), level
    return max_depth, depth


def _without_strings(text: bytes) -> Iterator[bytes]:
    """Yield the text in slices, with the quotes but without the content of its strings."""
    is_inside, carried = False, b""
    for start in range(0, len(text), _SLICE):
        text_slice = carried + text[start : start + _SLICE]
        # A backslash at the end escapes the first byte of the next slice.
        is_cut = (len(text_slice) - len(text_slice.rstrip(b"\\"))) % 2 == 1
        text_slice, carried = (text_slice[:-1], b"\\") if is_cut else (text_slice, b"")
        if b"\\" in text_slice:
            text_slice = text_slice.replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = text_slice.split(b'"')
        inside = slice(0 if is_inside else 1, None, 2)
        parts[inside] = [b""] * len(parts[inside])
        is_inside ^= len(parts) % 2 == 0
        yield b'"'.join(parts)
