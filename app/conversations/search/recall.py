"""The messages that answer a question best: ranked with their neighbours, shown with them.

1. A message has the words of the messages around it as well, each with a share that falls with the
   distance: an answer seldom repeats the words of its question. Of a word that several of them
   have, the highest share counts.
2. A word weighs the more, the fewer messages of the conversation have it. A word that most messages
   have counts in the message itself only.
3. A long message has more words by chance, so it counts less, for its neighbours too.
4. The text of the best messages decides the rest: a message that asks, or that has no time or
   number where the question asks for one, ranks lower; one with a quoted phrase ranks higher.
5. A time in the question raises the messages of that time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import nlargest
from math import log
from typing import Final

from app.blobs.blobs import ToolOutputRef
from app.conversations.search.question import Question, is_question
from app.conversations.search.times import tells_number, tells_time
from app.conversations.search.words import simple_words

MAX_RECALLED: Final = 10
"""Messages on a page of `recall`."""
MAX_RANKED: Final = 40
"""Messages that are ranked by their text, on all pages together."""
MAX_RANKED_BYTES: Final = 4_096
"""The size of a message's body up to which its text is read for the ranking."""
_BEFORE, _AFTER = (0.7, 0.5, 0.3, 0.2), (0.6, 0.4, 0.2)
"""The share that a message has of the words of those before and after it, by distance (rule 1)."""
_SHARES = (
    (0, 1.0),
    *((distance, share) for distance, share in enumerate(_BEFORE, 1)),
    *((-distance, share) for distance, share in enumerate(_AFTER, 1)),
)
_ASKS, _NO_TIME, _NO_NUMBER, _PHRASE = 0.85, 0.67, 0.77, 2.0
_USUAL_BYTES = 2_048  # stored words of an ordinary message
_LONGER = 0.5  # how much less a message counts that is e times as long
_MIN_SHARE = 0.35  # of the best score, for a message that is shown


