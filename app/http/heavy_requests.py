"""Requests that share the slots for heavy work of a process.

1. These are uploads, downloads, searches of outputs, lists, and bodies of more than 64 KiB. A
   request takes one slot, and one more for each 4 MiB of its JSON body or of a page.
2. Forks, exports, imports, snapshots that are read or restored, and lists with full contents are
   large: they keep the database or the event loop busy, so that other requests wait. They take as
   many slots as leave half of the connections to other requests.
3. A request holds them until its answer is sent. An answer is sent when the client has received all
   but what the connection buffers.
"""

from __future__ import annotations

from starlette.types import Message, Scope, Send

from app.common.concurrency import Slots

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

    async def take(self, tenant_id: str, slots: int) -> None:
        """Take the slots of the request, once; raises RateLimited or ServiceUnavailable."""
        if not self._held:
            self._tenant_id = tenant_id
            self._held = await self._slots.acquire(tenant_id, slots)

    def release(self) -> None:
        """Release them."""
        if self._held:
            self._slots.release(self._tenant_id, self._held)
            self._held = 0


def large_slots(heavy_requests: int, pool_max_size: int) -> int:
    """Return the slots of a large request (rule 2)."""
    return 1 + heavy_requests // (1 + max(1, pool_max_size // 2))


async def take_share(scope: Scope, body_bytes: int | None, slots: int = 0) -> None:
    """Take the slots of a request, at least these; raises RateLimited or ServiceUnavailable.

    A body of unknown length counts as the longest.
    """
    if body_bytes is None:
        body_bytes = scope["app"].state.max_body_bytes
    share: HeavyShare = scope[HEAVY_SHARE]
    await share.take(scope["caller"].tenant_id, max(slots, 1 + body_bytes // SLOT_BYTES))


def drained(send: Send) -> Send:
    """Return a `send` that waits until a large body is sent (rule 3)."""

    async def send_drained(message: Message) -> None:
        if len(message.get("body", b"")) <= LIGHT_BYTES or message.get("more_body", False):
            await send(message)
            return
        await send({**message, "more_body": True})
        await send({"type": "http.response.body"})  # which the server sends when it has room

    return send_drained
