"""What a payload states, judged by its text alone.

1. A statement survives where all that is needed of it stands within `REACH` characters.
2. Text that was appended stands as it was; all other text of a payload was written by the service.
3. An earlier value is stale where text of the service states it without a word of history, and
   anywhere, if the value that replaced it is absent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from benchmarks.fidelity.planted.wording import Plant
from tests.payload_tokens import payload_texts

REACH = 240
LONG_LINE = 300
"""A longer line is no single item: the newest value somewhere in it excuses nothing."""
_SPACE = re.compile(r"\s+")
_SENTENCE = re.compile(r"(?<=[.!?;])\s+(?!\()")
_HISTORY = re.compile(
    r"\b(?:was|were|formerly|former|previous|previously|earlier|before|old|older|superseded"
    r"|replaced|replaces|supersedes|obsolete|outdated|history|no longer|not any more|anymore|until"
    r"|instead of|changed from|moved from|used to|initially|originally|past|overridden"
    r"|revoked|withdrawn)\b"
    r"|→|->|⇒|~~"
)
_HEADING = re.compile(r"^\s*(?:#{1,6}\s+\S.*|\*\*[^*]+\*\*:?|<[a-z_]+>|[A-Z][\w ,/()-]{2,60}:)\s*$")


def flat(text: str) -> str:
    """Return the text for comparisons: lower case, one space between words."""
    return _SPACE.sub(" ", text.casefold()).replace("\u2019", "'")


def survives(plant: Plant, text: str) -> bool:
    """Whether flat text states what was planted (rule 1)."""
    first, *others = [need.casefold().split("|") for need in plant.needed]
    return any(
        all(any(other in near for other in options) for options in others)
        for word in first
        for near in _around(word, text)
    )


def _around(word: str, text: str) -> Iterator[str]:
    at = text.find(word)
    while at >= 0:
        yield text[max(0, at - REACH) : at + len(word) + REACH]
        at = text.find(word, at + 1)


def payload_text(payload: Mapping[str, Any]) -> str:
    """Return all that a model reads of a payload, flat."""
    return flat("\n".join(payload_texts(payload)))


def written_text(payload: Mapping[str, Any], appended: set[str]) -> str:
    """Return the text of the messages that were not appended (rule 2)."""
    texts = []
    for message in payload["messages"]:
        if message["role"] != "tool":
            texts += [text for text in content_texts(message) if text not in appended]
    return "\n".join(texts)


def content_texts(message: Mapping[str, Any]) -> list[str]:
    """Return the texts of an OpenAI Chat message."""
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content or () if part.get("text")]


def stale_values(plant: Plant, payload: str, written: str) -> list[str]:
    """Return the earlier values that are still stated as current (rule 3); `payload` is flat."""
    is_newest_known = survives(plant, payload)
    newest = plant.needed[0].casefold()
    return [
        value
        for value in plant.old
        if value.casefold() in payload
        and (not is_newest_known or _is_current(value.casefold(), newest, written))
    ]


def _is_current(old: str, newest: str, written: str) -> bool:
    """Whether a sentence states the old value, and no word of history beside it."""
    in_history = False
    for line in written.splitlines():
        if _HEADING.match(line):
            in_history = bool(_HISTORY.search(line.casefold()))
        plain = flat(line)
        if old not in plain or in_history:
            continue
        if newest in plain and len(plain) <= LONG_LINE:
            continue
        if any(old in unit and not _HISTORY.search(unit) for unit in _SENTENCE.split(plain)):
            return True
    return False


def found_in(texts: Iterable[str], where: str) -> int:
    """Return how many of the texts stand in flat text."""
    return sum(bool(text) and flat(text) in where for text in texts)
