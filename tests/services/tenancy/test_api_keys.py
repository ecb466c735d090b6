"""Checking keys over a real database: what is held, what is counted, and what ends.

[tenancy.key-required]
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from time import monotonic

import pytest

from app.adapters.postgres.common.connections import Store
from app.adapters.postgres.database import PostgresDatabase
from app.domain.common.errors import NotFound, ServiceUnavailable, Unauthenticated, ValidationError
from app.domain.tenancy.api_keys import Caller
from app.services.tenancy.api_keys import (
    MAX_ADDRESSES,
    OTHER_ADDRESSES,
    RETRY_SECONDS,
    WRITE_SECONDS,
    KeyService,
    KeyUses,
)
from tests.conftest import execute
from tests.services.fakes import Clock, WatchedDatabase

ID = "0a1b2c3d4e5f"
HELD_SECONDS = 10.0
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


def secret(letter: str) -> str:
    """Return a secret, one for each letter."""
    return letter * 43


def keys_of(database: PostgresDatabase, clock: Clock) -> KeyService:
    """Return the keys as a process of its own has them."""
    return KeyService(database, clock.utc, lambda: clock.now_ms() / 1000, held_seconds=HELD_SECONDS)


@pytest.fixture
def clock() -> Clock:
    """A clock that moves when it is told to."""
    return Clock()


@pytest.fixture
async def keys(database: PostgresDatabase, clock: Clock) -> AsyncIterator[KeyService]:
    """The keys of one process, whose writing has ended before the database goes."""
    service = keys_of(database, clock)
    yield service
    await service.close()


async def made(
    keys: KeyService, tenant_id: str = "acme", key_id: str = ID, letter: str = "s"
) -> str:
    """Make a key and return the header that brings it."""
    return f"Bearer {await keys.create(key_id, secret(letter), tenant_id, 'test', None)}"


async def test_nobody_is_asked_until_there_is_a_key(
    keys: KeyService, database: PostgresDatabase, clock: Clock
) -> None:
    """Without keys all are the default tenant; with the first one that is over for good."""
    assert await keys.admit("", "a") == Caller("default")
    assert await keys.admit("Bearer something", "a") == Caller("default")
    header = await made(keys_of(database, clock))
    assert await keys.admit(header, "a") == Caller("acme", ID)
    with pytest.raises(Unauthenticated):
        await keys.admit("", "a")
    await keys.revoke(ID)
    for refused in ("", "Bearer something", "Basic abc", header):
        with pytest.raises(Unauthenticated):
            await keys.admit(refused, "a")


async def test_another_process_sees_the_first_key_within_a_second(
    keys: KeyService, database: PostgresDatabase, clock: Clock
) -> None:
    """A process that has no request with a key learns of it all the same."""
    assert await keys.admit("", "a") == Caller("default")
    await made(keys_of(database, clock))
    clock.pass_seconds(1)
    with pytest.raises(Unauthenticated):
        await keys.admit("", "a")


@pytest.mark.parametrize("letter", ["t", "S"])
async def test_a_wrong_secret_is_refused(keys: KeyService, letter: str) -> None:
    """The right id with another secret is a stranger, known or not. [tenancy.key-storage]"""
    good = await made(keys)
    for _ in range(2):
        with pytest.raises(Unauthenticated):
            await keys.admit(f"Bearer ctx_{ID}_{secret(letter)}", "a")
        with pytest.raises(Unauthenticated):
            await keys.admit(f"Bearer ctx_{'z' * 12}_{secret('s')}", "a")
        assert await keys.admit(good, "a") == Caller("acme", ID)


async def test_a_revoked_key_ends_everywhere_soon(
    keys: KeyService, database: PostgresDatabase, clock: Clock
) -> None:
    """Here at once, in another process once what it holds is old; twice changes nothing."""
    header, other = await made(keys), keys_of(database, clock)
    assert await other.admit(header, "a") == Caller("acme", ID)
    first = await keys.revoke(ID)
    clock.pass_seconds(5)
    assert (await keys.revoke(ID)).revoked_at == first.revoked_at
    with pytest.raises(Unauthenticated):
        await keys.admit(header, "a")
    clock.pass_seconds(HELD_SECONDS)
    with pytest.raises(Unauthenticated):
        await other.admit(header, "a")
    with pytest.raises(NotFound):
        await keys.revoke("nothing")
    await other.close()


async def test_an_expired_key_ends_by_itself(keys: KeyService, clock: Clock) -> None:
    """To the second, held or not."""
    text = await keys.create(ID, secret("s"), "acme", "", clock.utc() + timedelta(seconds=5))
    clock.pass_seconds(4)
    assert await keys.admit(f"Bearer {text}", "a") == Caller("acme", ID)
    clock.pass_seconds(1)
    with pytest.raises(Unauthenticated):
        await keys.admit(f"Bearer {text}", "a")


async def test_a_held_key_needs_no_database(keys: KeyService, clock: Clock, store: Store) -> None:
    """A request costs no round trip for its key, and an outage does not end it.

    Without having seen it, nobody can be told apart.
    """
    header = await made(keys)
    await keys.admit(header, "a")
    await keys.close()
    await store.close()
    away = PostgresDatabase(Store("postgresql://127.0.0.1:1/none"))
    keys._database = away
    assert await keys.admit(header, "a") == Caller("acme", ID)
    clock.pass_seconds(2 * HELD_SECONDS)
    assert await keys.admit(header, "a") == Caller("acme", ID)
    with pytest.raises(Unauthenticated):
        await keys.admit("", "a")
    with pytest.raises(ServiceUnavailable):
        await keys.admit(f"Bearer ctx_{'y' * 12}_{secret('s')}", "a")
    with pytest.raises(ServiceUnavailable):
        await keys_of(away, Clock()).admit("", "a")


async def test_uses_are_written_seldom_and_all(
    keys: KeyService, database: PostgresDatabase, clock: Clock
) -> None:
    """Once a minute at most, from where and how often; refusals are counted apart."""
    header = await made(keys)
    await keys.admit(header, "10.0.0.1")
    await keys.close()
    (first,) = await keys.of_tenant()
    assert first.last_used_at == clock.utc()
    since = clock.utc() - timedelta(hours=2)
    clock.pass_seconds(WRITE_SECONDS / 2)
    for address in ("10.0.0.1", "10.0.0.1", "10.0.0.2"):
        await keys.admit(header, address)
    with pytest.raises(Unauthenticated):
        await keys.admit(f"Bearer ctx_{ID}_{secret('x')}", "10.0.0.3")
    assert [(use.address, use.admitted) for use in await keys.uses(ID, since)] == [("10.0.0.1", 1)]
    other = keys_of(database, clock)
    await asyncio.gather(*(other.admit(header, "10.0.0.1") for _ in range(5)))
    await other.close()
    await keys.close()
    counted = {u.address: (u.admitted, u.refused) for u in await keys.uses(ID, since)}
    assert counted == {"10.0.0.1": (8, 0), "10.0.0.2": (1, 0), "10.0.0.3": (0, 1)}
    (last,) = await keys.of_tenant("acme")
    assert last.last_used_at == clock.utc()
    assert await keys.of_tenant("other") == []
    with pytest.raises(NotFound):
        await keys.uses("nothing", since)


async def test_many_addresses_are_told_apart_up_to_a_number(keys: KeyService, clock: Clock) -> None:
    """What is counted in between has a bound, and no use is lost by it."""
    header = await made(keys)
    await keys.admit(header, "first")
    await keys.close()
    for number in range(MAX_ADDRESSES + 20):
        await keys.admit(header, f"10.0.0.{number}")
    await keys.close()
    uses = await keys.uses(ID, clock.utc() - timedelta(hours=2))
    assert sum(use.admitted for use in uses) == MAX_ADDRESSES + 21
    assert {use.address: use.admitted for use in uses}[OTHER_ADDRESSES] == 21


async def test_keys_do_not_take_each_others_addresses(keys: KeyService, clock: Clock) -> None:
    """What one key's holder does changes nothing in what is told of another's."""
    busy, calm = await made(keys), await made(keys, "other", "z" * 12)
    await keys.admit(calm, "10.0.0.1")
    await keys.close()
    for number in range(MAX_ADDRESSES + 20):
        await keys.admit(busy, f"10.0.0.{number}")
    await keys.admit(calm, "10.0.0.2")
    await keys.close()
    uses = await keys.uses("z" * 12, clock.utc() - timedelta(hours=2))
    assert {use.address for use in uses} == {"10.0.0.1", "10.0.0.2"}


async def test_uses_are_told_of_their_hour(keys: KeyService, clock: Clock) -> None:
    """A use counts for the hour it came in, however much later it is written. [quotas.requests]"""
    header = await made(keys)
    await keys.admit(header, "10.0.0.1")
    await keys.close()
    clock.pass_seconds(3600)
    await keys.admit(header, "10.0.0.1")
    clock.pass_seconds(3 * 3600)
    await keys.admit(header, "10.0.0.1")
    await keys.close()
    uses = await keys.uses(ID, clock.utc() - timedelta(hours=9))
    assert [use.admitted for use in uses] == [1, 1, 1]
    hours = [use.hour for use in uses]
    assert [hours[0] - hour for hour in hours] == [timedelta(hours=n) for n in (0, 3, 4)]


@pytest.mark.parametrize("address", ["", "x" * 20_000, "\x00", "6.6.6.6, 7.7.7.7", "\ud800"])
async def test_odd_addresses_break_no_audit(keys: KeyService, clock: Clock, address: str) -> None:
    """A proxy passes on whatever it is told; what is no address is not kept."""
    header = await made(keys)
    await keys.admit(header, address)
    await keys.close()
    (use,) = await keys.uses(ID, clock.utc() - timedelta(hours=2))
    assert (use.address, use.admitted) == (OTHER_ADDRESSES, 1)


async def test_an_audit_that_fails_fails_nobody(
    keys: KeyService, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither a request nor the end of the process, and the log says so."""
    header = await made(keys)
    await keys.admit(header, "10.0.0.1")
    await keys.close()
    await keys.admit(header, "10.0.0.1")
    keys._uses._database = object()  # type: ignore[assignment]
    await keys.close()
    assert "key_uses_not_written" in caplog.messages


