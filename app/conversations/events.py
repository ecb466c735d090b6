"""Events of a conversation, in order and without duplicates, and the streams that follow them.

1. Messages are the events of their seqs: an append stores no event. All others are numbered under
   the lock of the state, which orders both, so that each becomes visible in order and without gaps.
2. A cursor is a position in both sequences. It is the id of an event and identifies exactly the
   events before it, for every process and at any time.
3. A page merges both sequences by time; within each the order is that of the numbers
   [events.order].
4. A stream reads a page, yields its events one by one, and then reads the next page. A slow client
   costs one page of memory, and an idle stream holds no database connection.
5. While there are streams, one task polls the newest cursors of all followed conversations. NOTIFY
   is not used: it takes one lock for all commits of a database, appends included, and a transaction
   pooler does not support it.
6. While the database is unavailable, a stream waits until the task reads again. Its cursor stays
   the same, so no event is lost or sent twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextvars import Context
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from itertools import groupby
from typing import TYPE_CHECKING, Any

from app.common import json_text
from app.common.concurrency import Slots
from app.common.errors import NotFound, ServiceUnavailable, ValidationError
from app.database.connections import Repository, Statement
from app.database.tables import NOT_EXPIRED

if TYPE_CHECKING:
    from app.repositories import Database

CURSOR_PATTERN = r"^(0|[1-9][0-9]{0,15})\.(0|[1-9][0-9]{0,15})$"
"""The syntax of a cursor; sixteen digits hold every seq."""
_READS_AT_ONCE = 2  # database connections that all streams together use
_log = logging.getLogger("app.events")


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
    REWOUND = "rewound"
    REDACTED = "redacted"
    COLLECTED = "collected"
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
        UPDATE states SET event_seq = event_seq + 1
        WHERE conversation_id = :conversation_id
        RETURNING event_seq
    )
    INSERT INTO events (conversation_id, event_seq, type, data, created_at)
    SELECT :conversation_id, moved.event_seq, :type, CAST(:data AS text), clock_timestamp()
    FROM moved
""")

NEWEST_OF = Statement("""
    SELECT conversation_id, head_seq, event_seq FROM states
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
    FROM states h
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

    async def add(self, conversation_id: str, type: str, **data: Any) -> None:
        """Store the conversation's next event.

        It locks the state until the transaction ends, and does nothing for a deleted conversation.
        """
        own = {"conversation_id": conversation_id, "type": type, "data": json_text.dumps(data)}
        await self._session.run(ADD, **own)

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
        last one. A page of no events has the newest cursor alone.
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
                data = {"first_seq": first["seq"], "last_seq": after.seq, "message_count": count}
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


@dataclass(eq=False, repr=False)
class EventService:
    """Opens streams and wakes them; `now` is the time of `ready` and `deleted`."""

    _database: Database
    now: Callable[[], datetime]
    _poll_seconds: float
    slots: Slots
    _page_rows: int = 500

    def __post_init__(self) -> None:
        self.streams: set[EventStream] = set()
        self._watch_task: asyncio.Task[None] | None = None
        self._reads = asyncio.Semaphore(_READS_AT_ONCE)

    async def open(
        self,
        tenant_id: str,
        conversation_id: str,
        after: Cursor | None = None,
        *,
        follow: bool = True,
    ) -> EventStream:
        """Return the stream of events after a cursor, by default of new events.

        Without `follow` it ends at the newest event. Raises NotFound, ValidationError for a cursor
        beyond the newest one, RateLimited at the tenant's maximum of streams, and
        ServiceUnavailable at the maximum of the process.
        """
        page = await self.page(tenant_id, conversation_id, Cursor(0, 0), 0)
        if page is None:
            raise NotFound.conversation(conversation_id)
        if after is not None and after.is_beyond(page.newest):
            raise ValidationError(
                f"No event of this conversation has the id {after}", {"newest_id": str(page.newest)}
            )
        self.slots.check(tenant_id)
        return EventStream(self, tenant_id, conversation_id, after or page.newest, follow)

    async def page(
        self, tenant_id: str, conversation_id: str, after: Cursor, limit: int | None = None
    ) -> EventPage | None:
        """Return the page after a cursor, None for an unknown or deleted conversation."""
        limit = self._page_rows if limit is None else limit
        async with self._reads, self._database.session() as session:
            return await session.events.page(tenant_id, conversation_id, after, limit)

    def watch(self) -> None:
        """Start the task of rule 5, unless it runs."""
        if self._watch_task is None or self._watch_task.done():
            # An empty context: the task does not belong to the request that starts it.
            self._watch_task = asyncio.create_task(
                self._watch(), name="event-watch", context=Context()
            )

    async def _watch(self) -> None:
        is_failing = False
        while self.streams:
            await asyncio.sleep(self._poll_seconds)
            followed = tuple(self.streams)
            try:
                async with self._database.session() as session:
                    newest = await session.events.newest_of({it.conversation_id for it in followed})
            except Exception as error:  # a dead task would stop every stream
                if not is_failing:
                    data = {"error": type(error).__name__, "streams": len(followed)}
                    _log.warning("event_watch_failed", extra={"data": data})
                is_failing = True
                continue
            is_failing = False
            for stream in followed:
                if newest.get(stream.conversation_id) != stream.sent_through:
                    stream.woken.set()


@dataclass(eq=False, slots=True)
class EventStream:
    """The events of one conversation after a cursor, which moves on with them.

    `sent_through` is the newest cursor when all events were sent.
    """

    _service: EventService
    _tenant_id: str
    conversation_id: str
    cursor: Cursor
    _follow: bool
    sent_through: Cursor | None = None
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    _ended: bool = False

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield `ready`, then every event once, and `deleted` when the conversation is deleted."""
        service = self._service
        service.streams.add(self)
        service.slots.take(self._tenant_id)
        service.watch()
        try:
            yield Event(self.cursor, EventType.READY, service.now(), {})
            while not self._ended:
                self.woken.clear()
                try:
                    page = await service.page(self._tenant_id, self.conversation_id, self.cursor)
                except ServiceUnavailable:
                    await self.woken.wait()
                    continue
                if page is None or self.cursor.is_beyond(page.newest):
                    yield Event(self.cursor, EventType.DELETED, service.now(), {})
                    return
                for event in page.events:
                    self.cursor = event.cursor
                    yield event
                if page.is_last:
                    self.sent_through = page.newest
                    if not self._follow:
                        return
                    await self.woken.wait()
        finally:
            service.streams.discard(self)
            service.slots.release(self._tenant_id)

    def end(self) -> None:
        """End after the events that are read already."""
        self._ended = True
        self.woken.set()
