"""Leases: one compaction of a conversation at a time, among all processes (E6).

1. Whoever holds a lease renews it every third of its time; whoever dies lets it run out.
2. The body of a holder ends when the lease does: at once when another took it over, else when
   its time is up without a renewal, because the database does not answer.
3. No connection is held while anything waits or works.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from app.domain.common.errors import Conflict, ServiceUnavailable
from app.services.ports import Database

LEASE_SECONDS = 20.0
FIRST_PAUSE_SECONDS = 0.05
MAX_PAUSE_SECONDS = 1.0


class Leases:
    """The right to compact a conversation, taken and given back."""

    def __init__(
        self, database: Database, new_id: Callable[[], str], seconds: float = LEASE_SECONDS
    ) -> None:
        self._database = database
        self._new_id = new_id
        self._seconds = seconds

    @asynccontextmanager
    async def held(self, conversation_id: str) -> AsyncIterator[bool]:
        """Hold the lease for the block, or yield False while another has it.

        Ends the block with Conflict when another took the lease over, and with
        ServiceUnavailable when it could not be renewed in time.
        """
        holder = self._new_id()
        ends_at = asyncio.get_running_loop().time() + self._seconds
        if not await self._take(conversation_id, holder):
            yield False
            return
        try:
            async with self._kept(conversation_id, holder, ends_at):
                yield True
        finally:
            with suppress(ServiceUnavailable):  # then it runs out by itself
                async with self._database.session() as records:
                    await records.jobs.release_lease(conversation_id, holder)

    @asynccontextmanager
    async def wait(self, conversation_id: str, timeout_seconds: float) -> AsyncIterator[None]:
        """Hold the lease for the block, once others are done.

        Raises ServiceUnavailable when that takes longer, and else ends the block as `held` does.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        pause = FIRST_PAUSE_SECONDS
        while True:
            async with self.held(conversation_id) as is_held:
                if is_held:
                    yield
                    return
            left = deadline - loop.time()
            if left <= 0:
                raise ServiceUnavailable(
                    "Another compaction of the conversation is still running", {"retry_after": 5}
                )
            await asyncio.sleep(min(pause, left))
            pause = min(pause * 2, MAX_PAUSE_SECONDS)

    async def _take(self, conversation_id: str, holder: str) -> bool:
        async with self._database.session() as records:
            return await records.jobs.take_lease(conversation_id, holder, self._seconds)

    @asynccontextmanager
    async def _kept(self, conversation_id: str, holder: str, ends_at: float) -> AsyncIterator[None]:
        lost = False
        loop = asyncio.get_running_loop()
        limit = asyncio.timeout_at(ends_at)

        async def renew() -> None:
            nonlocal lost
            while True:
                await asyncio.sleep(self._seconds / 3)
                renewed_until = loop.time() + self._seconds
                with suppress(ServiceUnavailable):
                    lost = not await self._take(conversation_id, holder)
                    if limit.expired():
                        return
                    limit.reschedule(loop.time() if lost else renewed_until)

        try:
            async with limit:
                renewal = asyncio.create_task(renew())
                try:
                    yield
                finally:
                    renewal.cancel()
                    await asyncio.wait({renewal})
        except TimeoutError as error:
            if not limit.expired():
                raise
            if lost:
                raise Conflict("Another compaction of the conversation took over") from error
            raise ServiceUnavailable("The database does not answer") from error
