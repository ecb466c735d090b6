"""`/v1/conversations/{id}/events`: a stream of the events of a conversation."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from functools import partial

import anyio
from fastapi import APIRouter, Request, Response
from sse_starlette import EventSourceResponse, ServerSentEvent

from app.conversations.events.events import cursor_from
from app.conversations.events.schemas import STREAM, FirstEventId, Follow, LastEventId
from app.conversations.events.service import EventStream
from app.http.conversation_ids import public_id_of
from app.http.dependencies import ConversationPath, caller_of, services, tenant_of
from app.http.routing import WireRoute

router = APIRouter(route_class=WireRoute, tags=["context"])

_GRACE_SECONDS = 1
"""How long a stream may take to end when the process shuts down."""


@router.get(
    "/v1/conversations/{conversation_id}/events",
    summary="Follow a conversation's events",
    response_class=EventSourceResponse,
    responses={200: STREAM},
)
async def stream_events(
    request: Request,
    conversation_id: ConversationPath,
    last_event_id: LastEventId = None,
    first_event_id: FirstEventId = None,
    follow: Follow = True,
) -> Response:
    """Stream the events of a conversation as Server-Sent Events, from now on or after an id.

    The first event is `ready`, whose id is the start of the stream. Every id is a position,
    `<seq of the log>.<number of the event>`. Reconnect with the last id as `Last-Event-ID`, to
    any process: no event is lost or sent twice. An id that the conversation has not reached is a
    `422`.

    Types: `appended` (messages `first_seq` to `last_seq`; consecutive messages are one event),
    `due`, `started`, `compacted`, `failed`, `undone`, `pinned`, `unpinned`, `cleared`, `restored`,
    `redacted`, `gc`. After `deleted` the stream ends. Without events a comment is sent every 15 s,
    unless configured otherwise. The stream ends when the API key is revoked or expires. `429` at
    the tenant's maximum of streams, `503` at the maximum of the process.
    """
    last_id = last_event_id or first_event_id
    after = cursor_from(last_id) if last_id else None
    stream = await services(request).events.open(
        tenant_of(request), conversation_id, after, follow=follow
    )
    shutdown, keep_alive_seconds = anyio.Event(), request.app.state.keep_alive_seconds
    still_admits = partial(services(request).still_admits, caller_of(request))

    async def end_when_inadmissible() -> None:
        """End the stream at shutdown or without a valid key, even without events."""
        while not shutdown.is_set() and await still_admits():
            with anyio.move_on_after(keep_alive_seconds):
                await shutdown.wait()
        stream.end()

    return EventSourceResponse(
        _encoded(stream, public_id_of(request), still_admits),
        ping=keep_alive_seconds,
        ping_message_factory=lambda: ServerSentEvent(comment="keep-alive"),
        data_sender_callable=end_when_inadmissible,
        shutdown_event=shutdown,
        shutdown_grace_period=_GRACE_SECONDS,
    )


async def _encoded(
    stream: EventStream, public_id: str, still_admits: Callable[[], Awaitable[bool]]
) -> AsyncIterator[ServerSentEvent]:
    async with aclosing(stream.events()) as events:
        async for event in events:
            if not await still_admits():
                return
            own = {
                "type": event.type,
                "conversation_id": public_id,
                "created_at": event.created_at.isoformat(),
            }
            # ASCII, because some clients split lines at U+2028, which the standard does not.
            data = json.dumps({**own, **event.data, **own}, separators=(",", ":"))
            yield ServerSentEvent(data, event=event.type, id=str(event.cursor))
