"""Events of a conversation, in order and without duplicates: messages, and numbered event rows.

1. Messages are the events of their seqs: an append stores no event. All others are numbered under
   the lock of the head, which orders both, so that each becomes visible in order and without gaps.
2. A cursor is a position in both sequences. It is the id of an event and identifies exactly the
   events before it, for every process and at any time.
3. A page merges both sequences by time; within each the order is that of the numbers
   [events.order]. Streams poll the newest cursors. NOTIFY is not used: it takes one lock for all
   commits of a database, appends included, and a transaction pooler does not support it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from itertools import groupby
from typing import Any

from app.common import json_text
from app.database.connections import Repository, Statement
from app.database.tables import NOT_EXPIRED

CURSOR_PATTERN = r"^(0|[1-9][0-9]{0,15})\.(0|[1-9][0-9]{0,15})$"
"""The syntax of a cursor; sixteen digits hold every seq."""


class EventType(StrEnum):
    """The types of events; `ready` and `deleted` are sent, not stored."""

    APPENDED = "appended"
    DUE = "due"
    STARTED = "started"
    COMPACTED = "compacted"
    FAILED = "failed"
    UNDONE = "undone"
    PINNED = "pinned"
    UNPINNED = "unpinned"
    CLEARED = "cleared"
    RESTORED = "restored"
    REDACTED = "redacted"
    GC = "gc"
    READY = "ready"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class Cursor:
    """A position in the log and in the stored events (rule 2)."""

    seq: int
    event_seq: int

    def __str__(self) -> str:
        return f"{self.seq}.{self.event_seq}"

    def is_beyond(self, newest: Cursor) -> bool:
        """Whether it is after the newest position of a conversation."""
        return self.seq > newest.seq or self.event_seq > newest.event_seq


@dataclass(frozen=True, slots=True)
class Event:
    """An event as a stream sends it; a client continues after `cursor`."""

    cursor: Cursor
    type: str
    created_at: datetime
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EventPage:
    """Events after a cursor, and the cursor after all; it ends there if `is_last`."""

    events: list[Event]
    newest: Cursor
    is_last: bool


def cursor_from(text: str) -> Cursor:
    """Parse a cursor of the right syntax."""
    seq, event_seq = text.split(".")
    return Cursor(int(seq), int(event_seq))


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

# A commit may be later than that of the next seq: `reached` never falls within a sequence.
_SEQUENCE = """
    SELECT seq, type, data, created_at, max(created_at) OVER (ORDER BY seq) AS reached
    FROM ({}) AS found
"""
_MESSAGES = _SEQUENCE.format("""
    SELECT seq, CAST(NULL AS text) AS type, CAST(NULL AS text) AS data, created_at
    FROM messages WHERE conversation_id = :conversation_id AND seq > :after_seq
    ORDER BY seq LIMIT :limit
""")
_STORED = _SEQUENCE.format("""
    SELECT event_seq AS seq, type, data, created_at
    FROM events WHERE conversation_id = :conversation_id
        AND event_seq > CAST(:after_event_seq AS bigint)
    ORDER BY event_seq LIMIT :limit
""")
PAGE = Statement(f"""
    SELECT h.head_seq, h.event_seq, found.seq, found.type, found.data, found.created_at
    FROM heads h
    JOIN conversations c ON c.conversation_id = h.conversation_id
    LEFT JOIN (
        SELECT * FROM (({_MESSAGES}) UNION ALL ({_STORED})) AS both_sequences
        ORDER BY reached, type IS NOT NULL, seq LIMIT :limit
    ) AS found ON true
    WHERE h.conversation_id = :conversation_id AND c.tenant_id = :tenant_id AND {NOT_EXPIRED}
    ORDER BY found.reached, found.type IS NOT NULL, found.seq
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
        """Return the page after a cursor, as one snapshot; None for an unknown conversation.

        Messages without another event between them are one `appended` event, with the time of the
        last one.
        """
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
        newest, events = _newest(rows[0]), list[Event]()
        found = [row for row in rows if row["seq"] is not None]
        for is_message, group in groupby(found, key=lambda row: row["type"] is None):
            group_rows = list(group)
            if is_message:
                first, last, count = group_rows[0], group_rows[-1], len(group_rows)
                after = replace(after, seq=last["seq"])
                data = {"first_seq": first["seq"], "last_seq": after.seq, "messages": count}
                data["head_seq"] = newest.seq
                events.append(Event(after, EventType.APPENDED, last["created_at"], data))
                continue
            for row in group_rows:
                after = replace(after, event_seq=row["seq"])
                data = json_text.loads(row["data"])
                events.append(Event(after, row["type"], row["created_at"], data))
        return EventPage(events, newest, is_last=len(found) < limit)


def _newest(row: Any) -> Cursor:
    return Cursor(row["head_seq"], row["event_seq"])
