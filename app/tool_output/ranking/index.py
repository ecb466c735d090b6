"""An index of tools: BM25F over name, description and parameters [tools.search].

1. A word's frequency in a tool is the sum of those in its fields, each weighted and divided by the
   field's relative length. Its rarity is taken over the given tools.
2. A tool scores higher the more of its name the query has, up to `1 + _NAME_COVERAGE` times.
3. A value in the query also stands for the words of its kind, and a word that no tool has for
   similarly spelled ones, each at a lower weight.
4. Among equals the earlier tool is first. The exact name of a tool is before all others.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from heapq import nsmallest

from app.formats import ToolDefinition
from app.tool_output.ranking.texts import MAX_CHARACTERS, parameters_text, value_words
from app.tool_output.ranking.words import name_parts, words

_WEIGHTS = (0.7, 1.0, 0.4)
"""Of name, description and parameters; rule 2 adds to the weight of names."""
_LENGTH_NORMALISATION = 0.5
_SATURATION = 1.0
_PRESENCE = 0.3
"""What a word adds to a score however long the text is (the delta of BM25+)."""
_NAME_COVERAGE = 0.7
_REPETITION = 0.3
_VALUE_KIND = 0.5

_MIN_SPELLED = 4
_MIN_SIMILARITY = 0.55
_MAX_SPELLINGS = 3
_PREFIX = 2
_MAX_COMPARED = 512
"""How many words a query's unknown words are compared with in all."""


class Index:
    """The immutable index of one set of tools."""

    def __init__(self, tools: Sequence[ToolDefinition]) -> None:
        self.names = [tool.name for tool in tools]
        self._exact = {tool.name: position for position, tool in enumerate(tools)}
        texts = [_fields(tool) for tool in tools]
        frequencies = _frequencies(texts)
        self._rarity = {
            word: math.log1p((len(tools) - len(found) + 0.5) / (len(found) + 0.5))
            for word, found in frequencies.items()
        }
        self._scores = {
            word: _scored(found, self._rarity[word]) for word, found in frequencies.items()
        }
        self._name_positions = _positions(fields[0] for fields in texts)
        self._name_weight = [
            sum(self._rarity[word] for word in name_parts(name)) or 1.0 for name in self.names
        ]
        self._by_prefix: dict[str, list[str]] = {}
        for word in frequencies:
            if len(word) >= _MIN_SPELLED:
                self._by_prefix.setdefault(word[:_PREFIX], []).append(word)

    def rank(self, query: str, limit: int) -> list[str]:
        """Return the names of the best tools."""
        scores = [0.0] * len(self.names)
        named: dict[int, float] = {}
        for word, weight in self._weighted(query).items():
            for position, value in zip(*self._scores[word], strict=True):
                scores[position] += weight * value
            for position in self._name_positions.get(word, ()):
                named[position] = named.get(position, 0.0) + weight * self._rarity[word]
        for position, weight in named.items():
            scores[position] *= 1 + _NAME_COVERAGE * min(1, weight / self._name_weight[position])
        exact = self._exact.get(query.strip())
        if exact is not None:
            scores[exact] = math.inf
        found = (position for position, score in enumerate(scores) if score > 0)
        best = nsmallest(limit, found, key=lambda position: (-scores[position], position))
        return [self.names[position] for position in best]

    def _weighted(self, query: str) -> Mapping[str, float]:
        """Return the indexed words that stand for a query, with their weights (rule 3)."""
        counts = Counter(words(query))
        weights: dict[str, float] = {}

        def add(word: str, weight: float) -> None:
            weights[word] = max(weight, weights.get(word, 0.0))

        remaining = _MAX_COMPARED
        for word, count in counts.items():
            weight = 1 + _REPETITION * math.log(count)
            if word in self._scores:
                add(word, weight)
            elif len(word) >= _MIN_SPELLED:
                candidates = self._by_prefix.get(word[:_PREFIX], ())[:remaining]
                remaining -= len(candidates)
                for other, similarity in _most_similar(word, candidates):
                    add(other, weight * similarity)
        for word in words(" ".join(value_words(query))):
            if word in self._scores:
                add(word, _VALUE_KIND)
        return weights


_Fields = tuple[list[str], list[str], list[str]]


def _fields(tool: ToolDefinition) -> _Fields:
    return (
        words(tool.name),
        words(tool.description[:MAX_CHARACTERS]),
        words(parameters_text(tool.parameters)),
    )


def _frequencies(texts: Sequence[_Fields]) -> dict[str, dict[int, float]]:
    """Return the weighted frequency of each word by the position of a tool (rule 1)."""
    found: dict[str, dict[int, float]] = {}
    for number, weight in enumerate(_WEIGHTS):
        mean = sum(len(fields[number]) for fields in texts) / max(1, len(texts)) or 1.0
        for position, fields in enumerate(texts):
            relative = len(fields[number]) / mean
            share = weight / (1 - _LENGTH_NORMALISATION + _LENGTH_NORMALISATION * relative)
            for word in fields[number]:
                by_tool = found.setdefault(word, {})
                by_tool[position] = by_tool.get(position, 0.0) + share
    return found


def _scored(found: Mapping[int, float], rarity: float) -> tuple[array[int], array[float]]:
    """Return the positions of the tools with a word, and what it adds to their scores."""
    scores = (
        rarity * (frequency * (_SATURATION + 1) / (frequency + _SATURATION) + _PRESENCE)
        for frequency in found.values()
    )
    return array("i", found), array("f", scores)


def _positions(names: Iterable[Sequence[str]]) -> dict[str, list[int]]:
    """Return the positions of the names with each word."""
    found: dict[str, list[int]] = {}
    for position, name in enumerate(names):
        for word in dict.fromkeys(name):
            found.setdefault(word, []).append(position)
    return found


def _most_similar(word: str, candidates: Iterable[str]) -> list[tuple[str, float]]:
    """Return the words that share most of their trigrams with a word, and which share."""
    grams = _trigrams(word)
    found = []
    for other in candidates:
        other_grams = _trigrams(other)
        similarity = 2 * len(grams & other_grams) / (len(grams) + len(other_grams))
        if similarity >= _MIN_SIMILARITY:
            found.append((other, similarity))
    return sorted(found, key=lambda item: -item[1])[:_MAX_SPELLINGS]


def _trigrams(word: str) -> set[str]:
    padded = f"^{word}$"
    return {padded[start : start + 3] for start in range(len(padded) - 2)}
