"""The ranking of tools for a search, with a cache of indexes [tools.search].

Indexes are cached by the caller's key; the least recently used are evicted first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from cachetools import LRUCache

from app.formats import ToolDefinition
from app.tool_output.ranking.index import Index

MAX_INDEXED_TOOLS = 20_000
"""The number of tools in cached indexes, at about 2.3 KiB each."""
_INLINE_TOOLS = 2_000
"""Larger indexes are searched in a thread."""


class Bm25Ranking:
    """Ranks tools; an index is built in a thread."""

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
