"""Quotas of tenants over all processes, counted in PostgreSQL.

While the database is unavailable nothing is counted and the last known limits apply. One request a
second tries the database again; the others do not wait for it.

The maintained rate limiters keep their counts in memory, Redis, Memcached, MongoDB or etcd, none in
PostgreSQL (docs/decisions/0020).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from app.domain.common.errors import RateLimited, ServiceUnavailable
from app.domain.tenancy.api_keys import require_tenant_id
from app.domain.tenancy.quotas import (
    QuotaKind,
    QuotaState,
    TenantLimits,
    granted_of,
    seconds_left,
    share_of,
    window_start,
)
from app.services.ports import Database, Repositories

RETRY_SECONDS = 1.0
"""Seconds between two attempts to reach an unavailable database."""

LABELS = {
    QuotaKind.REQUESTS: "requests of this minute",
    QuotaKind.BYTES: "bytes of this day",
    QuotaKind.SUMMARISER_CALLS: "calls of the summariser of this hour",
}
"""What errors call the use of each kind."""

_MAX_TENANTS = 10_000


@dataclass(slots=True)
class _ReservedShare:
    """The part of a quota that this process has reserved in a rate window.

    The window is the time from `window` to `end`. `remaining` is not used yet. `unreserved` was
    left for all processes at the last reservation, None before the first one. `is_last` is true
    when the quota has nothing left to reserve.
    """

    window: datetime
    end: datetime
    limit: int
    remaining: int = 0
    unreserved: int | None = None
    is_last: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(slots=True)
class _TenantQuotas:
    """The last known limits of a tenant, until when they are cached, and its reserved shares."""

    limits: TenantLimits
    fresh_until: float
    shares: dict[QuotaKind, _ReservedShare] = field(default_factory=dict)

    def share(self, kind: QuotaKind, limit: int, now: datetime) -> _ReservedShare | None:
        """Return the share of the current rate window, None if nothing was reserved in it."""
        share = self.shares.get(kind)
        if share is None or share.limit != limit or not share.window <= now < share.end:
            return None
        return share


class QuotaService:
    """Reads limits and draws on quotas."""

    def __init__(
        self,
        database: Database,
        defaults: TenantLimits,
        now: Callable[[], datetime],
        clock: Callable[[], float],
        *,
        cache_seconds: float = 10.0,
    ) -> None:
        self._database = database
        self._defaults = defaults
        self._now = now
        self._clock = clock
        self._cache_seconds = cache_seconds
        self._tenants: dict[str, _TenantQuotas] = {}  # those read longest ago first
        self._first_read = asyncio.Lock()
        self._retry_at = float("-inf")
        self._has_failed = False
        self._attempts = 0

    async def limits_of(self, tenant_id: str) -> TenantLimits:
        """Return the limits of a tenant, at most a few seconds old, or the last known ones."""
        known = self._tenants.get(tenant_id)
        if known is None or self._clock() >= known.fresh_until:
            known = await self._known(tenant_id)
        return known.limits

    async def set_limits(self, tenant_id: str, limits: TenantLimits) -> None:
        """Store limits for a tenant; raises ValidationError for an invalid tenant id."""
        require_tenant_id(tenant_id)
        async with self._database.session() as session:
            await session.quotas.set_limits(tenant_id, limits)
        if (known := self._tenants.get(tenant_id)) is not None:
            known.fresh_until = float("-inf")

    async def all_limits(self) -> Mapping[str, TenantLimits]:
        """Return the stored limits by tenant."""
        async with self._database.session() as session:
            return await session.quotas.list_limits()

    async def take(self, tenant_id: str, kind: QuotaKind, count: int = 1) -> None:
        """Use a part of the quota; raises RateLimited when too little is left in the window."""
        known = self._tenants.get(tenant_id)
        if known is None or self._clock() >= known.fresh_until:
            known = await self._known(tenant_id)
        limit = known.limits.of(kind)
        if limit is None or count == 0:
            return
        now = self._now()
        share = known.share(kind, limit, now)
        if share is None:
            window = window_start(now, kind.window_seconds)
            end = window + timedelta(seconds=kind.window_seconds)
            share = known.shares[kind] = _ReservedShare(window, end, limit)
        while share.remaining < count and not share.is_last:
            if self._is_unavailable():
                return  # requests that need the database fail by themselves
            async with share.lock:
                if share.remaining < count and not share.is_last and not self._is_unavailable():
                    await self._take_share(tenant_id, kind, share, count - share.remaining)
        if share.remaining < count:
            raise self._refusal(kind, share)
        share.remaining -= count

    def states(self, tenant_id: str) -> list[QuotaState]:
        """Return the quotas of requests and bytes as far as this process knows, without I/O."""
        known = self._tenants.get(tenant_id)
        if known is None:
            return []
        states, now = [], self._now()
        for kind in (QuotaKind.REQUESTS, QuotaKind.BYTES):
            limit = known.limits.of(kind)
            if limit is None:
                continue
            share, remaining = known.share(kind, limit, now), None
            if share is not None and share.unreserved is not None:
                remaining = share.unreserved + share.remaining
            window = share.window if share is not None else window_start(now, kind.window_seconds)
            reset_seconds = seconds_left(now, window, kind.window_seconds)
            states.append(QuotaState(kind, limit, remaining, reset_seconds))
        return states

    async def _known(self, tenant_id: str) -> _TenantQuotas:
        """Return what is known of a tenant, with limits of at most a few seconds' age if possible.

        Other requests use the last known limits while this one reads them again.
        """
        known = self._tenants.get(tenant_id)
        if known is None:
            async with self._first_read:
                known = self._tenants.get(tenant_id)
                if known is None:
                    limits, fresh_until = await self._read_limits(tenant_id, self._defaults)
                    known = _TenantQuotas(limits, fresh_until)
                    self._keep(tenant_id, known)
        elif self._clock() >= known.fresh_until:
            known.fresh_until = self._clock() + RETRY_SECONDS
            known.limits, known.fresh_until = await self._read_limits(tenant_id, known.limits)
            self._keep(tenant_id, known)
        return known

    def _keep(self, tenant_id: str, known: _TenantQuotas) -> None:
        """Keep what was read of a tenant, in place of the tenant that was read longest ago."""
        self._tenants.pop(tenant_id, None)
        if len(self._tenants) >= _MAX_TENANTS:
            del self._tenants[next(iter(self._tenants))]
        self._tenants[tenant_id] = known

    async def _read_limits(
        self, tenant_id: str, last_known: TenantLimits
    ) -> tuple[TenantLimits, float]:
        """Read the limits of a tenant, or return the last known ones during an outage.

        Also returns the time until which they are cached.
        """
        limits, cache_seconds = last_known, RETRY_SECONDS
        if not self._is_unavailable():
            with suppress(ServiceUnavailable):
                async with self._session() as session:
                    stored = await session.quotas.find_limits(tenant_id)
                limits = stored.with_defaults(self._defaults) if stored else self._defaults
                cache_seconds = self._cache_seconds
        return limits, self._clock() + cache_seconds

    async def _take_share(
        self, tenant_id: str, kind: QuotaKind, share: _ReservedShare, needed: int
    ) -> None:
        reserved = share_of(share.limit, needed)
        with suppress(ServiceUnavailable):
            async with self._session() as session:
                used = await session.quotas.add_use(tenant_id, kind, share.window, reserved)
            granted = granted_of(share.limit, used, reserved)
            share.remaining += granted
            share.unreserved = max(0, share.limit - used)
            share.is_last = granted < reserved

    def _is_unavailable(self) -> bool:
        """Return whether the database failed just now, or another request is trying it again."""
        return self._clock() < self._retry_at or (self._has_failed and self._attempts > 0)

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Repositories]:
        self._attempts += 1
        try:
            async with self._database.session() as session:
                yield session
        except ServiceUnavailable:
            self._has_failed, self._retry_at = True, self._clock() + RETRY_SECONDS
            raise
        else:
            self._has_failed = False
        finally:
            self._attempts -= 1

    def _refusal(self, kind: QuotaKind, share: _ReservedShare) -> RateLimited:
        elapsed_seconds = (self._now() - share.window).total_seconds()
        retry_after = max(1, int(kind.window_seconds - elapsed_seconds) + 1)
        return RateLimited(
            f"The {share.limit:,} {LABELS[kind]} are used up",
            {"limit": share.limit, "kind": kind.value, "retry_after": retry_after},
        )
