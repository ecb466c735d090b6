"""Questions in natural language: the words to look for, phrases and times.

1. Function words are dropped, unless a question has no others.
2. A word is found in all its forms; a joined word also as a whole.
3. Quoted words are a phrase. A message with the phrase ranks higher.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from app.conversations.search.function_words import function_words
from app.conversations.search.query import STRAIGHT_QUOTES
from app.conversations.search.times import TimeWords, time_words
from app.conversations.search.word_forms import forms, widened
from app.conversations.search.words import (
    SPACELESS,
    Term,
    simple_words,
    text_pieces,
    token_terms,
    token_words,
    word_tokens,
)

MAX_WORDS: Final = 24
_MAX_PHRASES = 4
_PHRASE = re.compile('"([^"]+)"')
_ASKS_TIME = re.compile(
    r"\W*(?:when|how long|how old|(?:what|which) (?:year|month|day|date|time|week)|wann|seit wann"
    r"|wie lange|quand|cu[aá]ndo|quando|когда|いつ|什么时候|何时|언제)\b"
)
_ASKS_NUMBER = re.compile(
    r"\W*(?:how (?:many|much|often)|wie ?viele?|wie oft|combien|cu[aá]nt[oa]s?|quant[oaie]s?"
    r"|сколько|多少|几|いくつ|何回|몇)"
)


@dataclass(frozen=True, slots=True)
class Word:
    """A word to look for: any of its terms, or the prefix `wider` if no message has one."""

    terms: tuple[Term, ...]
    wider: Term | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """What a question looks for; `asks_time` and `asks_number` tell the kind of its answer."""

    words: tuple[Word, ...]
    phrases: tuple[tuple[str, ...], ...] = ()
    times: TimeWords | None = None
    asks_time: bool = False
    asks_number: bool = False


def question_from(text: str) -> Question:
    """Parse a question; of too many words it has the longest."""
    plain = text.lower()
    phrases = (
        tuple(simple_words(found)) for found in _PHRASE.findall(text.translate(STRAIGHT_QUOTES))
    )
    return Question(
        _words(text),
        tuple(phrase for phrase in phrases if len(phrase) > 1)[:_MAX_PHRASES],
        time_words(plain),
        _ASKS_TIME.match(plain) is not None,
        _ASKS_NUMBER.match(plain) is not None,
    )


def _words(text: str) -> tuple[Word, ...]:
    tokens = [token for piece in text_pieces(text) for token in word_tokens(piece)]
    dropped = function_words([word for token in tokens for word in token_words(token)])
    found = _without(tokens, dropped) or _without(tokens, frozenset())
    if len(found) <= MAX_WORDS:
        return found
    longest = sorted(found, key=lambda word: -len(word.terms[0].lexeme))[:MAX_WORDS]
    return tuple(word for word in found if word in longest)


def _without(tokens: list[str], dropped: frozenset[str]) -> tuple[Word, ...]:
    """Return the words of tokens but for those that are dropped (rules 1, 2)."""
    found: dict[tuple[Term, ...], Word] = {}
    for token in tokens:
        if SPACELESS.match(token):
            found.update({(term,): Word((term,)) for term in token_terms(token)})
            continue
        parts = [part for part in token_words(token) if part and part not in dropped]
        found.update({word.terms: word for word in map(_word, parts)})
        if len(parts) > 1:
            whole = tuple(token_terms(token))
            found[whole] = Word(whole)
    return tuple(found.values())


def _word(text: str) -> Word:
    terms, wider = forms(text), widened(text)
    is_covered = any(term.matches(wider.lexeme) for term in terms if term.is_prefix)
    return Word(terms, None if is_covered else wider)


def is_question(text: str) -> bool:
    """Whether a text ends with a question, so that its answer is elsewhere."""
    return text.rstrip().endswith(("?", "？", "؟"))  # noqa: RUF001 - full width
