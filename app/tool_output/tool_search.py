"""Search in the tools of a conversation: ranking, and promotion of the matches [tools.search].

1. The search covers every tool of the conversation, deferred or not, the tools of its newest build,
   and the tools in the request. Matches are promoted for the current turn, unless the tool message
   itself makes them available [tools.promotion].
2. The ranking is BM25F over name, description and parameters: a word's frequency in a tool is the
   sum of those in its fields, each weighted and divided by the field's relative length. Its rarity
   is taken over the given tools.
3. A tool scores higher the more of its name the query has, up to `1 + _NAME_COVERAGE` times.
4. Among equals the earlier tool is first. The exact name of a tool is before all others.
5. Words are those of the search in messages, with English stems. A word with inner capitals or
   digits is also split, to match both "PowerPoint" and "powerpoint".
"""

from __future__ import annotations

import asyncio
import math
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from heapq import nsmallest
from typing import Any

from cachetools import LRUCache

from app.common import json_text
from app.common.texts import FUNCTION_WORDS, stems
from app.conversations.search.words import SPACELESS, normalised, pairs_of, words_of
from app.conversations.settings_resolver import SettingsResolver
from app.formats import ToolDefinition
from app.prompt.agent_tools import DEFAULT_TOOL_MATCHES, ToolSearchResult
from app.prompt.resolved_settings import RequestSettings
from app.repositories import Database

MAX_INDEXED_TOOLS = 20_000
"""The number of tools in cached indexes, at about 2.3 KiB each."""
_INLINE_TOOLS = 2_000
"""Larger indexes are searched in a thread."""
MAX_CHARACTERS = 8_192
"""The indexed length of a tool's description, and of its parameters."""
_WEIGHTS = (0.7, 1.0, 0.4)
"""Of name, description and parameters; rule 3 adds to the weight of names."""
_LENGTH_NORMALISATION = 0.5
_SATURATION = 1.0
_PRESENCE = 0.3
"""What a word adds to a score however long the text is (the delta of BM25+)."""
_NAME_COVERAGE = 0.7
_REPETITION = 0.3
_PART = re.compile("[A-Z]+(?![a-z])|[A-Z]?[^A-Z0-9]+|[0-9]+")
_VALUES = ("default", "const", "example")


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

    def rank(self, query: str, limit: int) -> list[str]:
        """Return the names of the best tools."""
        scores = [0.0] * len(self.names)
        named: dict[int, float] = {}
        for word, count in Counter(words(query)).items():
            if word not in self._scores:
                continue
            weight = 1 + _REPETITION * math.log(count)
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


def _frequencies(texts: Sequence[Sequence[list[str]]]) -> dict[str, dict[int, float]]:
    """Return the weighted frequency of each word by the position of a tool (rule 2)."""
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


def words(text: str) -> list[str]:
    """Return the indexed words of a text, without stop words."""
    found: list[str] = []
    for word in words_of(text):
        found += (word, *_parts(word)) if not SPACELESS.match(word) else pairs_of(word)
    return _stemmed(found)


def name_parts(name: str) -> frozenset[str]:
    """Return the words that a name is made of, without those kept as a whole."""
    parts = [part for word in words_of(name) for part in (_parts(word) or [word])]
    return frozenset(_stemmed(parts)) or frozenset(words(name))


def _parts(word: str) -> list[str]:
    """Return the parts of a word with inner capitals or digits, none of any other."""
    if word.isalpha() and word[1:].islower():
        return []
    parts = _PART.findall(word)
    return parts if len(parts) > 1 else []


def _stemmed(unstemmed: Sequence[str]) -> list[str]:
    plain = map(normalised, unstemmed)
    return stems([word for word in plain if word and word not in FUNCTION_WORDS])


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


class ToolSearchService:
    """Searches tools and promotes the matches."""

    def __init__(
        self, database: Database, resolver: SettingsResolver, ranking: ToolRanking
    ) -> None:
        self._database = database
        self._resolver = resolver
        self._ranking = ranking

    async def search(
        self,
        tenant_id: str,
        conversation_id: str,
        query: str,
        limit: int = DEFAULT_TOOL_MATCHES,
        tools: str = "[]",
        *,
        promotes: bool = True,
    ) -> ToolSearchResult:
        """Return the matching definitions, best first, and promote them if `promotes`.

        `tools` is a JSON list of definitions, which replace stored ones of the same name. Raises
        NotFound, or ValidationError for an invalid definition.
        """
        async with self._database.session() as session:
            conversation = await session.conversations.get(tenant_id, conversation_id)
            built_tools = await session.contexts.newest_tools(conversation_id)
        searched = tools if built_tools is None else _joined(built_tools, tools)
        resolved = await self._resolver.of(conversation, RequestSettings(tools=searched))
        names = await self._ranking.rank(query, resolved.tools, limit, key=resolved.tools_hash)
        promoted = conversation.state.promoted_now
        if promotes and not set(names) <= set(promoted):
            async with self._database.session() as session:
                promoted = await session.log.promote(conversation_id, names)
        by_name = {tool.name: tool for tool in resolved.tools}
        return ToolSearchResult(
            tuple(by_name[name] for name in names), len(resolved.tools), promoted
        )


def _joined(built: str, requested: str) -> str:
    if requested == "[]":
        return built
    return json_text.dumps([*json_text.loads(built), *json_text.loads(requested)])
