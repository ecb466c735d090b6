"""Parses and writes JSON text, in the same way for the log, the API and hashes.

orjson does the work. The standard library handles what orjson refuses: lone surrogates. NaN,
Infinity and numbers too large for a double are refused, as by RFC 8259.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import orjson

from app.domain.common.long_strings import loads_by_slices
from app.domain.common.messages import sendable_json

_LONG_TEXT = 1 << 20
"""Bytes that are parsed in about two milliseconds."""
_SLICE = 1 << 18
"""Characters that are written in less than a millisecond."""


def loads(text: bytes | str) -> Any:
    """Parse one JSON document; raises ValueError for an invalid or too deeply nested one."""
    if len(text) > _LONG_TEXT and isinstance(text, bytes):
        with suppress(orjson.JSONDecodeError):  # which is raised again for the whole text
            parsed = loads_by_slices(text)
            if parsed is not None:
                return parsed[0]
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
        return b"".join(_chunks(value)) if _is_long(value) else orjson.dumps(value)
    except TypeError:
        text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
        return text.encode()


def _is_long(value: Any) -> bool:
    """Return whether a string is long; only then the document is written in slices."""
    if isinstance(value, str):
        return len(value) > _SLICE
    if isinstance(value, dict):
        items: Iterable[Any] = value.values()
    elif isinstance(value, list):
        items = value
    else:
        return False
    for item in items:  # most values are strings, for which no call is made
        if isinstance(item, str):
            if len(item) > _SLICE:
                return True
        elif isinstance(item, dict | list) and _is_long(item):
            return True
    return False


def _chunks(value: Any) -> Iterator[bytes]:
    """Write a document in pieces: one call for a long string would block all threads."""
    match value:
        case str() if len(value) > _SLICE:
            yield b'"'
            for start in range(0, len(value), _SLICE):
                yield orjson.dumps(value[start : start + _SLICE])[1:-1]
            yield b'"'
        case dict() if value:
            opening = b"{"
            for key, item in value.items():
                yield opening + orjson.dumps(key) + b":"
                yield from _chunks(item)
                opening = b","
            yield b"}"
        case list() if value:
            opening = b"["
            for item in value:
                yield opening
                yield from _chunks(item)
                opening = b","
            yield b"]"
        case _:
            yield orjson.dumps(value)


def dump_payload(value: Any) -> bytes:
    """Write a document for a provider: lone surrogates become U+FFFD."""
    try:
        return orjson.dumps(value)
    except TypeError:
        text = json.dumps(
            sendable_json(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False
        )
        return text.encode()


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{text} is too large a number")
    return number
