"""Streams of events as Server-Sent Events, with comments in between, until the key is revoked."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from datetime import datetime
from functools import partial
from typing import Any, Protocol, TypeVar

import anyio
from fastapi import Request, Response
from sse_starlette import EventSourceResponse, ServerSentEvent

from app.api.http.dependencies import caller_of, services

_GRACE_SECONDS = 1
"""How long a stream may take to end when the process shuts down."""


class SentEvent(Protocol):
    """An event of a stream; the text of `cursor` is its id."""

    @property
    def cursor(self) -> object:
        """Its position."""

    @property
    def type(self) -> str:
        """Its type."""

    @property
    def created_at(self) -> datetime:
        """Its time."""

    @property
    def data(self) -> Mapping[str, Any]:
        """The fields of its type."""


_Event = TypeVar("_Event", bound=SentEvent)
_SentEvent_co = TypeVar("_SentEvent_co", bound=SentEvent, covariant=True)


class Stream(Protocol[_SentEvent_co]):
    """An open stream."""

    def events(self) -> AsyncGenerator[_SentEvent_co, None]:
        """Yield the events."""

    def end(self) -> None:
        """End after the events that are read already."""


def streamed(
    request: Request, stream: Stream[_Event], own_fields: Callable[[_Event], Mapping[str, Any]]
) -> Response:
    """Return the response that sends a stream; `own_fields` are those that every event has."""
    shutdown, keep_alive_seconds = anyio.Event(), request.app.state.keep_alive_seconds
    still_admits = partial(services(request).still_admits, caller_of(request))

    async def end_when_inadmissible() -> None:
        """End the stream at shutdown or without a valid key, even without events."""
        while not shutdown.is_set() and await still_admits():
            with anyio.move_on_after(keep_alive_seconds):
                await shutdown.wait()
        stream.end()

    return EventSourceResponse(
        _encoded(stream, still_admits, own_fields),
        ping=keep_alive_seconds,
        ping_message_factory=lambda: ServerSentEvent(comment="keep-alive"),
        data_sender_callable=end_when_inadmissible,
        shutdown_event=shutdown,
        shutdown_grace_period=_GRACE_SECONDS,
    )


async def _encoded(
    stream: Stream[_Event],
    still_admits: Callable[[], Awaitable[bool]],
    own_fields: Callable[[_Event], Mapping[str, Any]],
) -> AsyncIterator[ServerSentEvent]:
    async with aclosing(stream.events()) as events:
        async for event in events:
            if not await still_admits():
                return
            own = {
                "type": event.type,
                **own_fields(event),
                "created_at": event.created_at.isoformat(),
            }
            # ASCII, because some clients split lines at U+2028, which the standard does not.
            data = json.dumps({**own, **event.data, **own}, separators=(",", ":"))
            yield ServerSentEvent(data, event=event.type, id=str(event.cursor))
