"""Parses and writes JSON text, in the same way for the log, the API and hashes.

orjson does the work. The standard library handles what orjson refuses: lone surrogates. NaN,
Infinity and numbers too large for a double are refused, as by RFC 8259.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import orjson

from app.common.json_structure import ExceededLimit, StructureLimits, exceeded_limit
from app.common.sendable import sendable_json


class ExceedsLimits(ValueError):
    """A text exceeds a limit of its structure, and was not parsed."""

    def __init__(self, excess: ExceededLimit) -> None:
        super().__init__(f"more than {excess.limit:,} {excess.what}")
        self.excess = excess


def loads_within(
    text: bytes | str, limits: StructureLimits, load: Callable[[bytes | str], Any] | None = None
) -> Any:
    """Parse a text from outside by `load`, which is `loads` by default.

    Raises ExceedsLimits before anything is parsed, and ValueError as `load` does. Every JSON text
    that the service did not write itself is parsed here, and in a thread where it is long.
    """
    written = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    if (excess := exceeded_limit(written, limits)) is not None:
        raise ExceedsLimits(excess)
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
        text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
        return text.encode()


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