async def test_uses_survive_an_outage(keys: KeyService, clock: Clock) -> None:
    """What could not be written is written with the next."""
    header = await made(keys)
    away = PostgresDatabase(Store("postgresql://127.0.0.1:1/x"))
    database, keys._database = keys._database, away
    with pytest.raises(ServiceUnavailable):
        await keys.admit(header, "a")
    keys._database = database
    with pytest.raises(ServiceUnavailable):
        await keys.admit(header, "a")
    clock.pass_seconds(RETRY_SECONDS)
    await keys.admit(header, "a")
    keys._uses._database = away
    await keys.close()
    keys._uses._database = database
    await keys.close()
    (use,) = await keys.uses(ID, clock.utc() - timedelta(hours=2))
    assert use.admitted == 1


async def test_odd_tenants_get_no_key(keys: KeyService) -> None:
    """A tenant's id is checked before anything is stored."""
    with pytest.raises(ValidationError):
        await made(keys, "no such / tenant")
    assert await keys.of_tenant() == []
    assert not await keys.has_keys()


async def test_guesses_leave_the_connections_to_others(
    database: PostgresDatabase, clock: Clock
) -> None:
    """Keys nobody knows are looked up two at once, and hardly one of them twice."""
    watched = WatchedDatabase(database)
    keys = KeyService(watched, clock.utc, lambda: 1.0)
    guesses = [f"Bearer ctx_{number:012d}_{secret('s')}" for number in range(20)]

    async def guess(header: str) -> None:
        with pytest.raises(Unauthenticated):
            await keys.admit(header, "a")

    await asyncio.gather(*(guess(header) for header in guesses * 3))
    assert len(guesses) <= watched.opened <= len(guesses) + 5
    assert watched.most_at_once <= 2


