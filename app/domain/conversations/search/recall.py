"""The messages that answer a question in natural language best, each with an excerpt."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from math import log
from typing import Final

from app.domain.conversations.search.words import (
    MIN_PREFIX,
    SPACELESS,
    Term,
    normalised,
    prefix_term,
    text_pieces,
    token_terms,
    token_words,
    word_tokens,
)
from app.domain.tool_output.blobs import ToolOutputRef


@dataclass(frozen=True, slots=True)
class Postings:
    """The newest messages that have a term; with `is_cut` older messages may have it as well."""

    seqs: tuple[int, ...]
    is_cut: bool = False

    def estimate(self, head_seq: int) -> float:
        """Return an estimate of how many messages of a log with this head have the term."""
        if not self.is_cut:
            return len(self.seqs)
        return len(self.seqs) * head_seq / (head_seq - min(self.seqs) + 1)


MAX_RECALLED: Final = 10
"""Messages that `recall` returns."""
MAX_RECALL_TERMS: Final = 24
EXCERPT_CHARS: Final = 300
"""Characters of an excerpt."""
_MIN_INFLECTED = 6  # minimum characters of a word with an ending
_BEFORE = 60  # characters of an excerpt before its first match
_COMMON_SHARE = 0.1
_MIN_SHARE = 0.15  # of the weight of all terms
_USUAL_SIZE = 128  # lexemes of an ordinary message
_MAX_READ = 1 << 20  # characters of a message that an excerpt is chosen from
_MAX_MATCHES = 500  # matches of one term among them


def recall_terms(text: str) -> tuple[Term, ...]:
    """Return the terms of a question in natural language; of too many words the longest.

    Words are cut to a stem, by the length of an ending in most languages, so that they match
    inflected forms. A joined word matches as a whole and by its parts.
    """
    found: dict[Term, None] = {}
    for piece in text_pieces(text):
        for token in word_tokens(piece):
            if SPACELESS.match(token):
                found.update(dict.fromkeys(token_terms(token)))
                continue
            parts = [part for part in token_words(token) if part]
            found.update(dict.fromkeys(prefix_term(_stem(part)) for part in parts))
            if len(parts) > 1:
                found.update(dict.fromkeys(token_terms(token)))
    longest = sorted(found, key=lambda term: -len(term.lexeme))
    return tuple(found) if len(found) <= MAX_RECALL_TERMS else tuple(longest[:MAX_RECALL_TERMS])


def _stem(word: str) -> str:
    if not word.isalpha() or len(word) <= MIN_PREFIX:
        return word
    plain = word.removesuffix("s") if not word.endswith("ss") else word
    return plain[: len(plain) - len(plain) // 4] if len(plain) >= _MIN_INFLECTED else plain


@dataclass(frozen=True, slots=True)
class Candidate:
    """A message that may answer: the terms that it has, and its size in lexemes."""

    seq: int
    terms: frozenset[int]
    size: int = _USUAL_SIZE


@dataclass(frozen=True, slots=True)
class Recalled:
    """A message that answers a question, with an excerpt.

    `output_ref` refers to the whole of a cut result. `tool_name` is None where it is unknown.
    """

    seq: int
    role: str
    tool_name: str | None
    created_at: datetime
    excerpt: str
    output_ref: ToolOutputRef | None


def candidates(postings: Sequence[Postings], others: Iterable[int] = ()) -> list[Candidate]:
    """Return the messages that have any of the terms, by their postings.

    `others` are messages that have every term that occurs in the log.
    """
    every = [number for number, posting in enumerate(postings) if posting.seqs]
    found = {seq: {*every} for seq in others}
    for number, posting in enumerate(postings):
        for seq in posting.seqs:
            found.setdefault(seq, set()).add(number)
    return [Candidate(seq, frozenset(terms)) for seq, terms in found.items()]


def weights(postings: Sequence[Postings], head_seq: int) -> list[float]:
    """Return the weight of each term: the inverse of how often the conversation has it."""
    counts = (posting.estimate(head_seq) for posting in postings)
    return [log(1 + (max(0.0, head_seq - count) + 0.5) / (count + 0.5)) for count in counts]


def ranked(
    found: Iterable[Candidate], postings: Sequence[Postings], head_seq: int
) -> list[Candidate]:
    """Return candidates, best first: those with all terms, then by the weight of their terms.

    A long message matches more by chance, so its score is a little lower. A message with common
    terms alone is left out, unless the question has no others or they are most of its weight.
    """
    worth = weights(postings, head_seq)
    common = max(MAX_RECALLED, _COMMON_SHARE * head_seq)
    rare = {place for place, item in enumerate(postings) if item.estimate(head_seq) <= common}
    known = sum(bool(item.seqs) for item in postings)
    min_score = _MIN_SHARE * sum(worth) if rare else 0.0

    def score(item: Candidate) -> float:
        return sum(worth[term] for term in item.terms)

    def key(item: Candidate) -> tuple[bool, float, int]:
        longer = log(max(item.size, _USUAL_SIZE) / _USUAL_SIZE)
        return len(item.terms) < known, -round(score(item) / (1 + 0.25 * longer), 2), -item.seq

    answers = (item for item in found if rare & item.terms or score(item) >= min_score)
    return sorted(answers, key=key)


def excerpt(text: str, terms: Sequence[Term], worth: Sequence[float]) -> str:
    """Return about EXCERPT_CHARS characters around the best matches of a text, on one line."""
    start = max(0, _densest(_matches(text[:_MAX_READ], terms), worth) - _BEFORE)
    end = start + EXCERPT_CHARS
    shown = " ".join(text[start:end].split())
    return f"{'…' if start else ''}{shown}{'…' if end < len(text) else ''}"


def _densest(matches: Sequence[tuple[int, int]], worth: Sequence[float]) -> int:
    """Return the start of the excerpt whose terms have the highest weight together."""
    counts: Counter[int] = Counter()
    first, score, best, start = 0, 0.0, 0.0, 0
    for at, term in matches:
        score += 0 if counts[term] else worth[term]
        counts[term] += 1
        while at - matches[first][0] > EXCERPT_CHARS - 2 * _BEFORE:
            left = matches[first][1]
            counts[left] -= 1
            score -= 0 if counts[left] else worth[left]
            first += 1
        if score > best:
            best, start = score, matches[first][0]
    return start


def _matches(text: str, terms: Sequence[Term]) -> list[tuple[int, int]]:
    """Return the positions of words that match, each with the number of its term."""
    plain = text.lower() if text.isascii() else text.translate(_NORMALISED)
    found = []
    for number, term in enumerate(terms):
        places = (match.start() for match in re.finditer(re.escape(term.lexeme), plain))
        begun = (at for at in places if _is_word_at(text, at, term))
        found += [(at, number) for at in islice(begun, _MAX_MATCHES)]
    return sorted(found)


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
