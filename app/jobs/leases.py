"""Leases: one compaction of a conversation at a time, among all processes.

1. A holder renews its lease every third of its time. The lease of a process that died expires.
2. The `with` block of a holder is cancelled when its lease is lost: another process took it over,
   or it expired because the database did not answer.
3. No connection is held while a block waits or works.
4. A worker claims the lease together with the work, jobs first, then what waits longest. Work that
   failed can be claimed again after a pause that doubles, and is given up after `MAX_ATTEMPTS`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from app.common import json_text, logs
from app.common.errors import Conflict, ServiceUnavailable
from app.jobs.repository import RELEASE_LEASE, RETRY_LATER, TAKE_LEASE, Claim
from app.repositories import Database

LEASE_SECONDS = 20.0
FIRST_PAUSE_SECONDS = 0.05
MAX_PAUSE_SECONDS = 1.0
MAX_ATTEMPTS = 10
MAX_DELAY_SECONDS = 60.0
GIVEN_UP_PAUSE_SECONDS = 600.0
"""The pause of a conversation whose work failed `MAX_ATTEMPTS` times."""

_log = logging.getLogger("app.jobs")


class Leases:
    """The leases that this process takes on conversations."""

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
            async with self._renewed(conversation_id, holder, ends_at):
                yield True
        finally:
            await self.release(conversation_id, holder)

    @asynccontextmanager
    async def wait(self, conversation_id: str, timeout_seconds: float) -> AsyncIterator[None]:
        """Wait for the lease and hold it for the block.

        Raises ServiceUnavailable after the timeout. A lost lease ends the block as in `held`.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        pause = FIRST_PAUSE_SECONDS
        while True:
            async with self.held(conversation_id) as is_held:
                if is_held:
                    yield
                    return
            remaining_seconds = deadline - loop.time()
            if remaining_seconds <= 0:
                raise ServiceUnavailable(
                    "Another compaction of the conversation is still running", {"retry_after": 5}
                )
            await asyncio.sleep(min(pause, remaining_seconds))
            pause = min(pause * 2, MAX_PAUSE_SECONDS)

    async def claim(self) -> Claim | None:
        """Lease the work that waits longest and return it, None if no work waits."""
        ends_at = asyncio.get_running_loop().time() + self._seconds
        async with self._database.session() as session:
            claim = await session.jobs.claim(self._new_id(), self._seconds)
        return replace(claim, ends_at=ends_at) if claim is not None else None

    @asynccontextmanager
    async def renewed(self, claim: Claim) -> AsyncIterator[None]:
        """Renew the lease of a claim during the block, and release it where the block succeeds.

        Cancelled work is free for other workers at once. After another error the caller releases
        the lease, with `retry_or_give_up`. A lost lease ends the block as in `held`.
        """
        try:
            async with self._renewed(claim.conversation_id, claim.holder, claim.ends_at):
                yield
        except asyncio.CancelledError:
            await self.release(claim.conversation_id, claim.holder)
            raise
        await self.release(claim.conversation_id, claim.holder)

    async def retry_or_give_up(self, claim: Claim, error: Exception) -> None:
        """Release the lease of work that failed; it can be claimed again later, or never."""
        data = {
            "conversation_id": claim.conversation_id,
            "job_id": claim.job_id,
            "attempts": claim.attempts,
            "error": type(error).__name__,
            "places": logs.places(error),
        }
        if claim.attempts >= MAX_ATTEMPTS:
            _log.error("job_given_up", extra={"data": data})
            await self.give_up(claim)
            return
        _log.warning("job_interrupted", extra={"data": data})
        lease = {"conversation_id": claim.conversation_id, "holder": claim.holder}
        seconds = min(2.0 ** (claim.attempts - 1), MAX_DELAY_SECONDS)
        with suppress(ServiceUnavailable):
            async with self._database.session() as session:
                await session.session.run(RETRY_LATER, **lease, seconds=seconds)

    async def give_up(self, claim: Claim) -> None:
        """Fail a job, or pause a due compaction, and release its lease."""
        with suppress(ServiceUnavailable):  # then the next worker that claims it gives it up
            async with self._database.session() as session:
                key = claim.conversation_id
                if claim.job_id is None:
                    await session.jobs.postpone(key, GIVEN_UP_PAUSE_SECONDS)
                else:
                    detail = "The job was interrupted too many times"
                    error = json_text.dumps({"code": ServiceUnavailable.code, "detail": detail})
                    await session.jobs.change(key, claim.job_id, "failed", error=error)
            await self.release(claim.conversation_id, claim.holder)

    async def release(self, conversation_id: str, holder: str) -> None:
        """Release a lease, unless another process took it over."""
        lease = {"conversation_id": conversation_id, "holder": holder}
        with suppress(ServiceUnavailable):  # then it expires
            async with self._database.session() as session:
                await session.session.run(RELEASE_LEASE, **lease)

    async def _take(self, conversation_id: str, holder: str) -> bool:
        lease = {"conversation_id": conversation_id, "holder": holder, "seconds": self._seconds}
        async with self._database.session() as session:
            return bool(await session.session.value(TAKE_LEASE, **lease))

    @asynccontextmanager
    async def _renewed(
        self, conversation_id: str, holder: str, ends_at: float
    ) -> AsyncIterator[None]:
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
