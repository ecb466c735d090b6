"""Texts: what providers accept, times, and English words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

EARLIEST_TIME = datetime(1, 1, 2, tzinfo=UTC)
"""The oldest time of a message: databases read the minimum time as minus infinity."""

_UNSENDABLE = re.compile("[\x00\ud800-\udfff]")
_SLICE = 1 << 18  # characters; one pass over 10 MB would block all threads for too long
_FUNCTION_WORDS = """
a about above after again against all also am an and any are as at be because been before being
below between both but by can could d did didn do does doesn doing don done down during each either
else few for from further had has hasn have haven having he her here hers herself him himself his
how i if in into is isn it its itself just ll m may me might more most must my myself no nor not now
of off on once only or other our ours ourselves out over own please re s same shall she should so
some such t than that the their theirs them themselves then there these they this those through to
too under until up upon us ve very was wasn we were weren what when where whether which while who
whom whose why will with won would wouldn you your yours yourself yourselves
"""
FUNCTION_WORDS: Final = frozenset(_FUNCTION_WORDS.split())
"""Words that say little about what a question looks for."""


def is_sendable(text: str) -> bool:
    """Return whether a text has neither NUL nor lone surrogates, which no provider accepts."""
    if "\x00" in text:
        return False
    try:
        return text.isascii() or text.encode() is not None
    except UnicodeEncodeError:
        return False


def sendable(text: str) -> str:
    """Replace NUL and lone surrogates by U+FFFD; a text without them is the same object."""
    if is_sendable(text):
        return text
    slices = (text[start : start + _SLICE] for start in range(0, len(text), _SLICE))
    return "".join(_UNSENDABLE.sub("\ufffd", piece) for piece in slices)


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


def time_from(text: str) -> datetime | None:
    """Parse a time of ISO 8601, as UTC without a zone; None for another or a too early one."""
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo is None:
            time = time.replace(tzinfo=UTC)
        time = time.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return time if time >= EARLIEST_TIME else None


def stems(words: Sequence[str]) -> list[str]:
    """Return the stems of English words in lower case."""
    import Stemmer

    # A stemmer is not thread-safe.
    found: list[str] = Stemmer.Stemmer("english", 0).stemWords(words)
    return found
