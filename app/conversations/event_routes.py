"""`/v1/conversations/{id}/events`: a stream of the events of a conversation."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from datetime import datetime
from functools import partial
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import ConfigDict
from sse_starlette import EventSourceResponse, ServerSentEvent

from app.conversations.events import CURSOR_PATTERN, EventStream, EventType, cursor_from
from app.http.fields import ResponseSchema
from app.http.routing import (
    ConversationPath,
    WireRoute,
    caller_of,
    public_id_of,
    services,
    tenant_of,
)

router = APIRouter(route_class=WireRoute, tags=["context"])

_GRACE_SECONDS = 1  # that a stream may take to end when the process shuts down


class StreamedEvent(ResponseSchema):
    """The data of one event; further fields depend on its type."""

    model_config = ConfigDict(extra="allow")

    type: EventType
    """The type; equal to the `event` field."""
    conversation_id: str
    """The conversation of the event."""
    created_at: datetime
    """Time of the event."""


_EXAMPLE = """\
id: 12.3
event: appended
data: {"type":"appended","conversation_id":"0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b",\
"created_at":"2026-01-05T09:30:00.123456+00:00",\
"first_seq":11,"last_seq":12,"message_count":2,"head_seq":12}

"""
# OpenAPI 3.1 describes a stream as text whose content has a schema.
_EVENTS = {"type": "array", "items": {"$ref": "#/components/schemas/StreamedEvent"}}
_TEXT = {"contentMediaType": "text/event-stream", "contentSchema": _EVENTS}
_CONTENT = {"schema": {"type": "string", **_TEXT}, "example": _EXAMPLE}
STREAM: dict[str, Any] = {"description": "The events.", "content": {"text/event-stream": _CONTENT}}


@router.get(
    "/v1/conversations/{conversation_id}/events",
    summary="Follow a conversation's events",
    response_class=EventSourceResponse,
    responses={200: STREAM},
)
async def stream_events(
    request: Request,
    conversation_id: ConversationPath,
    last_event_id: Annotated[
        str | None,
        Header(
            alias="Last-Event-ID",
            pattern=CURSOR_PATTERN,
            description="Id of the last event received; browsers send it when they reconnect.",
            examples=["12.3"],
        ),
    ] = None,
    first_event_id: Annotated[
        str | None,
        Query(
            alias="last_event_id",
            pattern=CURSOR_PATTERN,
            description="The same for clients that cannot set headers; the header has precedence."
            " `0.0` is the start.",
            examples=["0.0"],
        ),
    ] = None,
    follow: Annotated[
        bool, Query(description="`false`: end with the newest event instead of waiting for more.")
    ] = True,
) -> Response:
    """Stream the events of a conversation as Server-Sent Events, from now on or after an id.

    The first event is `ready`, whose id is the start of the stream. Every id is a position,
    `<seq of the log>.<number of the event>`. Reconnect with the last id as `Last-Event-ID`, to
    any process: no event is lost or sent twice. An id that the conversation has not reached is a
    `422`.

    Types: `appended` (messages `first_seq` to `last_seq`; consecutive messages are one event),
    `due`, `started`, `compacted`, `failed`, `undone`, `pinned`, `unpinned`, `cleared`, `restored`,
    `rewound`, `redacted`, `collected`. After `deleted` the stream ends. Without events a comment is
    sent every 15 s. The stream ends when the API key is revoked or expires. `429` at the tenant's
    maximum of streams, `503` at the maximum of the process.
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
