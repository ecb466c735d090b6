"""Full-text search in a transcript, and the index behind `recall`.

1. An append does not index. A search first indexes all new messages, oldest first. The worker
   indexes the messages that a compaction hides ahead of searches.
2. Indexing runs in small batches, each in a thread and stored at once, so that a cancelled search
   loses one batch.
3. For phrases, candidates are found by their words and then checked by their text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import accumulate

from app.common.pages import UNBOUNDED, Bound, Page
from app.conversations.conversation import Conversation
from app.conversations.messages.row import StoredMessage
from app.conversations.search.query import Query, query_from
from app.conversations.search.recall import RecallPage
from app.conversations.search.recall_service import Recall
from app.conversations.search.texts import SearchedMessage
from app.conversations.search.words import lexemes
from app.conversations.settings_resolver import SettingsResolver
from app.repositories import Database

BATCH_MESSAGES = 200
BATCH_BYTES = 500_000
"""Messages, and bytes of their bodies, that are indexed at once; words take ten times as much."""
MAX_CHECKED = 200
"""Messages whose text is checked at once."""


class SearchService:
    """Indexes messages, and finds them by their words."""

    def __init__(self, database: Database, resolver: SettingsResolver) -> None:
        self._database = database
        self._resolver = resolver
        self._recall = Recall(database)

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
        conversation = await self._find(tenant_id, conversation_id)
        head_seq = conversation.state.head_seq
        await self._index(conversation_id, head_seq)
        after_seq, before_seq = max(after_seq, 0), min(before_seq, head_seq + 1)
        page: list[StoredMessage] = []
        has_more = before_seq - after_seq > 1
        while has_more and len(page) < limit and _size(page) < bound.max_bytes:
            count = max(limit, MAX_CHECKED) if query.needs_text else limit - len(page)
            async with self._database.session() as session:
                matches = await session.search.find(
                    conversation_id,
                    query,
                    after_seq=after_seq,
                    before_seq=before_seq,
                    order=order,
                    limit=count,
                    bound=bound,
                )
            if query.needs_text:
                page += await asyncio.to_thread(matching_phrases, query, matches)
            else:
                page += matches
            has_more = matches.has_more
            if matches and order == "asc":
                after_seq = matches[-1].seq
            elif matches:
                before_seq = matches[-1].seq
        shown = _within(page[:limit], bound.max_bytes)
        return conversation, Page(shown, has_more=has_more or len(shown) < len(page))

    async def recall(
        self, tenant_id: str, conversation_id: str, question: str, offset: int = 0
    ) -> RecallPage:
        """Return the messages that answer a question best, best first; raises NotFound."""
        conversation = await self._find(tenant_id, conversation_id)
        await self._index(conversation_id, conversation.state.head_seq)
        return await self._recall.page(conversation, question, offset)

    async def index_hidden(self, tenant_id: str, conversation_id: str) -> None:
        """Index the messages that a conversation no longer shows (rule 1)."""
        state = (await self._find(tenant_id, conversation_id)).state
        if state.hidden_span is not None:
            await self._index(conversation_id, min(state.head_seq, state.hidden_span.end - 1))

    async def _find(self, tenant_id: str, conversation_id: str) -> Conversation:
        async with self._database.session() as session:
            return await self._resolver.find_conversation(session, tenant_id, conversation_id)

    async def _index(self, conversation_id: str, through_seq: int) -> None:
        """Index all messages up to a seq that are not indexed yet."""
        while await self.index_batch(conversation_id, through_seq):
            pass

    async def index_batch(self, conversation_id: str, through_seq: int) -> int:
        """Index a batch of messages up to a seq; return their number, 0 when all are indexed."""
        async with self._database.session() as session:
            batch = await session.search.unindexed(
                conversation_id, through_seq, BATCH_MESSAGES, BATCH_BYTES
            )
        if batch:
            words = await asyncio.to_thread(_words, batch)
            async with self._database.transaction() as session:
                await session.search.add(conversation_id, words)
        return len(batch)


def _words(batch: Sequence[SearchedMessage]) -> dict[int, tuple[str, ...]]:
    return {item.message.seq: lexemes(*item.texts()) for item in batch}


def _size(page: Sequence[StoredMessage]) -> int:
    return sum(message.byte_size for message in page)


def _within(page: Sequence[StoredMessage], max_bytes: int) -> list[StoredMessage]:
    """Return the first messages of a page that fit, at least one."""
    sizes = accumulate(message.byte_size for message in page)
    fitting = sum(size <= max_bytes for size in sizes)
    return list(page[: max(1, fitting)])


def matching_phrases(query: Query, found: Sequence[StoredMessage]) -> list[StoredMessage]:
    """Return the messages that have the phrases of a query."""
    return [message for message in found if query.matches_phrases(SearchedMessage(message).texts())]
