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
_CHARS_BEFORE_MATCH = 60  # characters of an excerpt before its first match
_COMMON_SHARE = 0.1  # of all messages; more messages have a common term
_MIN_WEIGHT_SHARE = 0.15  # of the weight of all terms, for a match by common terms alone
_USUAL_LEXEMES = 128  # lexemes of an ordinary message
_MAX_READ_CHARS = 1 << 20  # characters of a message that an excerpt is chosen from
_MAX_MATCHES = 500  # matches of one term among them


def recall_terms(text: str) -> tuple[Term, ...]:
    """Return the terms of a question in natural language; of too many words the longest.

    Words are cut to a stem, by the length of an ending in most languages, so that they match
    inflected forms. A joined word matches as a whole and by its parts.
    """
    terms: dict[Term, None] = {}
    for piece in text_pieces(text):
        for token in word_tokens(piece):
            if SPACELESS.match(token):
                terms.update(dict.fromkeys(token_terms(token)))
                continue
            parts = [part for part in token_words(token) if part]
            terms.update(dict.fromkeys(prefix_term(_stem(part)) for part in parts))
            if len(parts) > 1:
                terms.update(dict.fromkeys(token_terms(token)))
    if len(terms) <= MAX_RECALL_TERMS:
        return tuple(terms)
    return tuple(sorted(terms, key=lambda term: -len(term.lexeme))[:MAX_RECALL_TERMS])


def _stem(word: str) -> str:
    if not word.isalpha() or len(word) <= MIN_PREFIX:
        return word
    plain = word.removesuffix("s") if not word.endswith("ss") else word
    return plain[: len(plain) - len(plain) // 4] if len(plain) >= _MIN_INFLECTED else plain


@dataclass(frozen=True, slots=True)
class Candidate:
    """A message that may answer: the numbers of the terms it has, and its size in lexemes."""

    seq: int
    terms: frozenset[int]
    size: int = _USUAL_LEXEMES


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


def candidates(
    postings: Sequence[Postings], seqs_with_all_terms: Iterable[int] = ()
) -> list[Candidate]:
    """Return the messages that have any of the terms, by their postings.

    Those in `seqs_with_all_terms` have every term that occurs in the log.
    """
    all_terms = {number for number, posting in enumerate(postings) if posting.seqs}
    terms_by_seq = {seq: {*all_terms} for seq in seqs_with_all_terms}
    for number, posting in enumerate(postings):
        for seq in posting.seqs:
            terms_by_seq.setdefault(seq, set()).add(number)
    return [Candidate(seq, frozenset(terms)) for seq, terms in terms_by_seq.items()]


def weights(postings: Sequence[Postings], head_seq: int) -> list[float]:
    """Return the weight of each term: the inverse of how often the conversation has it."""
    counts = (posting.estimate(head_seq) for posting in postings)
    return [log(1 + (max(0.0, head_seq - count) + 0.5) / (count + 0.5)) for count in counts]


def ranked(
    messages: Iterable[Candidate], postings: Sequence[Postings], head_seq: int
) -> list[Candidate]:
    """Return candidates, best first: those with all terms, then by the weight of their terms.

    A long message matches more by chance, so its score is a little lower. A message with common
    terms alone is left out, unless the question has no others or they are most of its weight.
    """
    term_weights = weights(postings, head_seq)
    max_rare_count = max(MAX_RECALLED, _COMMON_SHARE * head_seq)
    rare = {
        number for number, item in enumerate(postings) if item.estimate(head_seq) <= max_rare_count
    }
    terms_in_log = sum(bool(item.seqs) for item in postings)
    min_score = _MIN_WEIGHT_SHARE * sum(term_weights) if rare else 0.0

    def score(item: Candidate) -> float:
        return sum(term_weights[term] for term in item.terms)

    def key(item: Candidate) -> tuple[bool, float, int]:
        longer = log(max(item.size, _USUAL_LEXEMES) / _USUAL_LEXEMES)
        return (
            len(item.terms) < terms_in_log,
            -round(score(item) / (1 + 0.25 * longer), 2),
            -item.seq,
        )

    answers = (item for item in messages if rare & item.terms or score(item) >= min_score)
    return sorted(answers, key=key)


def excerpt(text: str, terms: Sequence[Term], term_weights: Sequence[float]) -> str:
    """Return about EXCERPT_CHARS characters around the best matches of a text, on one line."""
    start = max(
        0, _densest(_matches(text[:_MAX_READ_CHARS], terms), term_weights) - _CHARS_BEFORE_MATCH
    )
    end = start + EXCERPT_CHARS
    shown = " ".join(text[start:end].split())
    return f"{'…' if start else ''}{shown}{'…' if end < len(text) else ''}"


def _densest(matches: Sequence[tuple[int, int]], term_weights: Sequence[float]) -> int:
    """Return the start of the excerpt whose terms have the highest weight together."""
    counts: Counter[int] = Counter()
    first, score, best, start = 0, 0.0, 0.0, 0
    for at, term in matches:
        score += 0 if counts[term] else term_weights[term]
        counts[term] += 1
        while at - matches[first][0] > EXCERPT_CHARS - 2 * _CHARS_BEFORE_MATCH:
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
