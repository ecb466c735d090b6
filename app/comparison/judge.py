"""What of a conversation a payload still states, judged by the payload's text alone.

1. A statement survives where its text stands in the payload, whatever the case and the blanks.
2. In other words it survives where all its values, such as numbers, names in code and quoted words,
   and most of its other words stand within `REACH` characters. Text in scripts without spaces is
   compared as in rule 1 only.
3. Nothing of a summary but its text is read: neither receipts nor sections.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from app.domain.common import json_text
from app.domain.common.messages import Message
from app.domain.compaction.summaries.statements.ledger import statements_of
from app.domain.compaction.summaries.statements.statement import Author, Kind

REACH = 240
WORDS_SHARE = 0.5
"""The share of the other words that has to be near all the values."""
ONLY_WORDS_SHARE = 0.7
"""The same for a statement without values."""
MIN_WORDS = 3
MIN_WORD_CHARS = 4
STEM_CHARS = 5
MAX_ANCHORS = 200
"""So many places of a statement's first value are looked at."""
JUDGED = (
    Kind.STANDING,
    Kind.CONSTRAINT,
    Kind.PREFERENCE,
    Kind.GOAL,
    Kind.FACT,
    Kind.DECISION,
    Kind.TODO,
    Kind.OPEN,
    Kind.EDITED,
)
"""The kinds of statements that are judged."""

_SPACE = re.compile(r"\s+")
_MARK = re.compile(r"^\[[^\]]?\]\s*(?:#\S+ )?")
"""What is put before the text of a task."""
_WORD = re.compile(r"[^\s\"'`“”«»()\[\]{},;:!?]+")
_VALUE = re.compile(r"\d|[a-z][A-Z]|^[A-Z]{2,}$|\w[._/\\@-]\w")
_QUOTED = re.compile(r"`([^`]{1,80})`|\"([^\"]{1,80})\"|“([^”]{1,80})”")
_UNREAD = frozenset({"type", "role", "id", "call_id", "tool_call_id", "tool_use_id"})
"""Fields of a payload that state nothing."""
_MEDIA = frozenset({"data", "signature", "thoughtSignature", "encrypted_content"})


def detected(messages: Sequence[Message]) -> dict[Kind, list[str]]:
    """Return what holds at the end of a conversation, by kind; kinds without any are left out."""
    found: dict[Kind, list[str]] = {kind: [] for kind in JUDGED}
    for statement in statements_of(messages):
        # A call without a result is described in words that no message has.
        is_said = statement.kind is not Kind.OPEN or statement.author is not Author.TOOL
        if statement.kind in found and is_said:
            found[statement.kind].append(_MARK.sub("", statement.text))
    return {kind: texts for kind, texts in found.items() if texts}


def flat(text: str) -> str:
    """Return a text for comparisons: lower case, one space between words, paths with `/`."""
    return _SPACE.sub(" ", text.casefold().replace("\\", "/")).strip()


def payload_text(payload: Any) -> str:
    """Return all that a model reads of a payload in any format, flat."""
    return flat("\n".join(_texts(payload)))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if not value.startswith("data:"):
            yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            if key == "arguments":  # JSON in a string, whose texts are escaped
                yield from _texts(_parsed(item))
            elif key not in _UNREAD and key not in _MEDIA:
                yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _parsed(arguments: Any) -> Any:
    try:
        return json_text.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


def stays(message: Message, payload: str) -> bool:
    """Whether a payload has all texts of a message and of its calls; `payload` is flat."""
    texts = [message.text]
    for call in message.calls:
        texts += _texts(_parsed(call.arguments))
    return all(flat(text) in payload for text in texts if text)


def survives(statement: str, payload: str) -> bool:
    """Whether a payload states this; `payload` is flat (rules 1 and 2)."""
    if flat(statement).rstrip(".") in payload:
        return True
    values, words = _values_and_words(statement)
    if not values and len(words) < MIN_WORDS:
        return False
    share = WORDS_SHARE if values else ONLY_WORDS_SHARE
    # What is needed is near each of the values, but of the words some may be missing.
    anchors = [max(values, key=len)] if values else words
    return any(
        all(value in near for value in values)
        and sum(word in near for word in words) >= share * len(words)
        for anchor in anchors
        for near in _around(anchor, payload)
    )


def _values_and_words(statement: str) -> tuple[list[str], list[str]]:
    """Return the values of a statement, and the stems of its other words, all in lower case."""
    quoted = [next(filter(None, found)) for found in _QUOTED.findall(statement)]
    values = {flat(text) for text in quoted}
    words = set()
    for match in _WORD.finditer(_QUOTED.sub(" ", statement)):
        word = match[0].strip(".-*_/")
        if _VALUE.search(word):
            values.add(flat(word))
        elif len(word) >= MIN_WORD_CHARS:
            words.add(flat(word)[:STEM_CHARS])
    return sorted(values), sorted(words)


def _around(word: str, text: str) -> Iterator[str]:
    at = text.find(word)
    for _ in range(MAX_ANCHORS):
        if at < 0:
            return
        yield text[max(0, at - REACH) : at + len(word) + REACH]
        at = text.find(word, at + 1)
