"""The ranking of tools for a search: BM25F over name, description and parameters [tools.search].

1. A word's frequency in a tool is the sum of those in its fields, each weighted and divided by the
   field's relative length. Its rarity is taken over the given tools.
2. A tool scores higher the more of its name the query has, up to `1 + _NAME_COVERAGE` times.
3. A value in the query also stands for the words of its kind, and a word that no tool has for
   similarly spelled ones, each at a lower weight.
4. Among equals the earlier tool is first. The exact name of a tool is before all others.
5. Text is normalised (NFKC), case and accents are ignored, and English words are stemmed. Names are
   split at `_`, `-`, `.`, capitals and digits. A word with inner capitals or digits is also kept as
   a whole, to match both "PowerPoint" and "powerpoint". Scripts without spaces give pairs of
   adjacent characters.
"""

from __future__ import annotations

import asyncio
import math
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from itertools import chain, pairwise
from typing import Any

from cachetools import LRUCache

from app.common.texts import FUNCTION_WORDS, stems
from app.formats import ToolDefinition

MAX_INDEXED_TOOLS = 20_000
"""The number of tools in cached indexes, at about 2.3 KiB each."""
_INLINE_TOOLS = 2_000
"""Larger indexes are searched in a thread."""
MAX_CHARACTERS = 8_192
"""The indexed length of a tool's description, and of its parameters."""
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

_NO_SPACES = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_RUN = re.compile(f"[{_NO_SPACES}]+|[^\\W_{_NO_SPACES}]+")
_IS_UNSPACED = re.compile(f"[{_NO_SPACES}]")
_PART = re.compile("[A-Z]+(?![a-z])|[A-Z]?[^A-Z0-9]+|[0-9]+")
_VALUES = ("default", "const", "example")
_ACCENT = re.compile("[\u0300-\u036f]")
_DAY = (
    "january|february|march|april|june|july|august|september|october|november|december"
    "|today|tomorrow|yesterday|tonight"
)
_VALUE_KINDS = (
    (re.compile(r"https?://|www\."), ("url", "link")),
    (re.compile(r"\w@\w"), ("email",)),
    (
        re.compile(r"[$€£¥]\s?\d|\b(?:usd|eur|euros?|dollars?)\b", re.I),
        ("price", "currency", "amount"),
    ),
    (re.compile(rf"\b(?:\d{{4}}-\d\d-\d\d|{_DAY})\b", re.I), ("date",)),
    (re.compile(r"\d\.\d{2,}°?,\s*-?\d+\.\d{2}"), ("latitude", "longitude")),
    (re.compile(r"(?:^|\s)~?/\w[\w.-]*/\w"), ("file", "path")),
)
"""What values look like, with words for their kind."""


class ToolRanking:
    """Ranks tools. Indexes are built in a thread and cached; the least recently used go first."""

    def __init__(self, max_tools: int = MAX_INDEXED_TOOLS) -> None:
        self._indexes: LRUCache[str, Index]
        self._indexes = LRUCache(max_tools, getsizeof=lambda index: len(index.names))
        self._building = asyncio.Lock()

    async def rank(
        self, query: str, tools: Sequence[ToolDefinition], limit: int, *, key: str
    ) -> list[str]:
        """Return the names of up to `limit` matching tools, best first.

        `key` identifies the set of tools; its index is cached under it.
        """
        index = self._indexes.get(key)
        if index is None:
            async with self._building:
                index = self._indexes.get(key)
                if index is None:
                    index = await asyncio.to_thread(Index, tools)
                    if len(tools) <= self._indexes.maxsize:
                        self._indexes[key] = index
        if len(index.names) > _INLINE_TOOLS:
            return await asyncio.to_thread(index.rank, query, limit)
        return index.rank(query, limit)


