"""The limit of model calls that a tenant's summaries may make in an hour.

1. Every call is counted in the database before it is made, so that all processes share the count
   and it outlives a restart. A call that cannot be counted is not made.
2. The count is of clock hours. No database connection is held during the call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime

from app.domain.common.errors import ServiceUnavailable
from app.domain.compaction.summaries.model_calls import Completion, ModelCall
from app.domain.tenancy.quotas import QuotaKind, TenantLimits, window_start
from app.services.ports import Database, Gateway

SPEND_GUARD = "spend_guard"
"""The `reason` of an error: the hourly limit of model calls is reached or cannot be checked."""


class SummariserQuota:
    """A gateway that counts the calls of each tenant and refuses those beyond the limit."""

    def __init__(
        self,
        gateway: Gateway,
        database: Database,
        limits_of: Callable[[str], Awaitable[TenantLimits]],
        now: Callable[[], datetime],
    ) -> None:
        self._gateway = gateway
        self._database = database
        self._limits_of = limits_of
        self._now = now

    async def complete(self, call: ModelCall) -> Completion:
        """Return the model's answer; raises ServiceUnavailable when refused or failed."""
        kind, now = QuotaKind.SUMMARISER_CALLS, self._now()
        window = window_start(now, kind.window_seconds)
        try:
            limit = (await self._limits_of(call.tenant_id)).of(kind)
            async with self._database.session() as session:
                calls = await session.quotas.add_use(call.tenant_id, kind, window, 1)
        except ServiceUnavailable as exc:
            raise ServiceUnavailable(
                "The call of the summariser cannot be counted", {"reason": SPEND_GUARD}
            ) from exc
        if limit is not None and calls > limit:
            remaining_seconds = kind.window_seconds - int((now - window).total_seconds())
            raise ServiceUnavailable(
                f"The {limit:,} calls of the summariser for this hour are used up",
                {"reason": SPEND_GUARD, "retry_after": remaining_seconds},
            )
        return await self._gateway.complete(call)
