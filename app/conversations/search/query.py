"""Queries: the words and phrases that a message must or must not have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from app.common.errors import ValidationError
from app.conversations.search.words import Term, simple_words, terms_of
from app.prompt.agent_tools import MAX_QUERY_CHARS

MAX_TERMS: Final = 64
_QUERY_PART = re.compile(r'(?P<no>(?<!\S)-(?=[^\s-]))?(?:"(?P<phrase>[^"]*)"|(?P<word>[^\s"]+))')
STRAIGHT_QUOTES = str.maketrans(dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb", '"'))


@dataclass(frozen=True, slots=True)
class Query:
    """What a message must have: all `words`, none of the groups in `excluded`, and the phrases.

    A message has a group when it has all words of it. A phrase is a sequence of words.
    """

    words: tuple[Term, ...]
    excluded: tuple[tuple[Term, ...], ...] = ()
    phrases: tuple[tuple[str, ...], ...] = ()
    excluded_phrases: tuple[tuple[str, ...], ...] = ()

    @property
    def needs_text(self) -> bool:
        """Whether a match depends on the order of words, so that the text has to be read."""
        return bool(self.phrases or self.excluded_phrases)

    def matches_phrases(self, texts: Sequence[str]) -> bool:
        """Whether the texts of a message have all phrases, and none of the excluded ones."""
        rows = [_row(simple_words(text)) for text in texts]
        return all(any(_row(phrase) in row for row in rows) for phrase in self.phrases) and not any(
            _row(phrase) in row for phrase in self.excluded_phrases for row in rows
        )


def _row(words: Iterable[str]) -> str:
    return f" {' '.join(words)} "


def query_from(text: str, pointer: str = "/query/q") -> Query:
    """Parse a query: all words are required, `-word` excludes, `"quoted words"` are a phrase.

    Raises ValidationError at `pointer` for a query that is too long or requires no word.
    """
    if len(text) > MAX_QUERY_CHARS:
        raise ValidationError.at(pointer, f"A query has at most {MAX_QUERY_CHARS:,} characters")
    words: dict[Term, None] = {}
    excluded: list[tuple[Term, ...]] = []
    phrases: list[tuple[str, ...]] = []
    excluded_phrases: list[tuple[str, ...]] = []
    for part in _QUERY_PART.finditer(text.translate(STRAIGHT_QUOTES)):
        if part["phrase"] is None:
            terms = terms_of(part["word"])
            if part["no"] and terms:
                excluded.append(terms)
            elif terms:
                words.update(dict.fromkeys(terms))
        elif phrase := tuple(simple_words(part["phrase"])):
            (excluded_phrases if part["no"] else phrases).append(phrase)
            if not part["no"]:
                words.update(dict.fromkeys(terms_of(" ".join(phrase))))
    if not words:
        raise ValidationError.at(pointer, "A query must require at least one word")
    if len(words) + sum(map(len, excluded)) > MAX_TERMS:
        raise ValidationError.at(pointer, f"A query has at most {MAX_TERMS} words")
    return Query(tuple(words), tuple(excluded), tuple(phrases), tuple(excluded_phrases))
