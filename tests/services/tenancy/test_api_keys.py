"""Checking keys over a real database: what is held, what is counted, and what ends.

[tenancy.key-required]
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import pytest

from app.common.errors import Conflict, NotFound, RateLimited, ServiceUnavailable, Unauthenticated
from app.database.connections import Store
from app.repositories import Database
from app.tenancy.api_keys import Caller
from app.tenancy.service import KeyService
from tests.services.fakes import Clock

ID = "0a1b2c3d4e5f"
CACHE_SECONDS = 10.0


def secret(letter: str) -> str:
    """Return a secret made of one letter."""
    return letter * 43


def keys_of(database: Database, clock: Clock) -> KeyService:
    """Return the key service of another process."""
    return KeyService(
        database, clock.utc, lambda: clock.now_ms() / 1000, cache_seconds=CACHE_SECONDS
    )


@pytest.fixture
def clock() -> Clock:
    """A clock that moves only when a test moves it."""
    return Clock()


@pytest.fixture
async def keys(database: Database, clock: Clock) -> AsyncIterator[KeyService]:
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
    keys: KeyService, database: Database, clock: Clock
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
    keys: KeyService, database: Database, clock: Clock
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
    away = Database(Store("postgresql://127.0.0.1:1/none"))
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


async def test_the_last_use_of_a_key_is_written(
    keys: KeyService, database: Database, clock: Clock
) -> None:
    """It is the time of the last admitted request of any process. [tenancy.key-last-use]"""
    header = await created(keys)
    with pytest.raises(Unauthenticated):
        await keys.admit(f"Bearer ctx_{ID}_{secret('x')}", "10.0.0.3")
    await keys.close()
    assert await last_use(keys) is None
    await keys.admit(header, "10.0.0.1")
    first = clock.utc()
    assert await last_use(keys) is None
    await keys.close()
    assert await last_use(keys) == first
    clock.pass_seconds(30)
    other = keys_of(database, clock)
    await asyncio.gather(*(other.admit(header, "10.0.0.1") for _ in range(5)))
    await keys.admit(header, "10.0.0.1")
    clock.pass_seconds(30)
    await keys.admit(header, "10.0.0.1")
    await keys.close()
    await other.close()
    assert await last_use(keys) == clock.utc() != first
    assert await keys.list_keys("other") == []


async def last_use(keys: KeyService) -> datetime | None:
    """Return the stored time of the key's last use."""
    return next(key.last_used_at for key in await keys.list_keys() if key.key_id == ID)


async def test_a_long_response_ends_with_its_key(
    keys: KeyService, database: Database, clock: Clock
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
    keys._database = Database(Store("postgresql://127.0.0.1:1/none"))
    assert not await keys.still_admits(Caller("acme", "x" * 12)), "nobody can tell"


async def test_both_keys_work_during_the_overlap(
    keys: KeyService, database: Database, clock: Clock
) -> None:
    """A rotated key works until the overlap ends, its successor longer. [tenancy.key-rotation]"""
    old = await created(keys)
    await keys.create("reader000000", secret("r"), "acme", "r", None, read_only=True)
    assert await keys.admit(old, "a") == Caller("acme", ID)
    operator = keys_of(database, clock)
    text, old_key = await operator.rotate(ID, "b" * 12, secret("t"), timedelta(hours=2))
    assert old_key.expires_at == clock.utc() + timedelta(hours=2)
    assert await keys.admit(f"Bearer {text}", "a") == Caller("acme", "b" * 12)
    clock.pass_seconds(7_100)
    assert await keys.admit(old, "a") == Caller("acme", ID)
    listed = await operator.list_keys("acme")
    assert {key.key_id: key.expires_at for key in listed if not key.read_only} == {
        ID: old_key.expires_at,
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


HERE, ELSEWHERE = "192.0.2.7", "192.0.2.8"


async def refusal(keys: KeyService, header: str, address: str = HERE) -> type[Exception]:
    """Return the error for a refused key."""
    with pytest.raises((Unauthenticated, RateLimited)) as caught:
        await keys.admit(header, address)
    if isinstance(caught.value, RateLimited):
        assert 0 < caught.value.facts["retry_after"] <= 60
    return caught.type


async def test_a_valid_key_passes_beside_any_number_of_guesses(
    database: Database, clock: Clock
) -> None:
    """Guesses over the limit are RateLimited until the minute ends; valid keys always pass.

    [tenancy.guessing]
    """
    reasons: list[str] = []
    now, limit = lambda: clock.now_ms() / 1000, 3
    keys = KeyService(database, clock.utc, now, refused_per_minute=limit, refused=reasons.append)
    header = await created(keys)
    other = await created(keys, key_id="f" * 12)
    guesses = [header.replace("s" * 43, "w" * 43), "Bearer ctx_nothing", f"Bearer ctx_{'0' * 12}_"]
    guesses[2] += secret("w")
    assert [await refusal(keys, guess) for guess in guesses] == [Unauthenticated] * limit
    assert (await keys.admit(header, HERE)).tenant_id == "acme"
    for guess in (*guesses, *(f"Bearer ctx_{n:012}_{secret('w')}" for n in range(20))):
        assert await refusal(keys, guess) is RateLimited
        assert (await keys.admit(header, HERE)).tenant_id == "acme"
    assert (await keys.admit(other, HERE)).key_id == "f" * 12  # not in the cache before
    assert await refusal(keys, guesses[0], ELSEWHERE) is Unauthenticated
    with pytest.raises(Unauthenticated):  # without any key there is no guess
        await keys.admit("", HERE)
    clock.pass_seconds(60)
    assert await refusal(keys, guesses[0]) is Unauthenticated
    assert Counter(reasons) == Counter(
        {"wrong_secret": 3, "malformed": 1, "unknown": 1, "rate_limited": 23}
    )
    await keys.close()
