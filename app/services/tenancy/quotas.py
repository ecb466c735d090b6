"""What tenants may do in a while, over all processes together (architecture, security).

While the database is away nothing is counted, and what was last known of a tenant goes on: it is
asked again once a second, by one request, and no other waits for that.

Limiters that others maintain keep their counts in memory, Redis, Memcached, MongoDB or etcd, none
in PostgreSQL: hence this one (decision 0027).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime

from cachetools import LRUCache

from app.domain.common.errors import RateLimited, ServiceUnavailable
from app.domain.tenancy.api_keys import require_tenant_id
from app.domain.tenancy.quotas import QuotaKind, TenantLimits, granted_of, share_of, window_start
from app.services.ports import Database, Repositories

AGAIN_SECONDS = 1.0
"""How often a database that is away is asked again."""

_MAX_TENANTS = 10_000
_WORDS = {
    QuotaKind.REQUESTS: "requests of this minute",
    QuotaKind.BYTES: "bytes of this day",
    QuotaKind.SUMMARISER_CALLS: "calls of the summariser of this hour",
}


@dataclass(slots=True)
class _Share:
    """What this process has taken of a window and not spent yet."""

    window: datetime
    limit: int
    left: int = 0
    is_last: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class QuotaService:
    """Takes from what tenants are allowed."""

    def __init__(
        self,
        database: Database,
        defaults: TenantLimits,
        now: Callable[[], datetime],
        clock: Callable[[], float],
        *,
        held_seconds: float = 10.0,
    ) -> None:
        self._database = database
        self._defaults = defaults
        self._now = now
        self._clock = clock
        self._held_seconds = held_seconds
        self._limits: LRUCache[str, tuple[TenantLimits, float]] = LRUCache(_MAX_TENANTS)
        self._shares: LRUCache[tuple[str, QuotaKind], _Share] = LRUCache(_MAX_TENANTS)
        self._first_look = asyncio.Lock()
        self._away_until = float("-inf")
        self._has_failed = False
        self._asking = 0

    async def limits_of(self, tenant_id: str) -> TenantLimits:
        """Return what a tenant may do, as it was a few seconds ago, or last known to be."""
        found = self._limits.get(tenant_id)
        if found is None:
            async with self._first_look:
                found = self._limits.get(tenant_id) or await self._look(tenant_id, self._defaults)
            return found[0]
        limits, until = found
        if self._clock() < until:
            return limits
        self._limits[tenant_id] = limits, self._clock() + AGAIN_SECONDS  # one looks for all
        limits, _ = await self._look(tenant_id, limits)
        return limits

    async def set_limits(self, tenant_id: str, limits: TenantLimits) -> None:
        """Give a tenant limits of its own; raises ValidationError for what is no tenant's id."""
        require_tenant_id(tenant_id)
        async with self._database.session() as records:
            await records.keys.set_limits(tenant_id, limits)
        self._limits.pop(tenant_id, None)

    async def all_limits(self) -> Mapping[str, TenantLimits]:
        """Return the limits that are tenants' own."""
        async with self._database.session() as records:
            return await records.keys.list_limits()

    async def take(self, tenant_id: str, kind: QuotaKind, count: int = 1) -> None:
        """Take so much of what is left of the window; raises RateLimited where it is too much."""
        limit = (await self.limits_of(tenant_id)).of(kind)
        if limit is None or count == 0:
            return
        window = window_start(self._now(), kind.window_seconds)
        share = self._shares.get((tenant_id, kind))
        if share is None or (share.window, share.limit) != (window, limit):
            share = self._shares[tenant_id, kind] = _Share(window, limit)
        while share.left < count and not share.is_last:
            if self._is_away():
                # What needs the database is refused by that; the rest costs nobody anything.
                return
            async with share.lock:
                if share.left < count and not share.is_last and not self._is_away():
                    await self._take_share(tenant_id, kind, share, count - share.left)
        if share.left < count:
            raise self._refusal(kind, share)
        share.left -= count

    async def _look(self, tenant_id: str, known: TenantLimits) -> tuple[TenantLimits, float]:
        """Learn a tenant's limits; without a database what is known of them holds for a while."""
        limits, held_seconds = known, AGAIN_SECONDS
        if not self._is_away():
            with suppress(ServiceUnavailable):
                async with self._session() as records:
                    own = await records.keys.find_limits(tenant_id)
                limits = own.over(self._defaults) if own is not None else self._defaults
                held_seconds = self._held_seconds
        self._limits[tenant_id] = found = limits, self._clock() + held_seconds
        return found

    async def _take_share(
        self, tenant_id: str, kind: QuotaKind, share: _Share, wanted: int
    ) -> None:
        asked = share_of(share.limit, wanted)
        with suppress(ServiceUnavailable):
            async with self._session() as records:
                taken = await records.keys.take(tenant_id, kind, share.window, asked)
            granted = granted_of(share.limit, taken, asked)
            share.left += granted
            share.is_last = granted < asked

    def _is_away(self) -> bool:
        """Tell whether the database has failed just now, or is being tried again by another."""
        return self._clock() < self._away_until or (self._has_failed and self._asking > 0)

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Repositories]:
        self._asking += 1
        try:
            async with self._database.session() as records:
                yield records
        except ServiceUnavailable:
            self._has_failed, self._away_until = True, self._clock() + AGAIN_SECONDS
            raise
        else:
            self._has_failed = False
        finally:
            self._asking -= 1

    def _refusal(self, kind: QuotaKind, share: _Share) -> RateLimited:
        passed = (self._now() - share.window).total_seconds()
        retry_after = max(1, int(kind.window_seconds - passed) + 1)
        return RateLimited(
            f"The {share.limit:,} {_WORDS[kind]} are spent",
            {"limit": share.limit, "kind": kind.value, "retry_after": retry_after},
        )
