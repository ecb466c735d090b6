"""Ranking of tools by BM25 over their names, descriptions and parameters [tools.search].

1. Names are split into words at `_`, `-` and capitals; a word with inner capitals is also indexed
   as a whole, to match both "PowerPoint" and "powerpoint". English words are stemmed.
2. Scripts without spaces are indexed by pairs of adjacent characters.
3. Names, descriptions and parameters have an index each; their scores are added by weight, names
   first.
4. Indexes are cached by the caller's key; the least recently used are evicted first.
"""

from __future__ import annotations

import asyncio
import logging
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, pairwise
from typing import Any

from cachetools import LRUCache

from app.domain.formats import ToolDefinition

MAX_INDEXED_TOOLS = 20_000
"""The number of tools in cached indexes, at about 1.5 KiB each."""
MAX_CHARACTERS = 8_192
"""The indexed length of a tool's description, and of its parameters."""

_NAME_WEIGHT, _DESCRIPTION_WEIGHT, _PARAMETERS_WEIGHT = 2.0, 1.0, 0.25
_BM25_K1, _BM25_B = 1.2, 0.4  # term saturation and length normalisation

_NO_SPACES = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_RUN = re.compile(f"[{_NO_SPACES}]+|[^\\W_{_NO_SPACES}]+")
_IS_UNSPACED = re.compile(f"[{_NO_SPACES}]")
_CAMEL_PARTS = re.compile("[A-Z]+(?![a-z])|[A-Z]?[^A-Z]+")


class Bm25Ranking:
    """Ranks tools; an index is built in a thread."""

    def __init__(self, max_tools: int = MAX_INDEXED_TOOLS) -> None:
        self._indexes: LRUCache[str, _Index]
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
                    index = await asyncio.to_thread(_Index, tools)
                    if len(tools) <= self._indexes.maxsize:
                        self._indexes[key] = index
        return index.rank(query, limit)


class _Index:
    """The immutable index of one set of tools."""

    def __init__(self, tools: Sequence[ToolDefinition]) -> None:
        self.names = [tool.name for tool in tools]
        self._exact = {tool.name: position for position, tool in enumerate(tools)}
        fields = (
            (_NAME_WEIGHT, [words(tool.name) for tool in tools]),
            (_DESCRIPTION_WEIGHT, [words(tool.description[:MAX_CHARACTERS]) for tool in tools]),
            (_PARAMETERS_WEIGHT, [words(_parameters_text(tool.parameters)) for tool in tools]),
        )
        self._fields = [(weight, _bm25(texts)) for weight, texts in fields if any(texts)]

    def rank(self, query: str, limit: int) -> list[str]:
        """Return the best names; among equals the earlier tool is first."""
        scores = [0.0] * len(self.names)
        query_words = list(dict.fromkeys(words(query)))
        for weight, index in self._fields:
            indexed_words = [word for word in query_words if word in index.vocab_dict]
            if indexed_words:
                field_scores = index.get_scores(indexed_words).tolist()
                scores = [
                    total + weight * score
                    for total, score in zip(scores, field_scores, strict=True)
                ]
        exact = self._exact.get(query.strip())
        if exact is not None:
            scores[exact] = float("inf")
        best = sorted((-score, position) for position, score in enumerate(scores) if score > 0)
        return [self.names[position] for _, position in best[:limit]]


def words(text: str) -> list[str]:
    """Return the indexed words of a text, without stop words (rules 1, 2)."""
    import Stemmer

    unstemmed = [word for word in _split(text) if word not in _stop_words()]
    # A stemmer is not thread-safe.
    stemmed: list[str] = Stemmer.Stemmer("english", 0).stemWords(unstemmed)
    return stemmed


def _split(text: str) -> Iterator[str]:
    for run in _RUN.findall(unicodedata.normalize("NFKC", text)):
        if _IS_UNSPACED.match(run):
            yield from map("".join, pairwise(run)) if len(run) > 1 else (run,)
            continue
        yield run.casefold()
        parts = _CAMEL_PARTS.findall(run)
        if len(parts) > 1:
            yield from (part.casefold() for part in parts)


@cache
def _library() -> Any:
    import bm25s

    # The import sets its logger to DEBUG.
    logging.getLogger("bm25s").setLevel(logging.WARNING)
    return bm25s


@cache
def _stop_words() -> frozenset[str]:
    return frozenset(_library().stopwords.STOPWORDS_EN_PLUS)


def _bm25(texts: Sequence[Sequence[str]]) -> Any:
    index = _library().BM25(k1=_BM25_K1, b=_BM25_B)
    index.index(texts, show_progress=False)
    return index


def _parameters_text(schema: Mapping[str, Any]) -> str:
    """Return names and descriptions of parameters, nested ones included."""
    texts: list[str] = []
    size = 0
    for text in _names_and_descriptions(schema):
        texts.append(text)
        size += len(text) + 1
        if size > MAX_CHARACTERS:
            break
    return " ".join(texts)[:MAX_CHARACTERS]


def _names_and_descriptions(schema: Mapping[str, Any]) -> Iterator[str]:
    level: list[Any] = [schema]
    while level:
        inner: list[Any] = []
        for item in level:
            properties = item.get("properties")
            named = properties if isinstance(properties, Mapping) else {}
            for name, value in named.items():
                yield name
                if isinstance(value, Mapping):
                    if isinstance(description := value.get("description"), str):
                        yield description
                    inner.append(value)
            inner += _variants(item)
        level = inner


def _variants(schema: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """Return the alternatives of a schema, and the schema of its items."""
    listed = (schema.get(key) for key in ("anyOf", "oneOf", "allOf"))
    several = chain.from_iterable(value for value in listed if isinstance(value, list))
    items = [schema.get("items"), *several]
    return [item for item in items if isinstance(item, Mapping)]
