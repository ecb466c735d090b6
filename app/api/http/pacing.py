"""Large answers: their place in memory, and the pace at which their reader takes them.

1. An answer holds its place, as `app.services.common.read_permits` gives it, until its last byte
   is sent.
2. It is sent in slices, because the server takes whatever it is given at once, and keeps it.
3. A reader who takes no slice within `SLICE_SECONDS` is given up: the connection is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.services.common.read_permits import Read, Reads

SLICE_BYTES = 256 * 1024
SLICE_SECONDS = 20.0


class ReaderStalled(Exception):
    """The reader of an answer does not take it (rule 3)."""


Place = Callable[[Reads, str], AbstractAsyncContextManager[Read]]
"""Which place an answer needs: `Reads.page` or `Reads.stream`."""


def held(app: ASGIApp, place: Place) -> ASGIApp:
    """Return the app with a place for each of its answers (rule 1)."""

    async def in_place(scope: Scope, receive: Receive, send: Send) -> None:
        tenant_id = scope["caller"].tenant_id  # `app.api.middleware.authentication` has checked it
        async with place(scope["app"].state.reads, tenant_id) as read:
            scope["read"] = read
            await app(scope, receive, paced(send))

    return in_place


def read_of(request: Request) -> Read:
    """Return the place of the answer to this request."""
    read: Read = request.scope["read"]
    return read


def paced(send: Send, seconds: float = SLICE_SECONDS) -> Send:
    """Return a `send` that sends a body in slices, and raises ReaderStalled (rules 2 and 3)."""

    async def in_time(message: Message) -> None:
        try:
            async with asyncio.timeout(seconds):
                await send(message)
        except TimeoutError as error:
            raise ReaderStalled from error

    async def send_slices(message: Message) -> None:
        body, more = message.get("body", b""), message.get("more_body", False)
        if len(body) <= SLICE_BYTES:
            await in_time(message)
            return
        view = memoryview(body)
        for start in range(0, len(body), SLICE_BYTES):
            end = start + SLICE_BYTES
            piece = {"body": bytes(view[start:end]), "more_body": more or end < len(body)}
            await in_time({**message, **piece})

    return send_slices
