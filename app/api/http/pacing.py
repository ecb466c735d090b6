"""Large responses: memory permits and backpressure.

1. A response holds a permit of `app.services.common.read_permits` until its last byte is sent.
2. It is sent in slices, because the server buffers all that it gets at once.
3. The connection is closed if the client receives no slice within `SLICE_SECONDS`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.services.common.read_permits import ReadPermit, ReadPermits

SLICE_BYTES = 256 * 1024
SLICE_SECONDS = 20.0


class ReaderStalled(Exception):
    """The client does not receive the response (rule 3)."""


Permit = Callable[[ReadPermits, str], AbstractAsyncContextManager[ReadPermit]]
"""The permit that a response needs: `ReadPermits.page` or `ReadPermits.stream`."""


def permitted(app: ASGIApp, permit: Permit) -> ASGIApp:
    """Return the app with a permit for each of its responses (rule 1)."""

    async def with_permit(scope: Scope, receive: Receive, send: Send) -> None:
        tenant_id = scope["caller"].tenant_id
        async with permit(scope["app"].state.reads, tenant_id) as read:
            scope["read"] = read
            await app(scope, receive, paced(send))

    return with_permit


def read_of(request: Request) -> ReadPermit:
    """Return the permit of the response to this request."""
    read: ReadPermit = request.scope["read"]
    return read


def paced(send: Send, seconds: float = SLICE_SECONDS) -> Send:
    """Return a `send` that sends bodies in slices and raises ReaderStalled (rules 2 and 3)."""

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
