"""The storage limit of a tenant over all processes: messages, blobs and imported snapshots.

1. A tenant without a limit costs no statement.
2. The stored bytes are read every few seconds while the tenant stores, and the bytes that this
   process adds are counted in between. So all processes together may exceed the limit by what they
   store in these seconds.
3. Rows of the log never change: each is measured once, after it was stored. Deleted rows leave the
   sum.
4. Before a refusal the sum is read again, at most once a second, because a deletion may have freed
   space.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from cachetools import LRUCache

from app.domain.common.errors import ServiceUnavailable, StorageLimitReached
from app.domain.tenancy.quotas import QuotaKind
from app.services.ports import Database
from app.services.tenancy.quotas import QuotaService

_MAX_TENANTS = 10_000
_CACHE_SECONDS = 10.0
_RETRY_SECONDS = 1.0


@dataclass(slots=True)
class _StoredBytes:
    """The stored bytes of a tenant, when they were read, and the bytes added since."""

    total_bytes: int = 0
    read_at: float = float("-inf")
    added_bytes: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


async def measured_bytes(database: Database, tenant_id: str) -> int:
    """Return what the limit of a tenant counts, after measuring what is new."""
    is_behind = True
    while is_behind:
        async with database.session() as session:
            is_behind = await session.storage.measure(tenant_id)
    async with database.session() as session:
        return await session.storage.total(tenant_id)


class StorageQuota:
    """Counts the stored bytes of tenants against their limits."""

    def __init__(
        self, database: Database, quotas: QuotaService, clock: Callable[[], float]
    ) -> None:
        self._database = database
        self._quotas = quotas
        self._clock = clock
        self._usage_by_tenant: LRUCache[str, _StoredBytes] = LRUCache(_MAX_TENANTS)

    async def take(self, tenant_id: str, size: int) -> None:
        """Count bytes that will be stored; raises StorageLimitReached beyond the limit."""
        limit = (await self._quotas.limits_of(tenant_id)).storage_bytes
        if limit is None:
            return
        usage = self._usage_by_tenant.get(tenant_id)
        if usage is None:
            usage = self._usage_by_tenant[tenant_id] = _StoredBytes()
        await self._refresh(tenant_id, usage, _CACHE_SECONDS)
        if usage.total_bytes + usage.added_bytes + size > limit:
            await self._refresh(tenant_id, usage, _RETRY_SECONDS)
            stored = usage.total_bytes + usage.added_bytes
            if stored + size > limit:
                raise StorageLimitReached(
                    f"The tenant may store {limit:,} bytes, and {stored:,} are stored: delete"
                    " conversations or outputs, or raise the limit",
                    {"limit": limit, "stored": stored},
                )
        usage.added_bytes += size

    async def take_copied(self, tenant_id: str, size: int) -> None:
        """Count bytes that the service copies for a tenant like bytes that the tenant sends.

        Raises StorageLimitReached or RateLimited.
        """
        await self.take(tenant_id, size)
        await self._quotas.take(tenant_id, QuotaKind.BYTES, size)

    async def _refresh(self, tenant_id: str, usage: _StoredBytes, cache_seconds: float) -> None:
        """Read the sum unless it is recent; it stays while the database is unavailable."""
        async with usage.lock:
            if self._clock() - usage.read_at < cache_seconds:
                return
            usage.read_at, added_before = self._clock(), usage.added_bytes
            with suppress(ServiceUnavailable):
                usage.total_bytes = await measured_bytes(self._database, tenant_id)
                # Bytes that were added during the read may not be in the sum.
                usage.added_bytes -= added_before
