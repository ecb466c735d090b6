"""The spend guard: how many model calls a tenant may make in an hour (E9).

1. Every call is counted before it is made, in the database, so that all processes count together
   and a restart forgets nothing. A call that cannot be counted is not made.
2. The limiters that others maintain keep their counts in memory, Redis, Memcached, MongoDB or
   etcd, none in PostgreSQL: hence these few lines.
3. The count is of clock hours. No session is held during the call.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from app.domain.allowances import Limits
from app.domain.errors import ServiceUnavailable
from app.domain.summaries import Completion, ModelCall
from app.services.ports import Database, Gateway

WINDOW_SECONDS = 3600


class SpendGuard:
    """A gateway that counts each call for its tenant, and refuses it beyond the limit."""

    def __init__(
        self,
        gateway: Gateway,
        database: Database,
        limits_of: Callable[[str], Awaitable[Limits]],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._gateway = gateway
        self._database = database
        self._limits_of = limits_of
        self._now = now

    async def complete(self, call: ModelCall) -> Completion:
        """Return the model's answer; raises ServiceUnavailable as the gateway does, or refused."""
        try:
            most = (await self._limits_of(call.tenant_id)).summarizer_calls_per_hour
            async with self._database.session() as records:
                calls = await records.tenants.count_call(call.tenant_id, WINDOW_SECONDS)
        except ServiceUnavailable as exc:
            raise ServiceUnavailable(
                "The call of the summariser cannot be counted", {"reason": "spend_guard"}
            ) from exc
        if most is not None and calls > most:
            raise ServiceUnavailable(
                f"The {most:,} calls of the summariser for this hour are spent",
                {"reason": "spend_guard", "retry_after": self._left_seconds()},
            )
        return await self._gateway.complete(call)

    def _left_seconds(self) -> int:
        return WINDOW_SECONDS - int(self._now()) % WINDOW_SECONDS
