"""Text that providers accept: without NUL and lone surrogates."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_UNSENDABLE = re.compile("[\x00\ud800-\udfff]")


_SLICE = 1 << 18  # characters; one pass over 10 MB would block all threads for too long


def is_sendable(text: str) -> bool:
    """Return whether a text has neither NUL nor lone surrogates, which no provider accepts."""
    if "\x00" in text:
        return False
    return text.isascii() or all(map(_is_encodable, _slices(text)))


def sendable(text: str) -> str:
    """Replace NUL and lone surrogates by U+FFFD; a text without them is the same object."""
    if is_sendable(text):
        return text
    return "".join(_UNSENDABLE.sub("\ufffd", piece) for piece in _slices(text))


def sendable_json(value: Any) -> Any:
    """Make every string in a JSON value sendable; the same object when all are."""
    match value:
        case str():
            return sendable(value)
        case Mapping():
            pairs = {sendable(key): sendable_json(item) for key, item in value.items()}
            same = all(key in value and pairs[key] is value[key] for key in pairs)
            return value if same and len(pairs) == len(value) else pairs
        case list() | tuple():
            items = [sendable_json(item) for item in value]
            same = all(new is old for new, old in zip(items, value, strict=True))
            return value if same else items
        case _:
            return value


def _slices(text: str) -> Iterator[str]:
    return (text[start : start + _SLICE] for start in range(0, len(text), _SLICE))


def _is_encodable(piece: str) -> bool:
    try:
        piece.encode()
    except UnicodeEncodeError:
        return False
    return True
