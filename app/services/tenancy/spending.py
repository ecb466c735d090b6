"""Counts what a tenant spends on model calls, and refuses calls beyond its limits.

1. Every call is counted in the database before it is made, so that all processes share the count
   and it outlives a restart. A call that cannot be counted is not made.
2. The count is of a rate window. No database connection is held during the call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime

from app.domain.common.errors import ServiceUnavailable
from app.domain.tenancy.quotas import QuotaKind, TenantLimits, seconds_left, window_start
from app.services.ports import Database
from app.services.tenancy.quotas import LABELS

SPEND_GUARD = "spend_guard"
"""The `reason` of an error: the limit of model calls is reached or cannot be checked."""


class Spending:
    """The count of one kind, for all tenants."""

    def __init__(
        self,
        kind: QuotaKind,
        database: Database,
        limits_of: Callable[[str], Awaitable[TenantLimits]],
        now: Callable[[], datetime],
    ) -> None:
        self._kind = kind
        self._database = database
        self._limits_of = limits_of
        self._now = now

    async def add(self, tenant_id: str, amount: int) -> None:
        """Count an amount; raises ServiceUnavailable beyond the limit of the tenant."""
        kind, now = self._kind, self._now()
        window = window_start(now, kind.window_seconds)
        try:
            limit = (await self._limits_of(tenant_id)).of(kind)
            async with self._database.session() as session:
                spent = await session.quotas.add_use(tenant_id, kind, window, amount)
        except ServiceUnavailable as exc:
            raise ServiceUnavailable(
                f"The {LABELS[kind]} cannot be counted", {"reason": SPEND_GUARD}
            ) from exc
        if limit is not None and spent > limit:
            raise ServiceUnavailable(
                f"The {limit:,} {LABELS[kind]} are used up",
                {
                    "reason": SPEND_GUARD,
                    "retry_after": seconds_left(now, window, kind.window_seconds),
                },
            )
