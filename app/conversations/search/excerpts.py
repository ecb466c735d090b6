"""Excerpts: the part of a text around its best matches, on one line."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Final

from app.conversations.search.words import SPACELESS, Term, normalised

EXCERPT_CHARS: Final = 300
"""Characters of an excerpt."""
_CHARS_BEFORE_MATCH = 60  # characters of an excerpt before its first match
_MAX_READ_CHARS = 1 << 20  # characters of a message that an excerpt is chosen from
_MAX_MATCHES = 500  # matches of one term among them


def excerpt(
    text: str,
    terms: Sequence[Term],
    term_weights: Sequence[float],
    max_chars: int = EXCERPT_CHARS,
) -> str:
    """Return about so many characters around the best matches of a text, on one line."""
    start = 0
    if len(text) > max_chars:
        matches = _matches(text[:_MAX_READ_CHARS], terms)
        start = max(0, _densest(matches, term_weights, max_chars) - _CHARS_BEFORE_MATCH)
    end = start + max_chars
    shown = " ".join(text[start:end].split())
    return f"{'…' if start else ''}{shown}{'…' if end < len(text) else ''}"


def _densest(
    matches: Sequence[tuple[int, int]], term_weights: Sequence[float], max_chars: int
) -> int:
    """Return the start of the excerpt whose terms have the highest weight together."""
    counts: Counter[int] = Counter()
    first, score, best, start = 0, 0.0, 0.0, 0
    for at, term in matches:
        score += 0 if counts[term] else term_weights[term]
        counts[term] += 1
        while at - matches[first][0] > max_chars - 2 * _CHARS_BEFORE_MATCH:
            dropped_term = matches[first][1]
            counts[dropped_term] -= 1
            score -= 0 if counts[dropped_term] else term_weights[dropped_term]
            first += 1
        if score > best:
            best, start = score, matches[first][0]
    return start


def _matches(text: str, terms: Sequence[Term]) -> list[tuple[int, int]]:
    """Return the positions of words that match, each with the number of its term."""
    plain = text.lower() if text.isascii() else text.translate(_NORMALISED)
    matches: list[tuple[int, int]] = []
    for number, term in enumerate(terms):
        positions = (match.start() for match in re.finditer(re.escape(term.lexeme), plain))
        word_starts = (at for at in positions if _is_word_at(text, at, term))
        matches += [(at, number) for at in islice(word_starts, _MAX_MATCHES)]
    return sorted(matches)


def _is_word_at(text: str, start: int, term: Term) -> bool:
    """Whether a word begins there, and ends with the term unless the term is a prefix."""
    if SPACELESS.match(text, start):
        return True
    end = start + len(term.lexeme)
    if start and text[start - 1].isalnum() and not text[start].isupper():
        return False
    return term.is_prefix or not text[end : end + 1].isalnum() or text[end].isupper()


class _NormalisedCharacters(dict[int, str]):
    """Normalises single characters, so that positions in a text stay the same."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        folded = normalised(unicodedata.normalize("NFKC", character))
        self[code] = folded if len(folded) == 1 else character
        return self[code]


_NORMALISED = _NormalisedCharacters()
