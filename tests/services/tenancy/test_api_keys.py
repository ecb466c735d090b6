"""Checking keys over a real database: what is held, and what ends. [tenancy.key-required]"""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from app.common.errors import (
    Conflict,
    NotFound,
    ServiceUnavailable,
    Unauthenticated,
    ValidationError,
)
from app.database.connections import Store
from app.repositories import Database
from app.tenancy.api_keys import CACHE_SECONDS, Caller, KeyService
from tests.services.fakes import Clock

AWAY = "postgresql://127.0.0.1:1/none"


def keys_of(database: Database, clock: Clock) -> KeyService:
    """Return the key service of another process."""
    return KeyService(database, clock.utc, lambda: clock.now_ms() / 1000)


@pytest.fixture
def clock() -> Clock:
    """A clock that moves only when a test moves it."""
    return Clock()


@pytest.fixture
def keys(database: Database, clock: Clock) -> KeyService:
    """The key service of one process."""
    return keys_of(database, clock)


async def created(keys: KeyService, expires_at: datetime | None = None) -> tuple[str, Caller]:
    """Create a key and return its header, and its caller."""
    text = await keys.create("acme", "test", expires_at)
    return f"Bearer {text}", Caller("acme", text.split("_")[1])


async def assert_refused(keys: KeyService, *headers: str) -> None:
    """Each of these headers is refused."""
    for header in headers:
        with pytest.raises(Unauthenticated):
            await keys.admit(header)


async def test_a_wrong_secret_is_refused(keys: KeyService) -> None:
    """A known or unknown id with a wrong secret is refused. [tenancy.key-storage]"""
    good, caller = await created(keys)
    (stored,) = await keys.list_keys()
    assert good.split("_", 2)[2] not in repr(stored)
    for _ in range(2):
        unknown = good.replace(str(caller.key_id), "z" * 12)
        await assert_refused(keys, good[:-43] + "w" * 43, good[:-1], unknown)
        assert await keys.admit(good) == caller


async def test_a_revoked_key_is_refused_by_all_processes_soon(
    keys: KeyService, database: Database, clock: Clock
) -> None:
    """At once here, in another process when its cache expires; revoking twice changes nothing."""
    (header, caller), other = await created(keys), keys_of(database, clock)
    key_id = str(caller.key_id)
    assert await other.admit(header) == caller
    first = await keys.revoke(key_id)
    clock.pass_seconds(5)
    assert (await keys.revoke(key_id)).revoked_at == first.revoked_at
    await assert_refused(keys, header)
    clock.pass_seconds(CACHE_SECONDS)
    await assert_refused(other, header)
    with pytest.raises(NotFound):
        await keys.revoke("nothing")


async def test_an_expiry_can_be_changed(keys: KeyService, clock: Clock) -> None:
    """It holds to the second, and can be sooner, later and never. [tenancy.expiry]"""
    header, caller = await created(keys, clock.utc() + timedelta(seconds=5))
    key_id = str(caller.key_id)
    clock.pass_seconds(4)
    assert await keys.admit(header) == caller
    clock.pass_seconds(1)
    await assert_refused(keys, header)
    assert (await keys.expire(key_id, None)).expires_at is None
    assert await keys.admit(header) == caller
    await keys.expire(key_id, clock.utc())
    await assert_refused(keys, header)
    await keys.revoke(key_id)
    with pytest.raises(Conflict):
        await keys.expire(key_id, None)
    with pytest.raises(NotFound):
        await keys.expire("nothing", None)
    await assert_refused(keys, header)


async def test_a_cached_key_needs_no_database(keys: KeyService, clock: Clock, store: Store) -> None:
    """A request costs no round trip for its key, and an outage does not end it.

    Without having seen it, nobody can be told apart.
    """
    header, caller = await created(keys)
    await keys.admit(header)
    await store.close()
    keys._database = away = Database(Store(AWAY))
    for _ in range(2):
        assert await keys.admit(header) == caller
        clock.pass_seconds(2 * CACHE_SECONDS)
    await assert_refused(keys, "")
    unknown = header.replace(str(caller.key_id), "y" * 12)
    for service, other in ((keys, unknown), (keys_of(away, clock), "")):
        with pytest.raises(ServiceUnavailable):
            await service.admit(other)


async def test_a_long_response_ends_with_its_key(
    keys: KeyService, database: Database, clock: Clock
) -> None:
    """A caller is no longer admitted once its key ends, or a first key exists."""
    nobody = await keys.admit("")
    assert await keys.still_admits(nobody)
    header, caller = await created(keys)
    assert await keys.admit(header) == caller
    assert await keys.still_admits(caller)
    assert not await keys.still_admits(nobody)
    assert not await keys.still_admits(Caller("acme", "y" * 12))
    await keys_of(database, clock).revoke(str(caller.key_id))
    assert await keys.still_admits(caller), "it is held"
    clock.pass_seconds(CACHE_SECONDS)
    assert not await keys.still_admits(caller)
    keys._database = Database(Store(AWAY))
    assert not await keys.still_admits(Caller("acme", "x" * 12)), "nobody can tell"


@pytest.mark.parametrize("tenant_id", ["", " ", "a b", "-a", "a/b", "ä", "a" * 65, "a\n", "."])
async def test_invalid_tenant_ids_are_refused(keys: KeyService, tenant_id: str) -> None:
    """A valid id is safe in a log line, a path and a shell."""
    with pytest.raises(ValidationError, match="tenant's id"):
        await keys.create(tenant_id, "", None)
