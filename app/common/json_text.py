"""Parses and writes JSON text, in the same way for the log, the API and hashes.

1. orjson does the work. The standard library handles what orjson refuses: lone surrogates. NaN,
   Infinity and numbers too large for a double are refused, as by RFC 8259.
2. A parsed value may take a hundred times the memory of its text. So values (objects, lists,
   strings, numbers and literals), keys and depth of a text from outside are counted in its bytes
   before it is parsed, as if it were valid: a parser of an invalid text gets no further than that.
   Texts are counted in slices, so that other threads run in between, up to the first limit that is
   exceeded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from sys import maxsize
from typing import Any

import orjson

from app.common.texts import sendable_json

MAX_MESSAGE_VALUES = 10_000
"""The maximum values of one message; lower than that of a body, as it is parsed repeatedly."""
_SLICE = 1 << 17
_BRACKETS = b"[]{}"
_NOT_BRACKETS = bytes(range(256)).translate(None, _BRACKETS)
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


class ExceedsLimits(ValueError):
    """A text exceeds a limit: `what` is `values`, `keys`, `depth` or `bytes`.

    `count` is a lower bound of what the text has.
    """

    def __init__(self, what: str, limit: int, count: int) -> None:
        super().__init__(f"more than {limit:,} {what}")
        self.what, self.limit, self.count = what, limit, count


def require_within(text: bytes, limits: StructureLimits) -> None:
    """Raise ExceedsLimits for a text over one of the limits (rule 2)."""
    if len(text) > limits.bytes:
        raise ExceedsLimits("bytes", limits.bytes, len(text))
    is_short = len(text) // 2 + 1 <= min(limits.values, limits.keys)
    if is_short and text.count(b"[") + text.count(b"{") <= limits.depth:
        return
    values, keys, depth, pending = 1, 0, 0, b""
    for piece in _without_strings(text):
        outside = pending + piece
        # Only the next slice shows whether a bracket at the end opens an empty container.
        pending = outside[-1:] if outside.endswith((b"[", b"{")) else b""
        outside = outside.removesuffix(pending)
        opened = outside.count(b"[") + outside.count(b"{")
        # A container is followed by its first value or by its end.
        values += outside.count(b",") + opened - outside.count(b"[]") - outside.count(b"{}")
        keys += outside.count(b":")
        changes = memoryview(outside.translate(_DEPTH_CHANGES, _NOT_BRACKETS)).cast("b")
        depths = list(accumulate(changes, initial=depth))
        depth = depths[-1]
        for what, count in (("values", values), ("keys", keys), ("depth", max(depths))):
            if count > (limit := getattr(limits, what)):
                raise ExceedsLimits(what, limit, count)


def _without_strings(text: bytes) -> Iterator[bytes]:
    """Yield the text in slices, with the quotes but without its strings and spaces."""
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
        yield b'"'.join(parts).translate(None, b" \t\r\n")


def has_more_values(value: Any, max_values: int) -> bool:
    """Return whether a parsed value has, with itself, more than so many values in it."""
    pending = [value] if isinstance(value, dict | list) else []
    count = 1
    while pending and count <= max_values:
        container = pending.pop()
        count += len(container)
        items = container.values() if isinstance(container, dict) else container
        pending += [item for item in items if isinstance(item, dict | list)]
    return count > max_values


def loads_within(
    text: bytes | str, limits: StructureLimits, load: Callable[[bytes | str], Any] | None = None
) -> Any:
    """Parse a text from outside by `load`, which is `loads` by default.

    Raises ExceedsLimits before anything is parsed, and ValueError as `load` does. Every JSON text
    that the service did not write itself is parsed here, and in a thread where it is long.
    """
    written = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    require_within(written, limits)
    return (load or loads)(text)


def loads(text: bytes | str) -> Any:
    """Parse one JSON document; raises ValueError for an invalid or too deeply nested one."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        written = text if isinstance(text, bytes) else text.encode()
        if b"\\ud" not in written and b"\\uD" not in written:
            raise ValueError(str(error)) from error
    return loads_exact(text)


def loads_exact(text: bytes | str) -> Any:
    """Parse like `loads`, but slower, with integers of any size and lone surrogates."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def dumps(value: Any) -> str:
    """Write one JSON document as `dump_stored` does, as text."""
    return dump_stored(value).decode()


def dump_stored(value: Any) -> bytes:
    """Write one JSON document as UTF-8, compact, with the keys in their order.

    NUL is escaped. A document with a lone surrogate is escaped to ASCII. So it can be stored as
    text in PostgreSQL, and is read with identical strings.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def dump_payload(value: Any) -> bytes:
    """Write a document for a provider: lone surrogates become U+FFFD."""
    try:
        return orjson.dumps(value)
    except TypeError:
        sent = sendable_json(value)
        return json.dumps(sent, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{text} is too large a number")
    return number
