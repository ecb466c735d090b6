"""The limit of model calls that a tenant's summaries may make in an hour."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime

from app.domain.compaction.summaries.model_calls import Completion, ModelCall
from app.domain.tenancy.quotas import QuotaKind, TenantLimits
from app.services.ports import Database, Gateway
from app.services.tenancy.spending import Spending


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
        self._spending = Spending(QuotaKind.SUMMARISER_CALLS, database, limits_of, now)

    async def complete(self, call: ModelCall) -> Completion:
        """Return the model's answer; raises ServiceUnavailable when refused or failed."""
        await self._spending.add(call.tenant_id, 1)
        return await self._gateway.complete(call)
