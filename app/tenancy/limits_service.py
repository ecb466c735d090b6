"""The limits of tenants, which PostgreSQL has, and the requests that they have sent.

1. Limits are read at most every 10 s. While they are read, or cannot be, the last known ones apply.
2. Requests are counted in each process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from cachetools import LRUCache

from app.common.errors import ServiceUnavailable
from app.common.limiter import Rate, RateState
from app.repositories import Database
from app.tenancy.api_keys import require_tenant_id
from app.tenancy.tenant_limits import TenantLimits

CACHE_SECONDS = 10.0
_MAX_TENANTS = 10_000


class LimitService:
    """Reads and changes the limits of tenants; `now` is the time in seconds."""

    def __init__(
        self, database: Database, defaults: TenantLimits, now: Callable[[], float]
    ) -> None:
        self._database = database
        self._defaults = defaults
        self._now = now
        self._known: LRUCache[str, tuple[TenantLimits, float]] = LRUCache(_MAX_TENANTS)
        self._requests = Rate("requests", "requests of this minute", 60, now)

    async def count_request(self, tenant_id: str) -> RateState | None:
        """Count a request; return what is left of the minute, None without a limit."""
        limit = (await self.of(tenant_id)).requests_per_minute
        return self._requests.count(tenant_id, limit) if limit is not None else None

    async def of(self, tenant_id: str) -> TenantLimits:
        """Return the limits of a tenant (rule 1)."""
        limits, fresh_until = self._known.get(tenant_id, (self._defaults, 0.0))
        if self._now() < fresh_until:
            return limits
        self._known[tenant_id] = limits, self._now() + CACHE_SECONDS
        with suppress(ServiceUnavailable):
            async with self._database.session() as session:
                stored = await session.tenants.find_limits(tenant_id)
            limits = stored.with_defaults(self._defaults) if stored else self._defaults
            self._known[tenant_id] = limits, self._now() + CACHE_SECONDS
        return limits

    async def set(self, tenant_id: str, limits: TenantLimits) -> None:
        """Store limits for a tenant; raises ValidationError for an invalid tenant id."""
        require_tenant_id(tenant_id)
        async with self._database.session() as session:
            await session.tenants.set_limits(tenant_id, limits)
        self._known.pop(tenant_id, None)

    async def all(self) -> Mapping[str, TenantLimits]:
        """Return the stored limits by tenant."""
        async with self._database.session() as session:
            return await session.tenants.list_limits()
