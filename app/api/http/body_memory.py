"""Memory for long request bodies, which the requests of a process share.

1. Up to its first part, 64 KiB, a body needs no permit. For what follows a request takes as many
   bytes as it has received, and holds them until its answer is sent.
2. Where all bytes are taken it waits for `WAIT_SECONDS`, and then gets ServiceUnavailable.
3. The request that holds bytes for the longest time never waits, so that requests cannot block each
   other: together they hold at most `max_bytes` and one body.
"""

from __future__ import annotations

import asyncio

from app.domain.common.errors import ServiceUnavailable

WAIT_SECONDS = 10.0


class BodyMemory:
    """Issues the permits of one process."""

    def __init__(self, max_bytes: int, wait_seconds: float = WAIT_SECONDS) -> None:
        self._max_bytes = max_bytes
        self._wait_seconds = wait_seconds
        self._held: dict[BodyPermit, int] = {}  # the oldest first
        self._freed = asyncio.Event()
        self.held_bytes = 0

    async def take(self, permit: BodyPermit, count: int) -> None:
        """Take bytes for a request; raises ServiceUnavailable (rule 2)."""
        self._held.setdefault(permit, 0)
        try:
            async with asyncio.timeout(self._wait_seconds):
                while not self._has_room(permit, count):
                    self._freed.clear()
                    await self._freed.wait()
        except TimeoutError:
            raise ServiceUnavailable(
                "Too many long bodies are received at once",
                {"reason": "too_many_bodies", "retry_after": 1},
            ) from None
        self._held[permit] += count
        self.held_bytes += count

    def release(self, permit: BodyPermit) -> None:
        """Release all bytes of a request."""
        if permit in self._held:
            self.held_bytes -= self._held.pop(permit)
            self._freed.set()

    def _has_room(self, permit: BodyPermit, count: int) -> bool:
        is_oldest = next(iter(self._held)) is permit
        return is_oldest or self.held_bytes + count <= self._max_bytes


class BodyPermit:
    """What one request holds."""

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory

    async def take(self, count: int) -> None:
        """Take more bytes; raises ServiceUnavailable."""
        await self._memory.take(self, count)

    def release(self) -> None:
        """Release all of them."""
        self._memory.release(self)
