"""Streams of the events of a conversation, from any cursor.

1. A stream reads a page, yields its events one by one, and then reads the next page. A slow client
   costs one page of memory, and an idle stream holds no database connection.
2. One task polls the newest cursors of all followed conversations while there are streams, and
   wakes the streams that have new events.
3. While the database is unavailable, a stream waits until the task reads again. Its cursor stays
   the same, so no event is lost or sent twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass, field
from datetime import datetime

from app.common.concurrency import Slots
from app.common.errors import NotFound, ServiceUnavailable, ValidationError
from app.conversations.events.events import Cursor, Event, EventPage, EventType
from app.repositories import Database

_READS_AT_ONCE = 2
"""Database connections that all streams together use at once."""
_log = logging.getLogger("app.conversations.events.service")


@dataclass(eq=False, repr=False)
class EventService:
    """Opens streams and wakes them; `now` is the time of `ready` and `deleted`."""

    _database: Database
    now: Callable[[], datetime]
    _poll_seconds: float
    _slots: Slots
    _page_rows: int = 500

    def __post_init__(self) -> None:
        self._streams: set[EventStream] = set()
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
        async with self._reads, self._database.session() as session:
            newest = await session.events.find_newest(tenant_id, conversation_id)
        if newest is None:
            raise NotFound.conversation(conversation_id)
        if after is not None and after.is_beyond(newest):
            raise ValidationError(
                f"No event of this conversation has the id {after}", {"newest_id": str(newest)}
            )
        self._slots.check(tenant_id)
        return EventStream(self, tenant_id, conversation_id, after or newest, follow)

    @contextmanager
    def watched(self, stream: EventStream) -> Iterator[None]:
        """Wake the stream when there may be new events, until the end of the block."""
        self._streams.add(stream)
        self._slots.take(stream.tenant_id)
        if self._watch_task is None or self._watch_task.done():
            # An empty context: the task does not belong to the request that starts it.
            self._watch_task = asyncio.create_task(
                self._watch(), name="event-watch", context=Context()
            )
        try:
            yield
        finally:
            self._streams.discard(stream)
            self._slots.release(stream.tenant_id)

    async def page(self, tenant_id: str, conversation_id: str, after: Cursor) -> EventPage | None:
        """Return the page after a cursor, None for a deleted conversation."""
        async with self._reads, self._database.session() as session:
            return await session.events.page(tenant_id, conversation_id, after, self._page_rows)

    async def _watch(self) -> None:
        """Poll all that is followed while there are streams (rule 2)."""
        is_failing = False
        while self._streams:
            await asyncio.sleep(self._poll_seconds)
            try:
                await self._poll()
            except Exception as error:  # a dead task would stop every stream
                if not is_failing:
                    data = {"error": type(error).__name__, "streams": len(self._streams)}
                    _log.warning("event_watch_failed", extra={"data": data})
                is_failing = True
            else:
                is_failing = False

    async def _poll(self) -> None:
        followed = tuple(self._streams)
        if not followed:
            return
        ids = {stream.conversation_id for stream in followed}
        async with self._database.session() as session:
            newest = await session.events.newest_of(ids)
        for stream in followed:
            stream.wake_if_behind(newest.get(stream.conversation_id))


@dataclass(eq=False, slots=True)
class EventStream:
    """The events of one conversation after a cursor, which moves on with them.

    `_sent_through` is the newest cursor when all events were sent.
    """

    _service: EventService
    tenant_id: str
    conversation_id: str
    cursor: Cursor
    _follow: bool
    _sent_through: Cursor | None = None
    _woken: asyncio.Event = field(default_factory=asyncio.Event)
    _ended: bool = False

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield `ready`, then every event once, and `deleted` when the conversation is deleted."""
        with self._service.watched(self):
            yield self._stream_event(EventType.READY)
            while not self._ended:
                self._woken.clear()
                try:
                    page = await self._service.page(
                        self.tenant_id, self.conversation_id, self.cursor
                    )
                except ServiceUnavailable:
                    await self._woken.wait()
                    continue
                if page is None or self.cursor.is_beyond(page.newest):
                    yield self._stream_event(EventType.DELETED)
                    return
                for event in page.events:
                    self.cursor = event.cursor
                    yield event
                if page.is_last:
                    self._sent_through = page.newest
                    if not self._follow:
                        return
                    await self._woken.wait()

    def wake_if_behind(self, newest: Cursor | None) -> None:
        """Wake the stream unless it sent all events; None is a deleted conversation."""
        if newest is None or newest != self._sent_through:
            self._woken.set()

    def end(self) -> None:
        """End after the events that are read already."""
        self._ended = True
        self._woken.set()

    def _stream_event(self, kind: EventType) -> Event:
        return Event(self.cursor, kind, self._service.now(), {})
