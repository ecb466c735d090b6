"""The limits of tenants over a real database. [quotas.requests, quotas.no-round-trip]"""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from app.common.errors import ServiceUnavailable, ValidationError
from app.database.connections import Store
from app.repositories import Database
from app.tenancy.limits import CACHE_SECONDS, LimitService
from app.tenancy.repository import TenantLimits
from tests.services.fakes import Clock


def limits_of(database: Database, clock: Clock, requests: int | None) -> LimitService:
    """Return the service of another process, whose settings have this limit of requests."""
    return LimitService(database, TenantLimits(requests), lambda: clock.now_ms() / 1000)


async def admitted(limits: LimitService, tries: int, tenant_id: str = "acme") -> int:
    """Return how many of these concurrent requests are within the limit."""
    states = await asyncio.gather(*(limits.count_request(tenant_id) for _ in range(tries)))
    return sum(state is None or state.used <= state.limit for state in states)


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


class Hanging:
    """A database that fails every session, once it is told to."""

    def __init__(self) -> None:
        self.asked = 0
        self.fails = asyncio.Event()

    def session(self) -> Hanging:
        """Return a session."""
        return self

    async def __aenter__(self) -> None:
        self.asked += 1
        await self.fails.wait()
        raise ServiceUnavailable("The database does not answer", {"reason": "TimeoutError"})

    async def __aexit__(self, *_: object) -> None:
        raise AssertionError("it was never opened")


async def test_requests_do_not_wait_for_a_hanging_database(database: Database) -> None:
    """Operation: one request of a tenant reads its limits, and the others go on."""
    clock, hanging = Clock(), Hanging()
    limits = limits_of(database, clock, 50)
    assert await admitted(limits, 1) == 1
    limits._database = cast(Database, hanging)
    clock.pass_seconds(60)
    probe = asyncio.create_task(limits.count_request("acme"))
    await asyncio.sleep(0)
    assert await admitted(limits, 40) == 40
    assert hanging.asked == 1 and not probe.done()
    hanging.fails.set()
    assert await probe is not None
