"""The limits of tenants: requests of a minute, and model calls of the summariser in an hour.

1. Limits are read at most every 10 s. While they are read, or cannot be, the last known ones apply.
2. Requests are counted in each process.
3. Every model call is counted in the database before it is made, so that all processes share the
   count and it outlives a restart. A call that cannot be counted is not made. Hours are those of
   the clock. No database connection is held during the call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from math import ceil

from cachetools import LRUCache

from app.common.errors import RateLimited, ServiceUnavailable
from app.database.sql import read
from app.models.usage import Completion, Gateway, ModelCall
from app.repositories import Database
from app.tenancy.api_keys import require_tenant_id
from app.tenancy.repository import ADD_SUMMARISER_CALL, FIND_LIMITS, LIST_LIMITS, SET_LIMITS

CACHE_SECONDS = 10.0
_MAX_TENANTS = 10_000
_MINUTE = 60
SPEND_GUARD = "spend_guard"
"""The `reason` of an error: the limit of model calls is reached or cannot be checked."""


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """The limits of a tenant; None is no limit."""

    requests_per_minute: int | None = None
    summarizer_calls_per_hour: int | None = None


class LimitService:
    """Reads and changes the limits of tenants; `now` is the time in seconds."""

    def __init__(
        self, database: Database, defaults: TenantLimits, now: Callable[[], float]
    ) -> None:
        self._database = database
        self._defaults = defaults
        self._now = now
        self._known: LRUCache[str, tuple[TenantLimits, float]] = LRUCache(_MAX_TENANTS)
        self._minute = 0
        self._requests: Counter[str] = Counter()

    async def count_request(self, tenant_id: str) -> None:
        """Count a request; raises RateLimited beyond the limit of the minute."""
        limit = (await self.of(tenant_id)).requests_per_minute
        if limit is None:
            return
        now = self._now()
        if (minute := int(now // _MINUTE)) != self._minute:
            self._minute, self._requests = minute, Counter()
        self._requests[tenant_id] += 1
        if self._requests[tenant_id] > limit:
            seconds = max(1, ceil((minute + 1) * _MINUTE - now))
            facts = {"limit": limit, "kind": "requests", "retry_after": seconds}
            raise RateLimited(f"The {limit:,} requests of this minute are used up", facts)

    async def of(self, tenant_id: str) -> TenantLimits:
        """Return the limits of a tenant, with the defaults in place of None (rule 1)."""
        limits, fresh_until = self._known.get(tenant_id, (self._defaults, 0.0))
        if self._now() < fresh_until:
            return limits
        self._known[tenant_id] = limits, self._now() + CACHE_SECONDS
        with suppress(ServiceUnavailable):
            async with self._database.session() as repositories:
                row = await repositories.session.first(FIND_LIMITS, tenant_id=tenant_id)
            stored = asdict(read(TenantLimits, row)) if row is not None else {}
            own = {name: limit for name, limit in stored.items() if limit is not None}
            limits = replace(self._defaults, **own)
            self._known[tenant_id] = limits, self._now() + CACHE_SECONDS
        return limits

    async def set(self, tenant_id: str, limits: TenantLimits) -> None:
        """Store limits for a tenant; raises ValidationError for an invalid tenant id."""
        require_tenant_id(tenant_id)
        async with self._database.session() as repositories:
            await repositories.session.run(SET_LIMITS, tenant_id=tenant_id, **asdict(limits))
        self._known.pop(tenant_id, None)

    async def all(self) -> Mapping[str, TenantLimits]:
        """Return the stored limits by tenant."""
        async with self._database.session() as repositories:
            rows = await repositories.session.all(LIST_LIMITS)
        return {row["tenant_id"]: read(TenantLimits, row) for row in rows}


@dataclass(eq=False, repr=False)
class SummariserQuota:
    """A gateway that counts the calls of each tenant and refuses those beyond the limit."""

    _gateway: Gateway
    _database: Database
    _limits_of: Callable[[str], Awaitable[TenantLimits]]
    _now: Callable[[], datetime]

    async def complete(self, call: ModelCall) -> Completion:
        """Return the model's answer; raises ServiceUnavailable when refused or failed."""
        limit = (await self._limits_of(call.tenant_id)).summarizer_calls_per_hour
        if limit is not None:
            now = self._now()
            hour = now.replace(minute=0, second=0, microsecond=0)
            try:
                async with self._database.session() as repositories:
                    calls = await repositories.session.value(
                        ADD_SUMMARISER_CALL, tenant_id=call.tenant_id, hour=hour
                    )
            except ServiceUnavailable as exc:
                message = "The calls of the summariser cannot be counted"
                raise ServiceUnavailable(message, {"reason": SPEND_GUARD}) from exc
            if calls > limit:
                seconds = max(1, ceil((hour + timedelta(hours=1) - now).total_seconds()))
                raise ServiceUnavailable(
                    f"The {limit:,} calls of the summariser of this hour are used up",
                    {"reason": SPEND_GUARD, "retry_after": seconds},
                )
        return await self._gateway.complete(call)
