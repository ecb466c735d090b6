"""Requests that share the slots for heavy work of a process.

1. These are uploads, downloads, searches of outputs, forks, imports, restores, lists, and bodies of
   more than 64 KiB. A request takes one slot, and one more for each 4 MiB of its JSON body.
2. It holds them until its answer is sent. An answer is sent when the client has received all but
   what the connection buffers.
"""

from __future__ import annotations

from starlette.types import Message, Scope, Send

from app.services.common.limiter import Slots

LIGHT_BYTES = 64 * 1024
"""The length of a body up to which a request needs no slot."""
SLOT_BYTES = 4 * 2**20
HEAVY_SHARE = "heavy_share"
"""Where the application puts the share of a request, which it releases in the end."""


class HeavyShare:
    """The slots of one request."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._tenant_id = ""
        self._held = 0

    async def take(self, tenant_id: str, body_bytes: int) -> None:
        """Take the slots of the request, once; raises RateLimited or ServiceUnavailable."""
        if not self._held:
            self._tenant_id = tenant_id
            self._held = await self._slots.acquire(tenant_id, 1 + body_bytes // SLOT_BYTES)

    def release(self) -> None:
        """Release them."""
        if self._held:
            self._slots.release(self._tenant_id, self._held)
            self._held = 0


async def take_share(scope: Scope, body_bytes: int | None) -> None:
    """Take the slots of a request; raises RateLimited or ServiceUnavailable.

    A body of unknown length counts as the longest.
    """
    if body_bytes is None:
        body_bytes = scope["app"].state.max_body_bytes
    share: HeavyShare = scope[HEAVY_SHARE]
    await share.take(scope["caller"].tenant_id, body_bytes)


def drained(send: Send) -> Send:
    """Return a `send` that waits until a large body is sent (rule 2)."""

    async def send_drained(message: Message) -> None:
        if len(message.get("body", b"")) <= LIGHT_BYTES or message.get("more_body", False):
            await send(message)
            return
        await send({**message, "more_body": True})
        await send({"type": "http.response.body"})  # which the server sends when it has room

    return send_drained
