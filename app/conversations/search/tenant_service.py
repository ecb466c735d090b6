"""Search in several conversations of a tenant, or of an agent by time.

1. The newest conversation is searched first, and each from its newest message. A page
   ends early after MAX_SEARCHED conversations, so that its cost does not grow with the tenant.
2. A conversation is indexed when it is first searched, as in a search of its own. A request that
   has indexed MAX_NEWLY_INDEXED messages, or compared MAX_COMPARED with phrases, ends; the next one
   continues there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.common.ids import ConversationId
from app.common.pages import UNBOUNDED, Bound, Page, Place
from app.conversations.listing_repository import ConversationFilter, Places
from app.conversations.messages.row import StoredMessage
from app.conversations.search.query import Query, query_from
from app.conversations.search.service import MAX_CHECKED, SearchService
from app.conversations.search.several import (
    MAX_COMPARED,
    MAX_NEWLY_INDEXED,
    MAX_SEARCHED,
    MIN_INDEXING_COST,
    Hit,
    IndexProgress,
    MessagePlace,
    SearchPlace,
    hit_of,
)
from app.repositories import Database

_BATCH = 100
"""Conversations that are searched by one statement."""
_ALL = 2**53 - 1
"""A seq that is not before any message."""


@dataclass(frozen=True, slots=True)
class SearchPage:
    """A page of a search; it continues at `end`, None on the last page."""

    hits: tuple[Hit, ...]
    end: SearchPlace | None = None


class TenantSearchService:
    """Searches the messages of several conversations."""

    def __init__(self, database: Database, search: SearchService) -> None:
        self._database = database
        self._search = search

    async def page(
        self,
        tenant_id: str,
        query_text: str,
        agent_id: str | None,
        after: SearchPlace | None,
        limit: int,
        bound: Bound = UNBOUNDED,
    ) -> SearchPage:
        """Return messages that match a query; the page may have fewer than `limit`.

        Raises ValidationError at `/query/q` for an invalid query.
        """
        query = query_from(query_text)
        hits: list[tuple[SearchPlace, Hit]] = []
        pending = [after] if after is not None and after.before_seq > 1 else []
        before = after.place if after is not None else None
        searched = indexed = compared = 0
        while len(hits) <= limit:
            if not pending:
                if before is not None and (
                    searched >= MAX_SEARCHED or indexed >= MAX_NEWLY_INDEXED
                ):
                    return SearchPage(_shown(hits), SearchPlace(before, 0))
                places, end = await self._places(tenant_id, agent_id, before)
                searched += _BATCH
                pending = [SearchPlace(place, _ALL) for place in places]
                before = places[-1] if places else end
                if before is None:
                    return SearchPage(_shown(hits))
                continue
            ready, unready, newly_indexed = await self._indexed(
                tenant_id, pending, MAX_NEWLY_INDEXED - indexed
            )
            indexed += newly_indexed
            if unready and not ready:
                return SearchPage(_shown(hits), unready[0])
            count = MAX_CHECKED if query.needs_text else limit + 1 - len(hits)
            found, rest = await self._matches(query, ready, count, bound)
            hits += found
            pending = [*rest, *unready]
            compared += count if query.needs_text else 0
            if rest and compared >= MAX_COMPARED and len(hits) <= limit:
                return SearchPage(_shown(hits), rest[0])
        kept = hits[:limit]
        return SearchPage(_shown(kept), kept[-1][0])

    async def _places(self, tenant_id: str, agent_id: str | None, before: Place | None) -> Places:
        """Return the places of the next conversations, newest first."""
        wanted = ConversationFilter(agent_id=agent_id)
        async with self._database.session() as session:
            return await session.conversation_list.places(tenant_id, wanted, before, _BATCH)

    async def _indexed(
        self, tenant_id: str, pending: Sequence[SearchPlace], budget: int
    ) -> tuple[list[SearchPlace], list[SearchPlace], int]:
        """Index conversations in order, until the budget of messages is used (rule 2).

        Returns those that are indexed, the others, and what of the budget that took.
        """
        async with self._database.session() as session:
            found = await session.tenant_search.progress(
                tenant_id, [item.place[1] for item in pending]
            )
        progress = {item.conversation_id: item for item in found}
        ready: list[SearchPlace] = []
        used = 0
        for number, item in enumerate(pending):
            known = progress.get(item.place[1])
            if known is None:
                continue  # it was deleted, or the cursor was not the service's
            if known.indexed_seq < known.head_seq:
                count, is_done = await self._index(known, budget - used)
                used += count
                if not is_done:
                    return ready, list(pending[number:]), used
            ready.append(replace(item, before_seq=min(item.before_seq, known.head_seq + 1)))
        return ready, [], used

    async def _index(self, progress: IndexProgress, budget: int) -> tuple[int, bool]:
        """Index a conversation; return what of the budget that took, and whether it is done."""
        used = 0
        while used < budget:
            count = await self._search.index_batch(progress.conversation_id, progress.head_seq)
            used += count
            if progress.indexed_seq + used >= progress.head_seq or not count:
                return max(used, MIN_INDEXING_COST), True
        return used, False

    async def _matches(
        self, query: Query, batch: Sequence[SearchPlace], count: int, bound: Bound
    ) -> tuple[list[tuple[SearchPlace, Hit]], list[SearchPlace]]:
        """Return hits of these conversations, and what of them is left to search."""
        async with self._database.session() as session:
            matches = await session.tenant_search.newest(
                query, [(item.place[1], item.before_seq) for item in batch], count
            )
        loaded = await self._load(matches, bound)
        by_id = {item.place[1]: number for number, item in enumerate(batch)}
        hits: list[tuple[SearchPlace, Hit]] = []
        for conversation_id, message in loaded:
            hit = await asyncio.to_thread(hit_of, conversation_id, message, query)
            if hit is not None:
                place = batch[by_id[conversation_id]].place
                hits.append((SearchPlace(place, message.seq), hit))
        if not loaded.has_more and len(matches) < count:
            return hits, []
        last: MessagePlace = matches[-1]
        if loaded.has_more:
            last = (loaded[-1][0], loaded[-1][1].seq)
        number = by_id[last[0]]
        return hits, [SearchPlace(batch[number].place, last[1]), *batch[number + 1 :]]

    async def _load(
        self, places: Sequence[MessagePlace], bound: Bound
    ) -> Page[tuple[ConversationId, StoredMessage]]:
        """Return messages by their places, as many as a page may have."""
        if not places:
            return Page()
        async with self._database.session() as session:
            return await session.tenant_search.by_places(places, bound)


def _shown(hits: Sequence[tuple[SearchPlace, Hit]]) -> tuple[Hit, ...]:
    return tuple(hit for _, hit in hits)
