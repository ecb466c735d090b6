"""Full-text search in a transcript, in several conversations, and the index behind `recall`.

1. An append does not index. A search first indexes all new messages, oldest first. The worker
   indexes the messages that a compaction hides ahead of searches.
2. Indexing runs in small batches, each in a thread and stored at once, so that a cancelled search
   loses one batch.
3. For phrases, candidates are found by their words and then checked by their text.
4. Of several conversations the newest is searched first, and each from its newest message. A page
   ends early when it has cost MAX_COST, so that its cost does not grow with the tenant.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

from app.common.pages import UNBOUNDED, Bound, Page, Place
from app.conversations.conversation import Conversation
from app.conversations.listing import ConversationFilter
from app.conversations.messages.row import StoredMessage
from app.conversations.search.query import Query, query_from
from app.conversations.search.recall import RecallPage, recall
from app.conversations.search.texts import SearchedMessage, excerpt
from app.conversations.search.words import lexemes
from app.conversations.settings_resolver import SettingsResolver
from app.repositories import Database

BATCH_MESSAGES = 200
BATCH_BYTES = 500_000
"""Messages, and bytes of their bodies, that are indexed at once; words take ten times as much."""
MAX_CHECKED = 200
"""Messages whose text is checked at once."""
MAX_COST = 2_000
"""What a search in several conversations does: messages that it indexes or compares with phrases.

