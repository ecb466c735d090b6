"""The messages that answer a question best: ranked with their neighbours.

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

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from math import log
from typing import Final

from app.conversations.search.query import Question, has_phrases
from app.conversations.search.times import tells_time

MAX_RANKED: Final = 40
"""Messages that are ranked by their text, on all pages together."""
_SHARES = {0: 1.0, 1: 0.7, 2: 0.5, 3: 0.3, 4: 0.2, -1: 0.6, -2: 0.4, -3: 0.2}
"""The share of a message's words that those after and before it have, by distance (rule 1)."""
_ASKS, _NO_TIME, _NO_NUMBER, _PHRASE = 0.85, 0.67, 0.77, 2.0
_USUAL_BYTES = 2_048  # stored words of an ordinary message
_LONGER = 0.5  # how much less a message counts that is e times as long
_MIN_SHARE = 0.35  # of the best score, for a message that is shown
_NUMBER = re.compile(
    r"\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|once|twice|several|couple|dozen"
    r"|first|second|third|few|both)\b"
)
_QUESTION_MARKS = ("?", "？", "؟")  # noqa: RUF001 - full width


@dataclass(frozen=True, slots=True)
class Postings:
    """Messages that have a word, the newest first, with the bytes of their stored words.

    They are all that have it from the seq `since` on, where 0 means the whole log.
    """

    sizes: Mapping[int, int]
    since: int = 0

    def joined(self, others: Postings) -> Postings:
        """Return these with other messages that have the word."""
        return Postings({**self.sizes, **others.sizes}, self.since)

    def estimate(self, head_seq: int) -> float:
        """Return an estimate of how many messages of a log with this head have the word."""
        if not self.since:
            return len(self.sizes)
        newest = sum(seq >= self.since for seq in self.sizes)
        return newest * head_seq / (head_seq - self.since + 1)


class Ranking:
    """Scores the messages of one conversation for one question."""

    def __init__(self, question: Question, postings: Sequence[Postings], head_seq: int) -> None:
        self._question = question
        counts = (item.estimate(head_seq) for item in postings)
        self.weights = [
            log(1 + (max(0.0, head_seq - count) + 0.5) / (count + 0.5)) for count in counts
        ]
        self._postings = postings
        self._sizes = {seq: size for item in postings for seq, size in item.sizes.items()}
        self.scores: dict[int, float] = {}
        for number, item in enumerate(postings):
            strongest: dict[int, float] = {}
            shares = {0: 1.0} if item.since else _SHARES
            for seq in item.sizes:
                own = self._own(number, seq)
                for distance, share in shares.items():
                    at = seq + distance
                    if 0 < at <= head_seq and own * share > strongest.get(at, 0.0):
                        strongest[at] = own * share
            for seq, value in strongest.items():
                self._add(seq, value)

    def best(self, limit: int = MAX_RANKED) -> list[int]:
        """Return the seqs with the highest scores, best first; among equals the newest first."""
        scores = self.scores
        return nlargest(limit, scores, key=lambda seq: (round(scores[seq], 6), seq))

    def add_words(self, words_by_seq: Mapping[int, Collection[int]]) -> None:
        """Count the words that messages have beyond the postings."""
        for seq, numbers in words_by_seq.items():
            for number in numbers:
                if seq not in self._postings[number].sizes:
                    self._add(seq, self._own(number, seq))

    def raise_span(self, first_seq: int, end_seq: int, boost: float) -> None:
        """Raise the messages of a time, the end exclusive (rule 5)."""
        for seq in self.scores:
            if first_seq <= seq < end_seq:
                self.scores[seq] *= boost

    def shown(self, texts: Mapping[int, str]) -> list[int]:
        """Return the messages worth showing, best first, by their texts as well (rule 4)."""
        for seq, text in texts.items():
            self.scores[seq] *= self._fit(text)
        best = self.best()
        return [seq for seq in best if self.scores[seq] >= _MIN_SHARE * self.scores[best[0]]]

    def _add(self, seq: int, value: float) -> None:
        self.scores[seq] = self.scores.get(seq, 0.0) + value

    def _own(self, number: int, seq: int) -> float:
        """Return what a word counts in a message that has it (rules 2, 3)."""
        longer = max(1.0, self._sizes.get(seq, 0) / _USUAL_BYTES)
        return self.weights[number] / (1 + _LONGER * log(longer))

    def _fit(self, text: str) -> float:
        plain, question = text.lower(), self._question
        fit = _ASKS if text.rstrip().endswith(_QUESTION_MARKS) else 1.0
        if question.asks_time and not tells_time(plain):
            fit *= _NO_TIME
        if question.asks_number and not _NUMBER.search(plain):
            fit *= _NO_NUMBER
        if question.phrases and has_phrases([text], question.phrases):
            fit *= _PHRASE
        return fit
