"""The fusion of two rankings of messages: by words, and by meaning.

1. Reciprocal ranks: a message at place n of a ranking counts 1 / (n + 10) of its weight.
2. The weights depend on the question. The ranking by words has the share of the question's words,
   by their weight, that its best message has. The ranking by meaning has the rest, to the power of
   three: where a message has all words, a weak embedding model changes nothing, and where none has
   them, meaning decides.
3. A `trust` in the embedding model raises its weight, up to 1 for each question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_FIRST_PLACE: Final = 10
_POWER: Final = 3


@dataclass(frozen=True, slots=True)
class ByWords:
    """Messages ranked by words, best first, and how much of the question they have, 0 to 1."""

    seqs: Sequence[int]
    coverage: float


def fused(words: ByWords, meaning: Sequence[int], trust: float, limit: int) -> list[int]:
    """Return up to `limit` messages of both rankings, best first."""
    missing = 1 - words.coverage
    meaning_weight = trust + (1 - trust) * missing**_POWER
    scores: dict[int, float] = {}
    for seqs, weight in ((words.seqs, words.coverage), (meaning, meaning_weight)):
        for place, seq in enumerate(seqs, 1):
            scores[seq] = scores.get(seq, 0.0) + weight / (place + _FIRST_PLACE)
    # Without the first ranking the order is that of the second one, and the other way round.
    return sorted(scores, key=lambda seq: -scores[seq])[:limit]
