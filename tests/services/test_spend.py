"""The spend guard over a real database: no tenant calls models without end (E9)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from app.adapters.postgres.database import PostgresDatabase
from app.adapters.postgres.store import Store
from app.domain.allowances import Limits
from app.domain.errors import ServiceUnavailable
from app.domain.summaries import ModelCall
from app.services.spend import WINDOW_SECONDS, SpendGuard
from tests.conftest import execute
from tests.services.fakes import ScriptedGateway, WatchedDatabase


def call(tenant_id: str = "tenant") -> ModelCall:
    """Return a call made for this tenant."""
    return ModelCall("m", ({"role": "user", "content": "x"},), 10, 1.0, tenant_id)


def limited(calls_per_hour: int) -> Callable[[str], Awaitable[Limits]]:
    """Return limits that allow every tenant but `generous` so many calls."""

    async def limits_of(tenant_id: str) -> Limits:
        most = 1_000 if tenant_id == "generous" else calls_per_hour
        return Limits(summarizer_calls_per_hour=most)

    return limits_of


async def refused(guard: SpendGuard, tenant_id: str = "tenant") -> dict[str, object]:
    """Return the facts of a refused call."""
    with pytest.raises(ServiceUnavailable) as failure:
        await guard.complete(call(tenant_id))
    return dict(failure.value.facts)


async def test_calls_beyond_the_limit_are_refused_until_the_hour_ends(
    database: PostgresDatabase,
) -> None:
    """E9: the tenant's calls of all processes count together; other tenants are not touched."""
    gateway = ScriptedGateway()
    guards = [
        SpendGuard(gateway, WatchedDatabase(database), limited(4), lambda: 7200.0 + 600.0)
        for _ in range(2)
    ]
    await asyncio.gather(*(guards[number % 2].complete(call()) for number in range(4)))
    for guard in guards:
        assert await refused(guard) == {"reason": "spend_guard", "retry_after": 3000}
    assert len(gateway.calls) == 4
    await guards[0].complete(call("another"))
    for _ in range(6):
        await guards[0].complete(call("generous"))


async def test_a_call_that_cannot_be_counted_is_not_made() -> None:
    """E9: without the database no model is called."""
    gateway = ScriptedGateway()
    guard = SpendGuard(
        gateway, PostgresDatabase(Store("postgresql://localhost:1/none")), limited(1000)
    )
    assert await refused(guard) == {"reason": "spend_guard"}
    assert gateway.calls == []


async def test_past_hours_are_forgotten(database: PostgresDatabase, database_url: str) -> None:
    """E9: counting removes the tenant's earlier windows, and starts from one in each."""
    await execute(
        database_url,
        "INSERT INTO summariser_calls (tenant_id, window_start, calls) VALUES"
        " ('tenant', now() - interval '2 hours', 999), ('other', now() - interval '2 hours', 5)",
    )
    async with database.session() as records:
        counted = [await records.tenants.count_call("tenant", WINDOW_SECONDS) for _ in range(3)]
    assert counted == [1, 2, 3]
    rows = await execute(
        database_url,
        "SELECT tenant_id, calls, window_start = date_trunc('hour', now()) AS is_this"
        " FROM summariser_calls ORDER BY tenant_id",
    )
    assert [tuple(row) for row in rows] == [("other", 5, False), ("tenant", 3, True)]