@dataclass(frozen=True, slots=True)
class Postings:
    """Messages that have a word, with the bytes of their stored words.

    They are all that have it from the seq `since` on, where 0 means the whole log.
    """

    seqs: tuple[int, ...]
    sizes: tuple[int, ...] = ()
    since: int = 0

    @property
    def is_cut(self) -> bool:
        """Whether older messages may have the word as well."""
        return self.since > 0

    def estimate(self, head_seq: int) -> float:
        """Return an estimate of how many messages of a log with this head have the word."""
        if not self.is_cut:
            return len(self.seqs)
        newest = sum(seq >= self.since for seq in self.seqs)
        return newest * head_seq / (head_seq - self.since + 1)


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A message beside one that is shown, with an excerpt."""

    role: str
    tool_name: str | None
    excerpt: str


@dataclass(frozen=True, slots=True)
class Recalled:
    """A message that answers a question, with an excerpt, and the messages around it.

    `output_ref` refers to the whole of a cut result. `tool_name` is None where it is unknown.
    `before` and `after` are None where they are shown themselves, or have no text.
    """

    seq: int
    role: str
    tool_name: str | None
    time: datetime
    excerpt: str
    output_ref: ToolOutputRef | None
    before: Neighbour | None = None
    after: Neighbour | None = None


@dataclass(frozen=True, slots=True)
class RecallPage:
    """Messages that answer a question, best first, from `offset` on, of `total` ranked ones."""

    messages: tuple[Recalled, ...]
    offset: int
    total: int


NOTHING: Final = RecallPage((), 0, 0)


def weights(postings: Sequence[Postings], head_seq: int) -> list[float]:
    """Return the weight of each word: the inverse of how often the conversation has it."""
    counts = (posting.estimate(head_seq) for posting in postings)
    return [log(1 + (max(0.0, head_seq - count) + 0.5) / (count + 0.5)) for count in counts]


class Ranking:
    """Scores the messages of one conversation for one question."""

    def __init__(self, question: Question, postings: Sequence[Postings], head_seq: int) -> None:
        self._question = question
        self.weights = weights(postings, head_seq)
        self._sizes = {
            seq: size for item in postings for seq, size in zip(item.seqs, item.sizes, strict=False)
        }
        self.scores: dict[int, float] = {}
        self._known: set[tuple[int, int]] = set()
        for number, posting in enumerate(postings):
            self._count(number, posting, head_seq)

    def best(self, limit: int = MAX_RANKED) -> list[int]:
        """Return the seqs with the highest scores, best first; among equals the newest first."""
        scores = self.scores
        return nlargest(limit, scores, key=lambda seq: (round(scores[seq], 6), seq))

    def add_words(self, words_by_seq: Mapping[int, Collection[int]]) -> None:
        """Count the words that messages have beyond the postings."""
        for seq, numbers in words_by_seq.items():
            for number in numbers:
                if (number, seq) not in self._known:
                    self._known.add((number, seq))
                    self._add(seq, self._own(number, seq))

    def add_texts(self, texts: Mapping[int, str]) -> None:
        """Weigh messages by their texts (rule 4)."""
        for seq, text in texts.items():
            if seq in self.scores:
                self.scores[seq] *= self._fit(text)

    def raise_span(self, first_seq: int, end_seq: int, boost: float) -> None:
        """Raise the messages of a time, the end exclusive (rule 5)."""
        for seq in self.scores:
            if first_seq <= seq < end_seq:
                self.scores[seq] *= boost

    def shown(self) -> list[int]:
        """Return the messages worth showing, best first."""
        best = self.best()
        if not best:
            return []
        least = _MIN_SHARE * self.scores[best[0]]
        return [seq for seq in best if self.scores[seq] >= least]

    def _count(self, number: int, posting: Postings, head_seq: int) -> None:
        """Count a word for the messages that have it, and for those around them."""
        self._known.update((number, seq) for seq in posting.seqs)
        if posting.is_cut:
            for seq in posting.seqs:
                self._add(seq, self._own(number, seq))
            return
        strongest: dict[int, float] = {}
        for seq in posting.seqs:
            own = self._own(number, seq)
            for distance, share in _SHARES:
                at = seq + distance
                if 0 < at <= head_seq and own * share > strongest.get(at, 0.0):
                    strongest[at] = own * share
        for seq, value in strongest.items():
            self._add(seq, value)

    def _add(self, seq: int, value: float) -> None:
        self.scores[seq] = self.scores.get(seq, 0.0) + value

    def _own(self, number: int, seq: int) -> float:
        """Return what a word counts in a message that has it (rules 2, 3)."""
        return self.weights[number] * self._factor(seq)

    def _factor(self, seq: int) -> float:
        size = self._sizes.get(seq, 0)
        return 1.0 if size <= _USUAL_BYTES else 1 / (1 + _LONGER * log(size / _USUAL_BYTES))

    def _fit(self, text: str) -> float:
        plain = text.lower()
        question = self._question
        fit = _ASKS if is_question(text) else 1.0
        if question.asks_time and not tells_time(plain):
            fit *= _NO_TIME
        if question.asks_number and not tells_number(plain):
            fit *= _NO_NUMBER
        if question.phrases:
            row = f" {' '.join(simple_words(text))} "
            if all(f" {' '.join(phrase)} " in row for phrase in question.phrases):
                fit *= _PHRASE
        return fit


def cut_words(postings: Iterable[Postings]) -> list[int]:
    """Return the numbers of the words that older messages may have as well."""
    return [number for number, item in enumerate(postings) if item.is_cut]


def joined(newest: Postings, others: Postings) -> Postings:
    """Return the postings of a common word with those of other messages that have it."""
    sizes = dict(zip((*newest.seqs, *others.seqs), (*newest.sizes, *others.sizes), strict=False))
    seqs = tuple(dict.fromkeys((*newest.seqs, *others.seqs)))
    return Postings(seqs, tuple(sizes.get(seq, 0) for seq in seqs), newest.since)
