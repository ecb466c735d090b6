"""One stream of the events of all conversations of a tenant."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from app.domain.common import json_text
from app.domain.common.errors import ServiceUnavailable
from app.domain.conversations.events import EventType
from app.domain.conversations.tenant_events import (
    EventFilter,
    TenantCursor,
    TenantEventPage,
    TenantEventRow,
)


class _Service(Protocol):
    """What a stream needs of the service that opened it."""

    now: Callable[[], datetime]

    def watched(self, stream: Any) -> AbstractContextManager[None]:
        """Wake the stream when there may be new events, until the end of the block."""

    async def page_of_tenant(
        self, tenant_id: str, after: TenantCursor, wanted: EventFilter
    ) -> TenantEventPage:
        """Return the page after a cursor."""


@dataclass(frozen=True, slots=True)
class TenantEvent:
    """An event as the stream of a tenant sends it; `ready` has no conversation."""

    cursor: TenantCursor
    type: str
    created_at: datetime
    conversation_id: str | None = None
    agent_id: str | None = None
    data: Any = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class TenantEventStream:
    """The events of a tenant after a cursor, which moves on with those read.

    `_sent_through` is the newest cursor when all events were sent.
    """

    _service: _Service
    tenant_id: str
    cursor: TenantCursor
    _wanted: EventFilter
    _follow: bool
    _sent_through: TenantCursor | None = None
    _woken: asyncio.Event = field(default_factory=asyncio.Event)
    _ended: bool = False

    async def events(self) -> AsyncGenerator[TenantEvent, None]:
        """Yield `ready`, then every event once; end when another server answers."""
        with self._service.watched(self):
            yield TenantEvent(self.cursor, EventType.READY, self._service.now())
            while not self._ended:
                self._woken.clear()
                try:
                    page = await self._service.page_of_tenant(
                        self.tenant_id, self.cursor, self._wanted
                    )
                except ServiceUnavailable:
                    await self._woken.wait()
                    continue
                if page.server_id != self.cursor.server_id:
                    return
                for row in page.rows:
                    self.cursor = row.cursor
                    if row.data is not None:
                        yield _event(row, row.data)
                if page.is_last:
                    self._sent_through = self.cursor
                    if not self._follow:
                        return
                    await self._woken.wait()

    def wake_if_behind(self, newest: TenantCursor | None) -> None:
        """Wake the stream unless it sent all events; None is a tenant without events."""
        if newest is None:
            return
        sent = self._sent_through
        if sent is None or newest > sent or newest.server_id != sent.server_id:
            self._woken.set()

    def end(self) -> None:
        """End after the events that are read already."""
        self._ended = True
        self._woken.set()


def _event(row: TenantEventRow, data: str) -> TenantEvent:
    fields = json_text.loads(data)
    # A deleted conversation has no row any more: its event keeps its own id.
    conversation_id = fields.pop("own_id", row.conversation_id)
    return TenantEvent(row.cursor, row.type, row.created_at, conversation_id, row.agent_id, fields)