async def test_a_crowd_asks_once_whether_there_is_a_key(
    database: PostgresDatabase, clock: Clock
) -> None:
    """Performance: a service without keys asks once a second, however many come."""
    watched = WatchedDatabase(database)
    keys = KeyService(watched, clock.utc, lambda: clock.now_ms() / 1000)
    await keys.admit("", "a")
    for _ in range(3):
        clock.pass_seconds(1)
        before = watched.opened
        callers = await asyncio.gather(*(keys.admit("", "a") for _ in range(50)))
        assert set(callers) == {Caller("default")}
        assert watched.opened == before + 1


async def test_a_key_that_falls_silent_is_audited(database: PostgresDatabase, clock: Clock) -> None:
    """Its last uses are written within the minute, though nobody comes after them."""
    uses = KeyUses(database, clock.utc, monotonic, write_seconds=0.05)
    await made(keys_of(database, clock))
    async with asyncio.timeout(20):
        for expected in (3, 6, 9):
            for _ in range(3):
                uses.count(ID, "10.0.0.1", is_admitted=True)
            while await counted(database) < expected:
                await asyncio.sleep(0.01)
    await uses.close()
    assert await counted(database) == 9


async def counted(database: PostgresDatabase) -> int:
    """Return how many uses of the key are written."""
    async with database.session() as session:
        return sum(use.admitted for use in await session.keys.uses(ID, LONG_AGO))


async def test_what_lasts_asks_again(
    keys: KeyService, database: PostgresDatabase, clock: Clock
) -> None:
    """Who was admitted is not any more once the key ends, or once there is a first one."""
    nobody = await keys.admit("", "a")
    assert await keys.still_admits(nobody)
    header = await made(keys)
    caller = await keys.admit(header, "a")
    assert await keys.still_admits(caller)
    assert not await keys.still_admits(nobody)
    assert not await keys.still_admits(Caller("acme", "y" * 12))
    await keys_of(database, clock).revoke(ID)
    assert await keys.still_admits(caller), "it is held"
    clock.pass_seconds(HELD_SECONDS)
    assert not await keys.still_admits(caller)
    keys._database = PostgresDatabase(Store("postgresql://127.0.0.1:1/none"))
    assert not await keys.still_admits(Caller("acme", "x" * 12)), "nobody can tell"


async def test_a_key_whose_row_is_gone_is_unknown(
    keys: KeyService, database_url: str, clock: Clock
) -> None:
    """After a restore that lost it, a key is refused once what is held is old, and stays so."""
    header = await made(keys)
    await keys.admit(header, "a")
    await keys.close()
    await execute(database_url, "DELETE FROM api_keys")
    clock.pass_seconds(HELD_SECONDS)
    for _ in range(20):
        with pytest.raises(Unauthenticated):
            await keys.admit(header, "a")
        clock.pass_seconds(1)