class Index:
    """The immutable index of one set of tools."""

    def __init__(self, tools: Sequence[ToolDefinition]) -> None:
        self.names = [tool.name for tool in tools]
        self._exact = {tool.name: position for position, tool in enumerate(tools)}
        texts = [
            (
                words(tool.name),
                words(tool.description[:MAX_CHARACTERS]),
                words(_parameters_text(tool.parameters)),
            )
            for tool in tools
        ]
        frequencies = _frequencies(texts)
        self._rarity = {
            word: math.log1p((len(tools) - len(found) + 0.5) / (len(found) + 0.5))
            for word, found in frequencies.items()
        }
        self._scores = {
            word: _scored(found, self._rarity[word]) for word, found in frequencies.items()
        }
        self._name_positions: dict[str, list[int]] = {}
        for position, (name, _, _) in enumerate(texts):
            for word in dict.fromkeys(name):
                self._name_positions.setdefault(word, []).append(position)
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
        kinds = (names for pattern, names in _VALUE_KINDS if pattern.search(query))
        for word in words(" ".join(chain.from_iterable(kinds))):
            if word in self._scores:
                add(word, _VALUE_KIND)
        return weights


def _frequencies(texts: Sequence[Sequence[list[str]]]) -> dict[str, dict[int, float]]:
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


def words(text: str) -> list[str]:
    """Return the indexed words of a text, without stop words."""
    found: list[str] = []
    for run in _runs(text):
        found.append(run)
        found += _parts(run)
    return _stemmed(found)


def name_parts(name: str) -> frozenset[str]:
    """Return the words that a name is made of, without those kept as a whole."""
    parts = [word for run in _runs(name) for word in (_parts(run) or [run])]
    return frozenset(_stemmed(parts)) or frozenset(words(name))


def _runs(text: str) -> Iterable[str]:
    if text.isascii():
        return _RUN.findall(text)
    text = unicodedata.normalize("NFKC", text)
    text = unicodedata.normalize("NFC", _ACCENT.sub("", unicodedata.normalize("NFD", text)))
    runs = _RUN.findall(text)
    return chain.from_iterable(_pairs(run) if _IS_UNSPACED.match(run) else (run,) for run in runs)


def _pairs(run: str) -> Iterable[str]:
    return map("".join, pairwise(run)) if len(run) > 1 else (run,)


def _parts(run: str) -> list[str]:
    """Return the parts of a word with inner capitals or digits, none of any other."""
    if run.isalpha() and run[1:].islower():
        return []
    parts = _PART.findall(run)
    return parts if len(parts) > 1 else []


def _stemmed(unstemmed: Sequence[str]) -> list[str]:
    folded = (word.casefold() for word in unstemmed)
    return stems([word for word in folded if word not in FUNCTION_WORDS])


def _parameters_text(schema: Mapping[str, Any]) -> str:
    """Return names, descriptions and values of parameters, nested ones included."""
    texts: list[str] = []
    size = 0
    for text in _texts(schema):
        texts.append(text)
        size += len(text) + 1
        if size > MAX_CHARACTERS:
            break
    return " ".join(texts)[:MAX_CHARACTERS]


def _texts(schema: Mapping[str, Any]) -> Iterator[str]:
    level: list[Mapping[str, Any]] = [schema]
    while level:
        inner: list[Any] = []
        for item in level:
            properties = item.get("properties")
            for name, value in properties.items() if isinstance(properties, Mapping) else ():
                yield name
                if isinstance(value, Mapping):
                    if isinstance(description := value.get("description"), str):
                        yield description
                    inner.append(value)
            values = [*_listed(item, "enum", "examples"), *map(item.get, _VALUES)]
            for value in values:
                if isinstance(value, str | int | float) and not isinstance(value, bool):
                    yield str(value)
            inner += [item.get("items"), *_listed(item, "anyOf", "oneOf", "allOf")]
        level = [item for item in inner if isinstance(item, Mapping)]


def _listed(schema: Mapping[str, Any], *keys: str) -> Iterator[Any]:
    for key in keys:
        if isinstance(values := schema.get(key), list):
            yield from values
