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
from app.domain.common.errors import (
    Conflict,
    NotFound,
    ServiceUnavailable,
    Unauthenticated,
    ValidationError,
)
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
CACHE_SECONDS = 10.0
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


def secret(letter: str) -> str:
    """Return a secret made of one letter."""
    return letter * 43


def keys_of(database: PostgresDatabase, clock: Clock) -> KeyService:
    """Return the key service of another process."""
    return KeyService(
        database, clock.utc, lambda: clock.now_ms() / 1000, cache_seconds=CACHE_SECONDS
    )


@pytest.fixture
def clock() -> Clock:
    """A clock that moves only when a test moves it."""
    return Clock()


@pytest.fixture
async def keys(database: PostgresDatabase, clock: Clock) -> AsyncIterator[KeyService]:
    """The key service of one process, closed before the database."""
    service = keys_of(database, clock)
    yield service
    await service.close()


async def created(
    keys: KeyService, tenant_id: str = "acme", key_id: str = ID, letter: str = "s"
) -> str:
    """Create a key and return its header."""
    return f"Bearer {await keys.create(key_id, secret(letter), tenant_id, 'test', None)}"


async def test_no_key_is_required_before_the_first_one(
    keys: KeyService, database: PostgresDatabase, clock: Clock
) -> None:
    """Without keys every caller is the default tenant; the first key ends this for good."""
    assert await keys.admit("", "a") == Caller("default")
    assert await keys.admit("Bearer something", "a") == Caller("default")
    header = await created(keys_of(database, clock))
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
    """A process without requests with a key requires one as well."""
    assert await keys.admit("", "a") == Caller("default")
    await created(keys_of(database, clock))
    clock.pass_seconds(1)
    with pytest.raises(Unauthenticated):
        await keys.admit("", "a")


@pytest.mark.parametrize("letter", ["t", "S"])
async def test_a_wrong_secret_is_refused(keys: KeyService, letter: str) -> None:
    """A known or unknown id with a wrong secret is refused. [tenancy.key-storage]"""
    good = await created(keys)
    for _ in range(2):
        with pytest.raises(Unauthenticated):
            await keys.admit(f"Bearer ctx_{ID}_{secret(letter)}", "a")
        with pytest.raises(Unauthenticated):
            await keys.admit(f"Bearer ctx_{'z' * 12}_{secret('s')}", "a")
        assert await keys.admit(good, "a") == Caller("acme", ID)


async def test_a_revoked_key_is_refused_by_all_processes_soon(
    keys: KeyService, database: PostgresDatabase, clock: Clock
) -> None:
    """At once here, in another process when its cache expires; revoking twice changes nothing."""
    header, other = await created(keys), keys_of(database, clock)
    assert await other.admit(header, "a") == Caller("acme", ID)
    first = await keys.revoke(ID)
    clock.pass_seconds(5)
    assert (await keys.revoke(ID)).revoked_at == first.revoked_at
    with pytest.raises(Unauthenticated):
        await keys.admit(header, "a")
    clock.pass_seconds(CACHE_SECONDS)
    with pytest.raises(Unauthenticated):
        await other.admit(header, "a")
    with pytest.raises(NotFound):
        await keys.revoke("nothing")
    await other.close()


async def test_an_expired_key_is_refused(keys: KeyService, clock: Clock) -> None:
    """An expired key is refused to the second, cached or not."""
    text = await keys.create(ID, secret("s"), "acme", "", clock.utc() + timedelta(seconds=5))
    clock.pass_seconds(4)
    assert await keys.admit(f"Bearer {text}", "a") == Caller("acme", ID)
    clock.pass_seconds(1)
    with pytest.raises(Unauthenticated):
        await keys.admit(f"Bearer {text}", "a")


async def test_a_cached_key_needs_no_database(keys: KeyService, clock: Clock, store: Store) -> None:
    """A request costs no round trip for its key, and an outage does not end it.

    Without having seen it, nobody can be told apart.
    """
    header = await created(keys)
    await keys.admit(header, "a")
    await keys.close()
    await store.close()
    away = PostgresDatabase(Store("postgresql://127.0.0.1:1/none"))
    keys._database = away
    assert await keys.admit(header, "a") == Caller("acme", ID)
    clock.pass_seconds(2 * CACHE_SECONDS)
    assert await keys.admit(header, "a") == Caller("acme", ID)
    with pytest.raises(Unauthenticated):
        await keys.admit("", "a")
    with pytest.raises(ServiceUnavailable):
        await keys.admit(f"Bearer ctx_{'y' * 12}_{secret('s')}", "a")
    with pytest.raises(ServiceUnavailable):
        await keys_of(away, Clock()).admit("", "a")


