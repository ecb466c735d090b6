"""What tenants may do in a while, over all processes together (architecture, security).

While the database is away nothing is counted, and what was last known of a tenant goes on.

Limiters that others maintain keep their counts in memory, Redis, Memcached, MongoDB or etcd, none
in PostgreSQL: hence this one (decision 0026).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from cachetools import LRUCache

from app.domain.allowances import Kind, Limits, granted_of, share_of, window_start
from app.domain.errors import RateLimited, ServiceUnavailable
from app.domain.keys import require_tenant_id
from app.services.ports import Database

AGAIN_SECONDS = 1.0
"""How often a database that is away is asked again."""

_MOST_TENANTS = 10_000
_WORDS = {Kind.REQUESTS: "requests of this minute", Kind.BYTES: "bytes of this day"}


@dataclass(slots=True)
class _Share:
    """What this process has taken of a window and not spent yet."""

    window: datetime
    limit: int
    left: int = 0
    is_last: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Allowances:
    """Takes from what tenants are allowed."""

    def __init__(
        self,
        database: Database,
        defaults: Limits,
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
        self._limits: LRUCache[str, tuple[Limits, float]] = LRUCache(_MOST_TENANTS)
        self._shares: LRUCache[tuple[str, Kind], _Share] = LRUCache(_MOST_TENANTS)

    async def limits_of(self, tenant_id: str) -> Limits:
        """Return what a tenant may do, as it was a few seconds ago, or last known to be."""
        limits, until = self._limits.get(tenant_id, (self._defaults, float("-inf")))
        if self._clock() < until:
            return limits
        if tenant_id in self._limits:
            self._limits[tenant_id] = limits, self._clock() + AGAIN_SECONDS  # one asks for all
        try:
            async with self._database.session() as records:
                own = await records.keys.find_limits(tenant_id)
        except ServiceUnavailable:
            self._limits[tenant_id] = limits, self._clock() + AGAIN_SECONDS
            return limits
        limits = own.over(self._defaults) if own is not None else self._defaults
        self._limits[tenant_id] = limits, self._clock() + self._held_seconds
        return limits

    async def set_limits(self, tenant_id: str, limits: Limits) -> None:
        """Give a tenant limits of its own; raises ValidationError for what is no tenant's id."""
        require_tenant_id(tenant_id)
        async with self._database.session() as records:
            await records.keys.set_limits(tenant_id, limits)
        self._limits.pop(tenant_id, None)

    async def all_limits(self) -> Mapping[str, Limits]:
        """Return the limits that are tenants' own."""
        async with self._database.session() as records:
            return await records.keys.list_limits()

    async def take(self, tenant_id: str, kind: Kind, count: int = 1) -> None:
        """Take so much of what is left of the window; raises RateLimited where it is too much."""
        limit = (await self.limits_of(tenant_id)).of(kind)
        if limit is None or count == 0:
            return
        window = window_start(self._now(), kind.window_seconds)
        share = self._shares.get((tenant_id, kind))
        if share is None or (share.window, share.limit) != (window, limit):
            share = self._shares[tenant_id, kind] = _Share(window, limit)
        if share.left < count and not share.is_last:
            async with share.lock:
                if share.left < count and not share.is_last:
                    await self._take_share(tenant_id, kind, share, count - share.left)
        if share.left < count:
            raise self._refusal(kind, share)
        share.left -= count

    async def _take_share(self, tenant_id: str, kind: Kind, share: _Share, wanted: int) -> None:
        asked = share_of(share.limit, wanted)
        try:
            async with self._database.session() as records:
                taken = await records.keys.take(tenant_id, kind, share.window, asked)
        except ServiceUnavailable:
            # What needs the database is refused by that; the rest costs nobody anything.
            share.left += wanted
            return
        granted = granted_of(share.limit, taken, asked)
        share.left += granted
        share.is_last = granted < asked

    def _refusal(self, kind: Kind, share: _Share) -> RateLimited:
        passed = (self._now() - share.window).total_seconds()
        retry_after = max(1, int(kind.window_seconds - passed) + 1)
        return RateLimited(
            f"The {share.limit:,} {_WORDS[kind]} are spent",
            {"limit": share.limit, "kind": kind.value, "retry_after": retry_after},
        )
