"""The limits of tenants over a real database. [quotas.requests, quotas.no-round-trip]"""

from __future__ import annotations

import asyncio

import pytest

from app.common.errors import RateLimited, ValidationError
from app.database.connections import Store
from app.repositories import Database
from app.tenancy.limits import CACHE_SECONDS, LimitService, TenantLimits
from tests.services.fakes import Clock


def limits_of(database: Database, clock: Clock, requests: int | None) -> LimitService:
    """Return the service of another process, whose settings have this limit of requests."""
    return LimitService(database, TenantLimits(requests), lambda: clock.now_ms() / 1000)


async def admitted(limits: LimitService, tries: int, tenant_id: str = "acme") -> int:
    """Return how many of these concurrent requests are within the limit."""
    asked = [limits.count_request(tenant_id) for _ in range(tries)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert all(answer is None or isinstance(answer, RateLimited) for answer in answers)
    return answers.count(None)


async def test_a_minute_has_its_limit(database: Database) -> None:
    """Security: a process admits the limit of a minute to each tenant, and again in the next."""
    clock = Clock()
    limits = limits_of(database, clock, 7)
    for _ in range(2):
        assert await admitted(limits, 20) == 7
        assert await admitted(limits, 20, "other") == 7
        clock.pass_seconds(60)


async def test_a_new_limit_applies_within_seconds(database: Database) -> None:
    """Security: a new limit applies within seconds, also when the old one was used up."""
    clock = Clock()
    limits, operator = limits_of(database, clock, 1), limits_of(database, clock, None)
    assert await admitted(limits, 3) == 1
    await operator.set("acme", TenantLimits(requests_per_minute=40))
    assert await operator.all() == {"acme": TenantLimits(requests_per_minute=40)}
    clock.pass_seconds(CACHE_SECONDS)
    assert (await limits.of("acme")).requests_per_minute == 40
    assert await admitted(limits, 50) == 37
    with pytest.raises(ValidationError):
        await operator.set("no / tenant", TenantLimits())


async def test_the_last_known_limits_apply_during_an_outage(database: Database) -> None:
    """Operation: without a database the last known limits apply, or those of the settings."""
    clock = Clock()
    limits = limits_of(database, clock, 5)
    await limits.set("acme", TenantLimits(requests_per_minute=2))
    assert (await limits.of("acme")).requests_per_minute == 2
    limits._database = Database(Store("postgresql://127.0.0.1:1/none"))
    clock.pass_seconds(60)
    assert await admitted(limits, 5) == 2
    assert await admitted(limits, 9, "new") == 5