async def test_all_uses_are_written_once_a_minute(
    keys: KeyService, database: PostgresDatabase, clock: Clock
) -> None:
    """Uses are written with their address once a minute at most; refusals are counted apart."""
    header = await created(keys)
    await keys.admit(header, "10.0.0.1")
    await keys.close()
    (first,) = await keys.list_keys()
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
    (last,) = await keys.list_keys("acme")
    assert last.last_used_at == clock.utc()
    assert await keys.list_keys("other") == []
    with pytest.raises(NotFound):
        await keys.uses("nothing", since)


async def test_a_bounded_number_of_addresses_is_counted_separately(
    keys: KeyService, clock: Clock
) -> None:
    """The counts in memory are bounded, and no use is lost."""
    header = await created(keys)
    await keys.admit(header, "first")
    await keys.close()
    for number in range(MAX_ADDRESSES + 20):
        await keys.admit(header, f"10.0.0.{number}")
    await keys.close()
    uses = await keys.uses(ID, clock.utc() - timedelta(hours=2))
    assert sum(use.admitted for use in uses) == MAX_ADDRESSES + 21
    assert {use.address: use.admitted for use in uses}[OTHER_ADDRESSES] == 21


async def test_the_bound_of_addresses_is_per_key(keys: KeyService, clock: Clock) -> None:
    """Many addresses of one key do not change the counts of another."""
    busy, calm = await created(keys), await created(keys, "other", "z" * 12)
    await keys.admit(calm, "10.0.0.1")
    await keys.close()
    for number in range(MAX_ADDRESSES + 20):
        await keys.admit(busy, f"10.0.0.{number}")
    await keys.admit(calm, "10.0.0.2")
    await keys.close()
    uses = await keys.uses("z" * 12, clock.utc() - timedelta(hours=2))
    assert {use.address for use in uses} == {"10.0.0.1", "10.0.0.2"}


async def test_uses_count_for_the_hour_of_the_request(keys: KeyService, clock: Clock) -> None:
    """A use counts for the hour of its request, also when it is written later. [quotas.requests]"""
    header = await created(keys)
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
async def test_invalid_addresses_are_not_stored(
    keys: KeyService, clock: Clock, address: str
) -> None:
    """A proxy may forward any text; text that is no address is not stored."""
    header = await created(keys)
    await keys.admit(header, address)
    await keys.close()
    (use,) = await keys.uses(ID, clock.utc() - timedelta(hours=2))
    assert (use.address, use.admitted) == (OTHER_ADDRESSES, 1)


