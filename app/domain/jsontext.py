"""JSON text in and out, one way for the log, the wire and the hashes.

orjson does the work; the standard library takes what orjson refuses: lone surrogates (decision
3). NaN, Infinity and numbers too large for a double are refused, as RFC 8259 does.
"""

from __future__ import annotations

import json
from typing import Any

import orjson


def loads(text: bytes | str) -> Any:
    """Parse one JSON document; raises ValueError (RecursionError included) when it is none."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if b"\\ud" not in (text if isinstance(text, bytes) else text.encode()).lower():
            raise ValueError(str(error)) from error
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def dumps(value: Any) -> str:
    """Write one JSON document, compact, keys in their given order, as `dump_stored` does."""
    return dump_stored(value).decode()


def dump_stored(value: Any) -> bytes:
    """Write one JSON document as UTF-8, compact, keys in their given order.

    NUL is escaped, and where a lone surrogate occurs everything beyond ASCII is, so that the
    text can be stored as Postgres text and comes back with identical strings.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
        return text.encode()


def dump_payload(value: Any) -> bytes:
    """Write a document for a provider: lone surrogates become U+FFFD (decision 3)."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(_sendable(value), separators=(",", ":"), allow_nan=False).encode()


def _sendable(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case dict():
            return {_sendable(key): _sendable(item) for key, item in value.items()}
        case list() | tuple():
            return [_sendable(item) for item in value]
        case _:
            return value


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{text} is too large a number")
    return number
