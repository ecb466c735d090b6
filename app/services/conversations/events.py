"""Following what happens to conversations, from any place on (L3).

1. A stream reads a page, tells it event by event, and reads the next only when that is told: a
   slow reader costs a page of memory, an idle one holds no database connection.
2. One watch asks for the heads of all followed conversations, as long as there are any, and wakes
   the streams whose conversation is no longer where they have told it to.
3. While the database is away a stream waits for the watch to reach it again. Its cursor has not
   moved, so nothing is lost and nothing told twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from datetime import datetime

from app.domain.common.errors import NotFound, ServiceUnavailable, ValidationError
from app.domain.conversations.events import Cursor, Event, EventPage, EventType, events_after
from app.services.common.tenant_shares import Shares
from app.services.ports import Database

_READS_AT_ONCE = 2
"""Connections that streams take together, so that a crowd of them leaves the pool to others."""
_log = logging.getLogger("app.services.conversations.events")


class EventService:
    """Opens streams and wakes them; `now` is the time of what a stream says of itself."""

    def __init__(
        self,
        database: Database,
        now: Callable[[], datetime],
        *,
        poll_seconds: float,
        shares: Shares,
        page_rows: int = 500,
    ) -> None:
        self._database = database
        self.now = now
        self._poll_seconds = poll_seconds
        self._shares = shares
        self._page_rows = page_rows
        self._streams: set[EventStream] = set()
        self._watching: asyncio.Task[None] | None = None
        self._reads = asyncio.Semaphore(_READS_AT_ONCE)

    async def open(
        self,
        tenant_id: str,
        conversation_id: str,
        after: Cursor | None = None,
        *,
        follow: bool = True,
    ) -> EventStream:
        """Return the stream of what comes after a cursor, by default of what happens from now on.

        Without `follow` it ends where the conversation is. Raises NotFound, ValidationError for
        a cursor beyond the conversation's head, RateLimited when the tenant has its share of
        streams and ServiceUnavailable when there are too many of them.
        """
        async with self._reads, self._database.session() as records:
            newest = await records.events.find_head(tenant_id, conversation_id)
        if newest is None:
            raise NotFound.conversation(conversation_id)
        if after is not None and after.is_beyond(newest):
            raise ValidationError(
                f"No event of this conversation has the id {after}", {"newest_id": str(newest)}
            )
        self._shares.require_place(tenant_id)
        return EventStream(self, tenant_id, conversation_id, after or newest, follow)

    @contextmanager
    def watched(self, stream: EventStream) -> Iterator[None]:
        """Wake the stream when there may be something to tell, until the end of the block."""
        self._streams.add(stream)
        self._shares.take(stream.tenant_id)
        if self._watching is None or self._watching.done():
            # It is nobody's in particular, and so not of the request that happens to begin it.
            self._watching = asyncio.create_task(
                self._watch(), name="event-watch", context=Context()
            )
        try:
            yield
        finally:
            self._streams.discard(stream)
            self._shares.give_back(stream.tenant_id)

    async def page(self, tenant_id: str, conversation_id: str, after: Cursor) -> EventPage | None:
        """Return what follows a cursor, None when the conversation is gone."""
        async with self._reads, self._database.session() as records:
            return await records.events.page(tenant_id, conversation_id, after, self._page_rows)

    async def _watch(self) -> None:
        """Look at all followed conversations again and again, until there are none (rule 2)."""
        fails = False
        while self._streams:
            await asyncio.sleep(self._poll_seconds)
            try:
                await self._look()
            except Exception as error:  # whatever it was, a dead watch would silence every stream
                if not fails:
                    data = {"error": type(error).__name__, "streams": len(self._streams)}
                    _log.warning("event_watch_failed", extra={"data": data})
                fails = True
            else:
                fails = False

    async def _look(self) -> None:
        followed = tuple(self._streams)
        if not followed:
            return
        async with self._database.session() as records:
            heads = await records.events.heads({stream.conversation_id for stream in followed})
        for stream in followed:
            stream.notice(heads.get(stream.conversation_id))


class EventStream:
    """The events of one conversation after a cursor, which moves on with them."""

    def __init__(
        self,
        service: EventService,
        tenant_id: str,
        conversation_id: str,
        cursor: Cursor,
        follow: bool,
    ) -> None:
        self.conversation_id = conversation_id
        self.cursor = cursor
        self._service = service
        self.tenant_id = tenant_id
        self._follow = follow
        self._told: Cursor | None = None  # the head up to which all is told
        self._woken = asyncio.Event()
        self._ended = False

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield `ready`, then every event once, and `deleted` when the conversation is gone."""
        with self._service.watched(self):
            yield self._own(EventType.READY)
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
                    yield self._own(EventType.DELETED)
                    return
                for event in events_after(self.cursor, page):
                    self.cursor = event.cursor
                    yield event
                if page.is_last:
                    self._told = page.newest
                    if not self._follow:
                        return
                    await self._woken.wait()

    def notice(self, newest: Cursor | None) -> None:
        """Go on, unless everything up to this head is told; None says that there is none."""
        if newest is None or newest != self._told:
            self._woken.set()

    def end(self) -> None:
        """End after what is read already."""
        self._ended = True
        self._woken.set()

    def _own(self, kind: EventType) -> Event:
        return Event(self.cursor, kind, self._service.now(), {})
