"""Events in PostgreSQL: numbered under the lock of the state, read with the log in one statement.

A row in `heads` numbers the events and the messages of its conversation, so that both become
visible in order and without gaps. Streams poll these numbers. NOTIFY is not used: it takes one
lock for all commits of a database, appends included, and a transaction pooler does not support it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from app.conversations.events.events import Cursor, EventPage, EventRow
from app.database.connections import Repository, Statement
from app.database.tables import NOT_EXPIRED

# For a deleted conversation the update matches no row, and nothing is stored.
ADD = Statement("""
    WITH moved AS (
        UPDATE heads SET event_seq = event_seq + 1
        WHERE conversation_id = :conversation_id
        RETURNING event_seq
    )
    INSERT INTO events (conversation_id, event_seq, type, data, created_at)
    SELECT :conversation_id, moved.event_seq, :type, CAST(:data AS text), clock_timestamp()
    FROM moved
""")

FIND_NEWEST = Statement(f"""
    SELECT h.head_seq, h.event_seq
    FROM heads h
    JOIN conversations c ON c.conversation_id = h.conversation_id
    WHERE h.conversation_id = :conversation_id AND c.tenant_id = :tenant_id AND {NOT_EXPIRED}
""")

NEWEST_OF = Statement("""
    SELECT conversation_id, head_seq, event_seq FROM heads
    WHERE conversation_id = ANY (:conversation_ids)
""")

PAGE = Statement(f"""
    SELECT h.head_seq, h.event_seq, found.seq, found.type, found.data, found.created_at
    FROM heads h
    JOIN conversations c ON c.conversation_id = h.conversation_id
    LEFT JOIN (
        (
            SELECT seq, CAST(NULL AS text) AS type, CAST(NULL AS text) AS data, created_at
            FROM messages WHERE conversation_id = :conversation_id AND seq > :after_seq
            ORDER BY seq LIMIT :limit
        ) UNION ALL (
            SELECT event_seq, type, data, created_at
            FROM events
            WHERE conversation_id = :conversation_id
                AND event_seq > CAST(:after_event_seq AS bigint)
            ORDER BY event_seq LIMIT :limit
        )
    ) AS found ON true
    WHERE h.conversation_id = :conversation_id AND c.tenant_id = :tenant_id AND {NOT_EXPIRED}
    ORDER BY found.seq
""")


class EventRepository(Repository):
    """Stores and reads the events of conversations."""

    async def add(self, conversation_id: str, type: str, data: str) -> None:
        """Store the conversation's next event; `data` is a JSON object.

        It locks the state until the transaction ends, and does nothing for a deleted conversation.
        """
        await self._session.run(ADD, conversation_id=conversation_id, type=type, data=data)

    async def find_newest(self, tenant_id: str, conversation_id: str) -> Cursor | None:
        """Return the cursor after all events, None for an unknown conversation."""
        row = await self._session.first(
            FIND_NEWEST, tenant_id=tenant_id, conversation_id=conversation_id
        )
        return _newest(row) if row is not None else None

    async def newest_of(self, conversation_ids: Collection[str]) -> Mapping[str, Cursor]:
        """Return the cursors after all events of those conversations that exist."""
        ids = list(conversation_ids)
        rows = await self._session.all(NEWEST_OF, conversation_ids=ids)
        return {str(row["conversation_id"]): _newest(row) for row in rows}

    async def page(
        self, tenant_id: str, conversation_id: str, after: Cursor, limit: int
    ) -> EventPage | None:
        """Return the page after a cursor, as one snapshot; None for an unknown conversation."""
        rows = await self._session.all(
            PAGE,
            tenant_id=tenant_id,
            conversation_id=conversation_id,
            after_seq=after.seq,
            after_event_seq=after.event_seq,
            limit=limit,
        )
        if not rows:
            return None
        found = [_row(row) for row in rows if row["seq"] is not None]
        messages = [row for row in found if row.is_message]
        stored = [row for row in found if not row.is_message]
        return EventPage(_newest(rows[0]), messages, stored, limit)


def _newest(row: Any) -> Cursor:
    return Cursor(row["head_seq"], row["event_seq"])


def _row(row: Any) -> EventRow:
    if row["data"] is None:
        return EventRow(row["seq"], row["created_at"])
    return EventRow(row["seq"], row["created_at"], row["type"], row["data"])
