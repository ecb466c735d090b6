"""Allowances over a real database: several processes together never grant too much.

[quotas.requests, quotas.no-round-trip]
"""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from app.adapters.postgres.common.connections import Store
from app.adapters.postgres.database import PostgresDatabase
from app.domain.common.errors import RateLimited, ServiceUnavailable, ValidationError
from app.domain.tenancy.quotas import QuotaKind, QuotaState, TenantLimits
from app.services.tenancy.quotas import QuotaService
from tests.conftest import execute
from tests.patience import PATIENCE_SECONDS
from tests.services.fakes import Clock, WatchedDatabase

CACHE_SECONDS = 10.0


def quotas_of(database: PostgresDatabase, clock: Clock, limits: TenantLimits) -> QuotaService:
    """Return the quota service of another process."""
    return QuotaService(
        database, limits, clock.utc, lambda: clock.now_ms() / 1000, cache_seconds=CACHE_SECONDS
    )


async def granted(processes: list[QuotaService], tries: int, tenant_id: str = "acme") -> int:
    """Return how many of these concurrent requests, spread over processes, are admitted."""

    async def one(number: int) -> bool:
        try:
            await processes[number % len(processes)].take(tenant_id, QuotaKind.REQUESTS)
        except RateLimited:
            return False
        return True

    return sum(await asyncio.gather(*(one(number) for number in range(tries))))


@pytest.mark.parametrize("limit", [1, 7, 50, 130])
async def test_processes_share_one_limit(database: PostgresDatabase, limit: int) -> None:
    """Security: processes together admit the limit of a minute, and again in the next one."""
    clock = Clock()
    limits = TenantLimits(requests_per_minute=limit)
    processes = [quotas_of(database, clock, limits) for _ in range(2)]
    for _ in range(2):
        got = await granted(processes, 3 * limit)
        # A share that the other process has taken and not spent is not given twice.
        assert limit - limit // 20 <= got <= limit
        assert await granted(processes[:1], limit) <= limit // 20
        clock.pass_seconds(60)
    assert await granted(processes, limit, "other") >= limit - limit // 20


async def test_a_refusal_has_the_limit_and_the_retry_time(database: PostgresDatabase) -> None:
    """RATE_LIMITED names the limit, and the seconds until the window ends. [api.limits]"""
    clock = Clock()
    quotas = quotas_of(database, clock, TenantLimits(requests_per_minute=1))
    await quotas.take("acme", QuotaKind.REQUESTS)
    with pytest.raises(RateLimited) as refusal:
        await quotas.take("acme", QuotaKind.REQUESTS)
    facts = refusal.value.facts
    assert (facts["limit"], facts["kind"]) == (1, "requests")
    assert 1 <= facts["retry_after"] <= 61
    clock.pass_seconds(facts["retry_after"])
    await quotas.take("acme", QuotaKind.REQUESTS)


async def test_a_refused_body_uses_no_quota(database: PostgresDatabase) -> None:
    """Security: a body larger than the remaining quota is refused, smaller ones are admitted."""
    quotas = quotas_of(database, Clock(), TenantLimits(bytes_per_day=100))
    with pytest.raises(RateLimited):
        await quotas.take("acme", QuotaKind.BYTES, 101)
    await quotas.take("acme", QuotaKind.BYTES, 60)
    with pytest.raises(RateLimited):
        await quotas.take("acme", QuotaKind.BYTES, 41)
    await quotas.take("acme", QuotaKind.BYTES, 40)
    await quotas.take("acme", QuotaKind.BYTES, 0)
    with pytest.raises(RateLimited):
        await quotas.take("acme", QuotaKind.BYTES, 1)


async def test_a_new_limit_applies_within_seconds(database: PostgresDatabase) -> None:
    """Security: a new limit applies within seconds, also when the old one was used up."""
    clock = Clock()
    quotas = quotas_of(database, clock, TenantLimits(requests_per_minute=1))
    operator = quotas_of(database, clock, TenantLimits())
    assert await granted([quotas], 3) == 1
    await operator.set_limits("acme", TenantLimits(requests_per_minute=40))
    assert await operator.all_limits() == {"acme": TenantLimits(requests_per_minute=40)}
    clock.pass_seconds(CACHE_SECONDS)
    assert (await quotas.limits_of("acme")).requests_per_minute == 40
    # One was granted, and one was asked for in vain.
    assert await granted([quotas], 50) == 38
    with pytest.raises(ValidationError):
        await operator.set_limits("no / tenant", TenantLimits())


async def test_without_a_limit_nothing_is_counted(
    database: PostgresDatabase, database_url: str
) -> None:
    """Performance: a tenant without a limit costs one read every few seconds, and no row."""
    quotas = quotas_of(database, Clock(), TenantLimits())
    assert await granted([quotas], 100) == 100
    await quotas.take("acme", QuotaKind.BYTES, 10**12)
    assert await execute(database_url, "SELECT * FROM allowances") == []


