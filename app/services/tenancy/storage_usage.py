"""What a tenant may store, over all processes together: messages, blobs and imported snapshots.

1. A tenant without a limit costs a look at what is known of its limits, no statement.
2. The sum is asked for every few seconds while the tenant stores, and what this process stores is
   added in between. So processes together may go over a limit by what they store meanwhile.
3. Rows of a log never change: each is measured once, after it was stored, and a sum is one of
   conversations. What is deleted is in no sum any more.
4. Before anything is refused the sum is asked for anew, once a second at most: what was deleted a
   moment ago makes room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from cachetools import LRUCache

from app.domain.common.errors import ServiceUnavailable, StorageLimitReached
from app.domain.tenancy.quotas import TenantLimits
from app.services.ports import Database

_MAX_TENANTS = 10_000
_HELD_SECONDS = 10.0
_AGAIN_SECONDS = 1.0


@dataclass(slots=True)
class _Known:
    """What is known of a tenant: the sum, when it was asked for, and what was added since."""

    total: int = 0
    at: float = float("-inf")
    added: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class StorageQuota:
    """Has room for what a tenant stores, or has none."""

    def __init__(
        self,
        database: Database,
        limits_of: Callable[[str], Awaitable[TenantLimits]],
        clock: Callable[[], float],
    ) -> None:
        self._database = database
        self._limits_of = limits_of
        self._clock = clock
        self._known: LRUCache[str, _Known] = LRUCache(_MAX_TENANTS)

    async def take(self, tenant_id: str, size: int) -> None:
        """Count bytes that are about to be stored; raises StorageLimitReached without room."""
        limit = (await self._limits_of(tenant_id)).storage_bytes
        if limit is None:
            return
        known = self._known.get(tenant_id)
        if known is None:
            known = self._known[tenant_id] = _Known()
        await self._refresh(tenant_id, known, _HELD_SECONDS)
        if known.total + known.added + size > limit:
            await self._refresh(tenant_id, known, _AGAIN_SECONDS)
            stored = known.total + known.added
            if stored + size > limit:
                raise StorageLimitReached(
                    f"The tenant may store {limit:,} bytes, and {stored:,} are stored: delete"
                    " conversations or outputs, or ask for more room",
                    {"limit": limit, "stored": stored},
                )
        known.added += size

    async def _refresh(self, tenant_id: str, known: _Known, held_seconds: float) -> None:
        """Ask for the sum, unless it is young enough; without a database it stays as it is."""
        async with known.lock:
            if self._clock() - known.at < held_seconds:
                return
            known.at, added = self._clock(), known.added
            with suppress(ServiceUnavailable):
                more = True
                while more:
                    async with self._database.session() as records:
                        more = await records.storage.measure(tenant_id)
                async with self._database.session() as records:
                    known.total = await records.storage.total(tenant_id)
                # What was added while it was asked for may not be in it.
                known.added -= added
