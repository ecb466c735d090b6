r"""Parses JSON with long strings, in steps that each hold the interpreter's lock for a millisecond.

A parser makes a string of 10 MB in one call, for which no other thread runs.

1. The text is searched in slices. A string that is longer than a slice is taken out; a name that
   nothing else in the text can have, a hash of the rest, is put in its place.
2. A taken string is decoded in pieces. None ends inside an escape, inside a character, or between
   the two escapes of a surrogate pair.
3. The rest is parsed at once, and the strings are put back.
4. Text and pieces are checked by the same parser. What it refuses is left to the caller, who gets
   the parser's own error from the whole text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import orjson

SLICE_BYTES = 2**18
MIN_SLICE_BYTES = 32
"""A piece has to be longer than a surrogate pair."""
_ESCAPED_PAIR_BYTES, _ESCAPE_BYTES = 12, 6
_PAIR = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F]")

Span = tuple[int, int]


def loads_by_slices(text: bytes, slice_bytes: int = SLICE_BYTES) -> tuple[Any] | None:
    """Return the value of a text with long strings, None without one; raises JSONDecodeError."""
    spans = _long_strings(text, slice_bytes)
    if not spans:
        return None
    parts, at = [], 0
    for start, end in spans:
        parts.append(text[at:start])
        at = end
    parts.append(text[at:])
    name = hashlib.blake2b(b'""'.join(parts), digest_size=32).hexdigest()
    names = [f"{name}{index}" for index in range(len(spans))]
    rest = parts[0]
    for placeholder, part in zip(names, parts[1:], strict=True):
        rest += placeholder.encode() + part
    value = [orjson.loads(rest)]
    strings = {
        placeholder: _decoded(text, span, slice_bytes)
        for placeholder, span in zip(names, spans, strict=True)
    }
    _put_back(value, strings)
    return (value[0],)


def _long_strings(text: bytes, slice_bytes: int) -> list[Span]:
    """Return where the strings are that go over a whole slice, without their quotes (rule 1)."""
    spans: list[Span] = []
    start, opened = 0, -1
    while start < len(text):
        end = min(start + slice_bytes, len(text))
        part = text[start:end].replace(b"\\\\", b"__")
        if part.endswith(b"\\") and end < len(text):  # it escapes what follows
            part, end = part[:-1], end - 1
        part = part.replace(b'\\"', b"__")
        first = part.find(b'"')
        if first >= 0:
            if opened >= 0 and start + first - opened > slice_bytes:
                spans.append((opened, start + first))
            is_inside = (opened >= 0) != (part.count(b'"') % 2 == 1)
            opened = start + part.rfind(b'"') + 1 if is_inside else -1
        start = end
    return spans


def _decoded(text: bytes, span: Span, piece_bytes: int) -> str:
    pieces: list[str] = []
    start, end = span
    while start < end:
        cut = end if end - start <= piece_bytes else _cut(text, start, start + piece_bytes)
        pieces.append(orjson.loads(b'"%b"' % text[start:cut]))
        start = cut
    return "".join(pieces)


def _cut(text: bytes, start: int, limit: int) -> int:
    """Return where a piece ends that begins at `start` (rule 2)."""
    piece = text[start:limit].replace(b"\\\\", b"__")
    escape = piece.rfind(b"\\", len(piece) - _ESCAPED_PAIR_BYTES)
    if escape >= 0:
        at = start + escape
        before = piece[escape - _ESCAPE_BYTES : escape]
        is_pair = _PAIR.match(before + text[at : at + _ESCAPE_BYTES])
        return at - _ESCAPE_BYTES if is_pair else at
    while text[limit] & 0xC0 == 0x80 and limit > start + len(piece) // 2:
        limit -= 1
    return limit


def _put_back(value: list[Any], strings: Mapping[str, str]) -> None:
    """Replace the names by the strings, also where they are keys (rule 3)."""
    pending: list[Any] = [value]
    while pending:
        container = pending.pop()
        items = container.items() if isinstance(container, dict) else enumerate(container)
        for key, item in items:
            if isinstance(item, str):
                if item in strings:
                    container[key] = strings[item]
            elif isinstance(item, dict | list):
                pending.append(item)
        if isinstance(container, dict) and not strings.keys().isdisjoint(container):
            renamed = [(strings.get(key, key), item) for key, item in container.items()]
            container.clear()
            container.update(renamed)
