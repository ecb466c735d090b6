"""The quota of summariser calls over a real database.

[summary.spend-guard]
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest

from app.common.errors import ServiceUnavailable
from app.database.connections import Store
from app.models.usage import ModelCall
from app.repositories import Database
from app.tenancy.limits import SummariserQuota, TenantLimits
from tests.services.fakes import ScriptedGateway, WatchedDatabase

HOUR = datetime(2026, 1, 2, 3, tzinfo=UTC)


def call(tenant_id: str = "tenant") -> ModelCall:
    """Return a model call of this tenant."""
    return ModelCall("m", ({"role": "user", "content": "x"},), 10, 1.0, tenant_id)


def limited(calls_per_hour: int) -> Callable[[str], Awaitable[TenantLimits]]:
    """Return limits with this number of calls for every tenant but `generous`."""

    async def limits_of(tenant_id: str) -> TenantLimits:
        most = 1_000 if tenant_id == "generous" else calls_per_hour
        return TenantLimits(summarizer_calls_per_hour=most)

    return limits_of


async def refusal_facts(quota: SummariserQuota, tenant_id: str = "tenant") -> dict[str, object]:
    """Return the facts of a refused call."""
    with pytest.raises(ServiceUnavailable) as failure:
        await quota.complete(call(tenant_id))
    return dict(failure.value.facts)


async def test_calls_beyond_the_limit_are_refused_until_the_hour_ends(database: Database) -> None:
    """The calls of a tenant in all processes are counted together, and apart from others."""
    gateway, now = ScriptedGateway(), HOUR + timedelta(minutes=10)
    quotas = [
        SummariserQuota(gateway, WatchedDatabase(database), limited(4), lambda: now)
        for _ in range(2)
    ]
    await asyncio.gather(*(quotas[number % 2].complete(call()) for number in range(4)))
    for quota in quotas:
        assert await refusal_facts(quota) == {"reason": "spend_guard", "retry_after": 3000}
    assert len(gateway.calls) == 4
    await quotas[0].complete(call("another"))
    for _ in range(6):
        await quotas[0].complete(call("generous"))
    now += timedelta(minutes=50)
    await quotas[0].complete(call())


async def test_a_call_that_cannot_be_counted_is_not_made() -> None:
    """No model is called while the database is unavailable."""
    gateway = ScriptedGateway()
    away = Database(Store("postgresql://localhost:1/none"))
    quota = SummariserQuota(gateway, away, limited(1000), lambda: HOUR)
    assert await refusal_facts(quota) == {"reason": "spend_guard"}
    assert gateway.calls == []
