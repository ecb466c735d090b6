"""Search in several conversations: one statement searches each of them by its own lexemes.

The plans are those of `search.py` for each conversation, which its rules describe.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from app.common.ids import ConversationId
from app.common.pages import UNBOUNDED, Bound, Page
from app.conversations.messages.repository import STORED_COLUMNS, bounded_messages
from app.conversations.messages.row import StoredMessage
from app.conversations.rows import stored_message_from
from app.conversations.search.query import Query
from app.conversations.search.repository import block_queries
from app.conversations.search.several import IndexProgress, MessagePlace
from app.conversations.search.statements import hits
from app.database.connections import Statement
from app.database.conversation_tables import NOT_EXPIRED
from app.database.paging import limits, page_of
from app.database.repository import Repository

# The tenant is compared as an expression, which leaves PostgreSQL the primary key alone.
PROGRESS = Statement(f"""
    SELECT c.conversation_id, h.head_seq, coalesce((
        SELECT w.seq FROM message_words w
        WHERE w.conversation_id = c.conversation_id
        ORDER BY w.seq DESC LIMIT 1
    ), 0) AS indexed_seq
    FROM conversations c
    JOIN heads h ON h.conversation_id = c.conversation_id
    WHERE c.conversation_id = ANY (:conversation_ids)
        AND h.conversation_id = ANY (:conversation_ids)
        AND greatest(c.tenant_id) = :tenant_id AND {NOT_EXPIRED}
    ORDER BY array_position(:conversation_ids, c.conversation_id)
""")
# The conversations are searched in the given order until there are enough messages.
_QUERIES = "string_to_array(requested.queries, chr(10))"
NEWEST = Statement(f"""
    SELECT requested.conversation_id, hit.seq
    FROM unnest(
        :conversation_ids, CAST(:queries AS text[]), CAST(:before_seqs AS bigint[])
    ) AS requested (conversation_id, queries, before_seq)
    CROSS JOIN LATERAL (
        {hits(_QUERIES, "DESC", "requested.conversation_id", "0", "requested.before_seq")}
    ) hit
    LIMIT :limit
""")
_BY_PLACES = f"""
    SELECT m.*, requested.in_conversation AS conversation_id, requested.number
    FROM unnest(:conversation_ids, :seqs)
        WITH ORDINALITY AS requested (in_conversation, at_seq, number)
    CROSS JOIN LATERAL (
        SELECT {STORED_COLUMNS} FROM messages
        WHERE conversation_id = requested.in_conversation AND seq >= requested.at_seq
        ORDER BY seq LIMIT 1
    ) m
    ORDER BY requested.number LIMIT :limit
"""
BY_PLACES = Statement(bounded_messages(_BY_PLACES, "number", "conversation_id", "number"))


class TenantSearchRepository(Repository):
    """Searches several conversations at once."""

    async def progress(
        self, tenant_id: str, conversation_ids: Sequence[str]
    ) -> list[IndexProgress]:
        """Return how far each of these that the tenant has is indexed, in the given order."""
        rows = await self._session.all(
            PROGRESS, tenant_id=tenant_id, conversation_ids=list(conversation_ids)
        )
        return [
            IndexProgress(str(row["conversation_id"]), row["head_seq"], row["indexed_seq"])
            for row in rows
        ]

    async def newest(
        self, query: Query, before: Sequence[MessagePlace], limit: int
    ) -> list[MessagePlace]:
        """Return up to `limit` messages by their words alone.

        The conversations of `before` are searched in their order, each from its newest message
        before the seq given.
        """
        rows = await self._session.all(
            NEWEST,
            conversation_ids=[conversation_id for conversation_id, _ in before],
            queries=[
                "\n".join(block_queries(conversation_id, query, 0, seq, "desc"))
                for conversation_id, seq in before
            ],
            before_seqs=[seq for _, seq in before],
            limit=limit,
        )
        return [(str(row["conversation_id"]), row["seq"]) for row in rows]

    async def by_places(
        self, places: Sequence[MessagePlace], bound: Bound = UNBOUNDED
    ) -> Page[tuple[ConversationId, StoredMessage]]:
        """Return the existing ones of these messages with their conversations, in their order."""
        rows = await self._session.all(
            BY_PLACES,
            conversation_ids=[UUID(conversation_id) for conversation_id, _ in places],
            seqs=[seq for _, seq in places],
            **limits(len(places), bound),
        )
        return page_of(
            rows,
            lambda row: (ConversationId(str(row["conversation_id"])), stored_message_from(row)),
        )
