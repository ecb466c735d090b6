"""The spend guard: how many model calls a tenant may make in an hour (E9).

1. Every call is counted before it is made, in the database, so that all processes count together
   and a restart forgets nothing. A call that cannot be counted is not made.
2. The count is of clock hours. No session is held during the call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime

from app.domain.common.errors import ServiceUnavailable
from app.domain.compaction.summaries import Completion, ModelCall
from app.domain.tenancy.quotas import QuotaKind, TenantLimits, window_start
from app.services.ports import Database, Gateway


class SummariserQuota:
    """A gateway that counts each call for its tenant, and refuses it beyond the limit."""

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
        """Return the model's answer; raises ServiceUnavailable as the gateway does, or refused."""
        kind, now = QuotaKind.SUMMARISER_CALLS, self._now()
        window = window_start(now, kind.window_seconds)
        try:
            most = (await self._limits_of(call.tenant_id)).of(kind)
            async with self._database.session() as records:
                calls = await records.keys.take(call.tenant_id, kind, window, 1)
        except ServiceUnavailable as exc:
            raise ServiceUnavailable(
                "The call of the summariser cannot be counted", {"reason": "spend_guard"}
            ) from exc
        if most is not None and calls > most:
            left_seconds = kind.window_seconds - int((now - window).total_seconds())
            raise ServiceUnavailable(
                f"The {most:,} calls of the summariser for this hour are spent",
                {"reason": "spend_guard", "retry_after": left_seconds},
            )
        return await self._gateway.complete(call)