A searched conversation counts as 2, one that is indexed as at least 10, for their statements.
"""
_SEARCHED, _INDEXED = 2, 10
_CONVERSATIONS = 100  # searched by one statement
_ALL = 2**53 - 1  # a seq that is not before any message
MAX_HITS: Final = 100
"""Messages on a page of a search in several conversations."""


@dataclass(frozen=True, slots=True)
class SearchPlace:
    """Where a page ends: before a seq of the conversation at `place`; then come older ones."""

    place: Place
    before_seq: int


@dataclass(frozen=True, slots=True)
class Hit:
    """A message that matches, with an excerpt around the words."""

    conversation_id: str
    message: StoredMessage
    excerpt: str


class SearchService:
    """Indexes messages, and finds them by their words."""

    def __init__(self, database: Database, resolver: SettingsResolver) -> None:
        self._database = database
        self._resolver = resolver

    async def page(
        self,
        tenant_id: str,
        conversation_id: str,
        query_text: str,
        *,
        after_seq: int,
        before_seq: int,
        order: str,
        limit: int,
        bound: Bound = UNBOUNDED,
    ) -> tuple[Conversation, Page[StoredMessage]]:
        """Return messages between two seqs, both exclusive, that match a query.

        Raises NotFound, or ValidationError at `/query/q` for an invalid query.
        """
        query = query_from(query_text)
        conversation = await self._indexed(tenant_id, conversation_id)
        after_seq = max(after_seq, 0)
        before_seq = min(before_seq, conversation.state.head_seq + 1)
        page: list[StoredMessage] = []
        has_more = before_seq - after_seq > 1
        while has_more and len(page) < limit and _size(page) < bound.max_bytes:
            count = max(limit, MAX_CHECKED) if query.needs_text else limit - len(page)
            async with self._database.session() as session:
                matches = await session.search.find(
                    conversation_id, query, (after_seq, before_seq), order, count, bound
                )
            page += await asyncio.to_thread(_with_phrases, query, matches)
            has_more = matches.has_more
            if matches and order == "asc":
                after_seq = matches[-1].seq
            elif matches:
                before_seq = matches[-1].seq
        sizes = accumulate(message.byte_size for message in page[:limit])
        shown = page[: max(1, sum(size <= bound.max_bytes for size in sizes))]
        return conversation, Page(shown, has_more=has_more or len(shown) < len(page))

    async def page_of_all(
        self,
        tenant_id: str,
        query_text: str,
        agent_id: str | None,
        after: SearchPlace | None,
        limit: int,
        bound: Bound = UNBOUNDED,
    ) -> tuple[list[Hit], SearchPlace | None]:
        """Return messages of all conversations that match a query, and where the page ends.

        It may have fewer than `limit`; the end of the last page is None. Raises ValidationError at
        `/query/q` for an invalid query.
        """
        query = query_from(query_text)
        hits: list[Hit] = []
        end = after
        async with aclosing(
            self._hits(tenant_id, query, agent_id, after, limit + 1, bound)
        ) as found:
            async for place, hit in found:
                if hit is None or len(hits) == limit:
                    return hits, place if hit is None else end
                hits.append(hit)
                end = place
        return hits, None

    async def recall(
        self, tenant_id: str, conversation_id: str, question: str, offset: int = 0
    ) -> RecallPage:
        """Return the messages that answer a question best, best first; raises NotFound."""
        conversation = await self._indexed(tenant_id, conversation_id)
        return await recall(self._database, conversation, question, offset)

    async def index_hidden(self, tenant_id: str, conversation_id: str) -> None:
        """Index the messages that a conversation no longer shows (rule 1)."""
        async with self._database.session() as session:
            state = (
                await self._resolver.find_conversation(session, tenant_id, conversation_id)
            ).state
        if state.hidden_span is not None:
            await self._index(conversation_id, min(state.head_seq, state.hidden_span.end - 1))

    async def _indexed(self, tenant_id: str, conversation_id: str) -> Conversation:
        """Return a conversation after its messages are indexed."""
        async with self._database.session() as session:
            conversation = await self._resolver.find_conversation(
                session, tenant_id, conversation_id
            )
        await self._index(conversation_id, conversation.state.head_seq)
        return conversation

    async def _index(
        self, conversation_id: str, through_seq: int, most: float = float("inf")
    ) -> int:
        """Index messages up to a seq until that many are indexed; return their number."""
        count = 0
        while count < most:
            async with self._database.session() as session:
                batch = await session.search.unindexed(
                    conversation_id, through_seq, BATCH_MESSAGES, BATCH_BYTES
                )
            if not batch:
                break
            words = await asyncio.to_thread(_words, batch)
            async with self._database.transaction() as session:
                await session.search.add(conversation_id, words)
            count += len(batch)
        return count

    async def _hits(
        self,
        tenant_id: str,
        query: Query,
        agent_id: str | None,
        after: SearchPlace | None,
        limit: int,
        bound: Bound,
    ) -> AsyncGenerator[tuple[SearchPlace, Hit | None]]:
        """Yield hits with their places, and where a search that costs too much ends (rule 4)."""
        pending = [after] if after is not None and after.before_seq > 1 else []
        before = after.place if after is not None else None
        cost = 0
        while True:
            if not pending:
                if before is not None and cost >= MAX_COST:
                    yield SearchPlace(before, 0), None
                    return
                wanted = ConversationFilter(agent_id=agent_id)
                async with self._database.session() as session:
                    places, end = await session.conversation_list.places(
                        tenant_id, wanted, before, _CONVERSATIONS
                    )
                cost += _SEARCHED * len(places)
                pending = [SearchPlace(place, _ALL) for place in places]
                before = places[-1] if places else end
                if before is None:
                    return
                continue
            ready, pending, indexed = await self._ready(tenant_id, pending, MAX_COST - cost)
            cost += indexed
            if pending and not ready:
                yield pending[0], None
                return
            count = MAX_CHECKED if query.needs_text else limit
            async with self._database.session() as session:
                found = await session.search.newest(
                    query, {item.place[1]: item.before_seq for item in ready}, count, bound
                )
            numbers = {item.place[1]: number for number, item in enumerate(ready)}
            for conversation_id, message in found:
                hit = await asyncio.to_thread(_hit, conversation_id, message, query)
                if hit is not None:
                    yield SearchPlace(ready[numbers[conversation_id]].place, message.seq), hit
            cost += len(found) if query.needs_text else 0
            if found.has_more:
                last_id, last = found[-1]
                number = numbers[last_id]
                rest = SearchPlace(ready[number].place, last.seq)
                if cost >= MAX_COST:
                    yield rest, None
                    return
                pending = [rest, *ready[number + 1 :], *pending]

    async def _ready(
        self, tenant_id: str, pending: Sequence[SearchPlace], budget: int
    ) -> tuple[list[SearchPlace], list[SearchPlace], int]:
        """Index conversations in order, until that costs the budget.

        Returns those that are indexed, the others, and the cost.
        """
        async with self._database.session() as session:
            progress = await session.search.progress(tenant_id, [item.place[1] for item in pending])
        ready: list[SearchPlace] = []
        cost = 0
        for number, item in enumerate(pending):
            conversation_id = item.place[1]
            if conversation_id not in progress:
                continue  # it was deleted, or the cursor was not the service's
            head_seq, indexed_seq = progress[conversation_id]
            if indexed_seq < head_seq:
                if cost >= budget and number:
                    return ready, list(pending[number:]), cost
                count = await self._index(conversation_id, head_seq, max(1, budget - cost))
                cost += max(count, _INDEXED)
                if indexed_seq + count < head_seq:
                    return ready, list(pending[number:]), cost
            ready.append(replace(item, before_seq=min(item.before_seq, head_seq + 1)))
        return ready, [], cost


def _words(batch: Sequence[SearchedMessage]) -> dict[int, tuple[str, ...]]:
    return {item.message.seq: lexemes(*item.texts()) for item in batch}


def _size(page: Sequence[StoredMessage]) -> int:
    return sum(message.byte_size for message in page)


def _with_phrases(query: Query, found: Sequence[StoredMessage]) -> Sequence[StoredMessage]:
    """Return the messages that have the phrases of a query (rule 3)."""
    if not query.needs_text:
        return found
    return [message for message in found if query.matches_phrases(SearchedMessage(message).texts())]


def _hit(conversation_id: str, message: StoredMessage, query: Query) -> Hit | None:
    """Return a message that has all words of a query as a hit, None if it lacks a phrase."""
    texts = SearchedMessage(message).texts()
    if not query.matches_phrases(texts):
        return None
    weights = [(term, 1.0) for word in query.words for term in word]
    return Hit(conversation_id, message, excerpt("\n".join(texts), weights))