async def test_a_failed_write_of_uses_fails_no_request(
    keys: KeyService, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither a request nor the shutdown fails, and the failure is logged."""
    header = await created(keys)
    await keys.admit(header, "10.0.0.1")
    await keys.close()
    await keys.admit(header, "10.0.0.1")
    keys._uses._database = object()  # type: ignore[assignment]
    await keys.close()
    assert "key_uses_not_written" in caplog.messages


async def test_uses_survive_an_outage(keys: KeyService, clock: Clock) -> None:
    """Uses that could not be written are written with the next ones."""
    header = await created(keys)
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


async def test_invalid_tenant_ids_get_no_key(keys: KeyService) -> None:
    """A tenant's id is checked before anything is stored."""
    with pytest.raises(ValidationError):
        await created(keys, "no such / tenant")
    assert await keys.list_keys() == []
    assert not await keys.has_keys()


async def test_unknown_keys_use_few_connections(database: PostgresDatabase, clock: Clock) -> None:
    """Unknown keys are looked up two at a time, and rarely twice."""
    watched = WatchedDatabase(database)
    keys = KeyService(watched, clock.utc, lambda: 1.0)
    guesses = [f"Bearer ctx_{number:012d}_{secret('s')}" for number in range(20)]

    async def guess(header: str) -> None:
        with pytest.raises(Unauthenticated):
            await keys.admit(header, "a")

    await asyncio.gather(*(guess(header) for header in guesses * 3))
    assert len(guesses) <= watched.opened <= len(guesses) + 5
    assert watched.most_at_once <= 2


async def test_concurrent_requests_check_once_for_a_first_key(
    database: PostgresDatabase, clock: Clock
) -> None:
    """Performance: a service without keys checks once a second, for any number of requests."""
    watched = WatchedDatabase(database)
    keys = KeyService(watched, clock.utc, lambda: clock.now_ms() / 1000)
    await keys.admit("", "a")
    for _ in range(3):
        clock.pass_seconds(1)
        before = watched.opened
        callers = await asyncio.gather(*(keys.admit("", "a") for _ in range(50)))
        assert set(callers) == {Caller("default")}
        assert watched.opened == before + 1


async def test_the_last_uses_of_a_key_are_written(database: PostgresDatabase, clock: Clock) -> None:
    """The last uses are written within a minute, without further requests."""
    uses = KeyUses(database, clock.utc, monotonic, write_seconds=0.05)
    await created(keys_of(database, clock))
    async with asyncio.timeout(20):
        for expected in (3, 6, 9):
            for _ in range(3):
                uses.count(ID, "10.0.0.1", is_admitted=True)
            while await counted(database) < expected:
                await asyncio.sleep(0.01)
    await uses.close()
    assert await counted(database) == 9


async def counted(database: PostgresDatabase) -> int:
    """Return the number of written uses of the key."""
    async with database.session() as session:
        return sum(use.admitted for use in await session.keys.uses(ID, LONG_AGO))


async def test_a_long_response_ends_with_its_key(
    keys: KeyService, database: PostgresDatabase, clock: Clock
) -> None:
    """A caller is no longer admitted once its key ends, or a first key exists."""
    nobody = await keys.admit("", "a")
    assert await keys.still_admits(nobody)
    header = await created(keys)
    caller = await keys.admit(header, "a")
    assert await keys.still_admits(caller)
    assert not await keys.still_admits(nobody)
    assert not await keys.still_admits(Caller("acme", "y" * 12))
    await keys_of(database, clock).revoke(ID)
    assert await keys.still_admits(caller), "it is held"
    clock.pass_seconds(CACHE_SECONDS)
    assert not await keys.still_admits(caller)
    keys._database = PostgresDatabase(Store("postgresql://127.0.0.1:1/none"))
    assert not await keys.still_admits(Caller("acme", "x" * 12)), "nobody can tell"


async def test_a_key_without_its_row_is_refused(
    keys: KeyService, database_url: str, clock: Clock
) -> None:
    """After a restore without its row, a key is refused when its cache expires."""
    header = await created(keys)
    await keys.admit(header, "a")
    await keys.close()
    await execute(database_url, "DELETE FROM api_keys")
    clock.pass_seconds(CACHE_SECONDS)
    for _ in range(20):
        with pytest.raises(Unauthenticated):
            await keys.admit(header, "a")
        clock.pass_seconds(1)


async def test_both_keys_work_during_the_overlap(
    keys: KeyService, database: PostgresDatabase, clock: Clock
) -> None:
    """A rotated key works until the overlap ends, its successor longer. [tenancy.key-rotation]"""
    old = await created(keys)
    await keys.create("reader000000", secret("r"), "acme", "r", None, read_only=True)
    assert await keys.admit(old, "a") == Caller("acme", ID)
    operator = keys_of(database, clock)
    text, until = await operator.rotate(ID, "b" * 12, secret("t"), timedelta(hours=2))
    assert until == clock.utc() + timedelta(hours=2)
    assert await keys.admit(f"Bearer {text}", "a") == Caller("acme", "b" * 12)
    clock.pass_seconds(7_100)
    assert await keys.admit(old, "a") == Caller("acme", ID)
    listed = await operator.list_keys("acme")
    assert {key.key_id: key.expires_at for key in listed if not key.read_only} == {
        ID: until,
        "b" * 12: None,
    }
    clock.pass_seconds(101)
    with pytest.raises(Unauthenticated):
        await keys.admit(old, "a")
    assert await keys.admit(f"Bearer {text}", "a") == Caller("acme", "b" * 12)
    with pytest.raises(Conflict):
        await operator.rotate(ID, "c" * 12, secret("u"), timedelta(hours=2))
    with pytest.raises(NotFound):
        await operator.rotate("d" * 12, "c" * 12, secret("u"), timedelta(hours=2))
    text, _ = await operator.rotate("reader000000", "e" * 12, secret("v"), timedelta(0))
    assert await keys.admit(f"Bearer {text}", "a") == Caller("acme", "e" * 12, read_only=True)
    with pytest.raises(Unauthenticated):
        await keys.admit(f"Bearer ctx_reader000000_{secret('r')}", "a")


async def test_rotation_keeps_the_lifetime(keys: KeyService, clock: Clock) -> None:
    """A key of 30 days is replaced by one of 30 days; an overlap makes no key live longer."""
    start, days = clock.utc(), timedelta(days=30)
    await keys.create(ID, secret("s"), "acme", "n", start + days)
    clock.pass_seconds(29.5 * 86_400)
    _, until = await keys.rotate(ID, "b" * 12, secret("t"), timedelta(days=7))
    assert until == start + days
    ends = {key.key_id: key.expires_at for key in await keys.list_keys("acme")}
    assert ends == {ID: start + days, "b" * 12: clock.utc() + days}
