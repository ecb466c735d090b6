"""What a text states, judged by the text alone.

1. A fact survives where its value stands as a whole word with both words of its subject within
   `REACH` characters.
2. An old value is stale where text that the service wrote states it: in a sentence without a word
   of history, and without the newest value in its line. It is stated as `current` where the newest
   does not follow later in the payload, and `beside` it where it does.
3. Where the newest is absent, an old value is current wherever it stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from benchmarks.fidelity.facts import Fact

REACH = 200
LONG_LINE = 400
"""A longer line is no single item: the newest value somewhere in it excuses nothing."""
_SPACE = re.compile(r"\s+")
_SENTENCE = re.compile(r"(?<=[.!?;])\s+|(?<=\u3002)")
_LETTER = r"[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
"""A letter or digit of a script that sets spaces between words."""
_HISTORY = re.compile(
    r"\b(?:was|were|formerly|former|previous|previously|earlier|old|older|superseded|replaced"
    r"|replaces|obsolete|outdated|no longer|until|instead of|from \S+ to|used to|initially"
    r"|originally|corrected|früher|vorher|bisher|statt|avant|auparavant|au lieu de|antes|en lugar"
    r" de)\b|→|->|~~|以前|旧"
)
_HEADING = re.compile(r"\s*(?:#{1,6} .*|\*\*[^*]+\*\*:?|<[a-z_]+>|[A-Z][\w ,/()-]{2,60}:)\s*")


def flat(text: str) -> str:
    """Return the text for comparisons: lower case, one space between words."""
    return _SPACE.sub(" ", text.casefold()).replace("\u2019", "'")


def survives(fact: Fact, text: str) -> bool:
    """Whether flat text states the fact (rule 1)."""
    return _last(fact, text) >= 0


def _last(fact: Fact, text: str) -> int:
    """Return where flat text states the fact last, or -1."""
    words = [word.casefold() for word in fact.subject]
    found = -1
    for start, end in _places(fact.value, text):
        near = text[max(0, start - REACH) : end + REACH]
        if all(word in near for word in words):
            found = start
    return found


def stale(fact: Fact, payload: str, written: str) -> str:
    """Return how an old value is stated: `current`, `beside` or not at all (rules 2 and 3).

    `payload` is flat.
    """
    if not fact.old or not _has(fact.old, payload):
        return ""
    newest = _last(fact, payload)
    if newest < 0:
        return "current"
    stated = [payload.rfind(unit) for unit in _stated(fact, written)]
    if not stated:
        return ""
    return "current" if max(stated) > newest else "beside"


def _stated(fact: Fact, written: str) -> Iterator[str]:
    """Yield the sentences that state the old value without a word of history (rule 2)."""
    in_history = False
    for line in written.splitlines():
        if _HEADING.fullmatch(line):
            in_history = bool(_HISTORY.search(line.casefold()))
        plain = flat(line)
        if in_history or not _has(fact.old, plain):
            continue
        if _has(fact.value, plain) and len(plain) <= LONG_LINE:
            continue
        for unit in _SENTENCE.split(plain):
            if _has(fact.old, unit) and not _HISTORY.search(unit):
                yield unit


def _has(value: str, text: str) -> bool:
    return next(_places(value, text), None) is not None


def _places(value: str, text: str) -> Iterator[tuple[int, int]]:
    """Yield where flat text has the value as a whole word, not as a part of another."""
    return (match.span() for match in _whole(flat(value)).finditer(text))


@lru_cache(4_096)
def _whole(value: str) -> re.Pattern[str]:
    before = rf"(?<!{_LETTER})(?<!\d[.,:/-])" if value[0].isdigit() else rf"(?<!{_LETTER})"
    after = rf"(?!{_LETTER})(?![.,:/-]\d)" if value[-1].isdigit() else rf"(?!{_LETTER})"
    return re.compile(before + re.escape(value) + after)
