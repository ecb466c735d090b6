"""The limit of model calls that a tenant's summaries may make in an hour.

1. Every call is counted in the database before it is made, so that all processes share the count
   and it outlives a restart. A call that cannot be counted is not made.
2. Hours are those of the clock. No database connection is held during the call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil

from app.common.errors import ServiceUnavailable
from app.models.model_calls import Completion, Gateway, ModelCall
from app.repositories import Database
from app.tenancy.tenant_limits import TenantLimits

SPEND_GUARD = "spend_guard"
"""The `reason` of an error: the limit of model calls is reached or cannot be checked."""
_HOUR = timedelta(hours=1)


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
            await self._count(call.tenant_id, limit)
        return await self._gateway.complete(call)

    async def _count(self, tenant_id: str, limit: int) -> None:
        now = self._now()
        hour = now.replace(minute=0, second=0, microsecond=0)
        try:
            async with self._database.session() as session:
                calls = await session.tenants.add_summarizer_call(tenant_id, hour)
        except ServiceUnavailable as exc:
            raise ServiceUnavailable(
                "The calls of the summariser cannot be counted", {"reason": SPEND_GUARD}
            ) from exc
        if calls > limit:
            seconds = max(1, ceil((hour + _HOUR - now).total_seconds()))
            raise ServiceUnavailable(
                f"The {limit:,} calls of the summariser of this hour are used up",
                {"reason": SPEND_GUARD, "retry_after": seconds},
            )