async def test_shares_save_round_trips(database: PostgresDatabase, database_url: str) -> None:
    """Performance: a thousand requests under a large limit cost one or two statements."""
    quotas = quotas_of(database, Clock(), TenantLimits(requests_per_minute=20_000))
    assert await granted([quotas], 1_000) == 1_000
    ((taken,),) = await execute(database_url, "SELECT taken FROM allowances")
    assert taken == 1_000


async def test_requests_are_admitted_while_the_database_is_unavailable(
    database: PostgresDatabase,
) -> None:
    """Operation: the last known limits apply during an outage, and nothing is counted."""
    clock = Clock()
    quotas = quotas_of(database, clock, TenantLimits(requests_per_minute=5))
    await quotas.set_limits("acme", TenantLimits(requests_per_minute=2))
    assert await granted([quotas], 5) == 2
    quotas._database = PostgresDatabase(Store("postgresql://127.0.0.1:1/none"))
    clock.pass_seconds(60)
    assert await granted([quotas], 5) == 5
    assert (await quotas.limits_of("acme")).requests_per_minute == 2
    assert (await quotas.limits_of("new")).requests_per_minute == 5
    quotas._database = database
    clock.pass_seconds(60)
    await quotas.take("acme", QuotaKind.REQUESTS)  # finds that it is back; none would wait for that
    assert await granted([quotas], 5) == 1


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


async def test_requests_do_not_wait_for_a_hanging_database(database: PostgresDatabase) -> None:
    """Operation: requests wait for one failed attempt at most, and later ones for none."""
    clock, hanging = Clock(), Hanging()
    quotas = quotas_of(database, clock, TenantLimits(requests_per_minute=50))
    assert await granted([quotas], 1) == 1
    quotas._database = cast(PostgresDatabase, hanging)
    clock.pass_seconds(60)
    crowd = [asyncio.create_task(quotas.take("acme", QuotaKind.REQUESTS)) for _ in range(40)]
    async with asyncio.timeout(PATIENCE_SECONDS):
        while hanging.asked == 0:
            await asyncio.sleep(0)
        hanging.fails.set()
        await asyncio.gather(*crowd)
        # Two questions at most: what the tenant's limits are, and for a share of them.
        assert hanging.asked <= 2
        hanging.fails.clear()
        clock.pass_seconds(1)
        probe = asyncio.create_task(quotas.take("acme", QuotaKind.REQUESTS))
        asked = hanging.asked
        while hanging.asked == asked:
            await asyncio.sleep(0)
        asked = hanging.asked
        assert await granted([quotas], 40) == 40, "one asks again, the others go on"
        assert hanging.asked == asked and not probe.done()
        hanging.fails.set()
        await probe
    quotas._database = database
    clock.pass_seconds(60)
    await quotas.take("acme", QuotaKind.REQUESTS)
    assert await granted([quotas], 100) == 49


async def test_concurrent_requests_read_the_limits_once(database: PostgresDatabase) -> None:
    """Performance: the first concurrent requests of a tenant read its limits once."""
    watched = WatchedDatabase(database)
    quotas = QuotaService(watched, TenantLimits(), Clock().utc, lambda: 1.0)
    opened = watched.opened
    assert await granted([quotas], 50) == 50
    assert watched.opened == opened + 1


async def test_states_tell_what_is_left(database: PostgresDatabase) -> None:
    """What is left goes down with each request and each share of another process, at no read.

    [quotas.headers]
    """
    clock, limits = Clock(), TenantLimits(requests_per_minute=100, bytes_per_day=1_000)
    mine, other = (quotas_of(database, clock, limits) for _ in range(2))
    assert mine.states("acme") == [], "nothing is read yet"
    await other.take("acme", QuotaKind.REQUESTS)
    await mine.take("acme", QuotaKind.REQUESTS)
    share = 100 // 20
    requests, sent = mine.states("acme")
    assert (requests.kind, requests.limit) == (QuotaKind.REQUESTS, 100)
    assert requests.remaining == 100 - share - 1, "the other's share counts as used"
    assert 1 <= requests.reset_seconds <= 60 < sent.reset_seconds <= 86_400
    assert (sent.limit, sent.remaining) == (1_000, None), "no bytes were counted here"
    for used in range(2, 20):
        await mine.take("acme", QuotaKind.REQUESTS)
        assert mine.states("acme")[0].remaining == 100 - share - used
    await mine.take("acme", QuotaKind.BYTES, 300)
    assert mine.states("acme")[1] == QuotaState(QuotaKind.BYTES, 1_000, 700, sent.reset_seconds)
    assert await granted([mine], 200) == 100 - share - 19
    assert mine.states("acme")[0].remaining == 0
    clock.pass_seconds(60)
    assert mine.states("acme")[0].remaining is None, "a new minute has begun"
