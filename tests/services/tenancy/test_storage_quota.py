"""What tenants may store: true sums of what is there, and places that are shared.

[quotas.storage]
"""

from __future__ import annotations

import asyncio

import pytest

from app.adapters.blobs.chunks import RowStore
from app.adapters.postgres.database import PostgresDatabase
from app.adapters.postgres.tenancy import storage_usage as statements
from app.domain.common.errors import StorageLimitReached
from app.domain.tenancy.quotas import TenantLimits
from app.services.snapshots.forks import ForkService, NewFork
from app.services.tenancy.quotas import QuotaService
from app.services.tenancy.storage_quota import StorageQuota
from tests.conftest import execute
from tests.services.fakes import (
    TENANT,
    Clock,
    Harness,
    WatchedDatabase,
    new_id,
    unlimited_storage,
    user,
)


@pytest.fixture
def harness(database: PostgresDatabase) -> Harness:
    """One process's services on this test's database."""
    return Harness(WatchedDatabase(database))


def storage_of(database: PostgresDatabase, clock: Clock, limit: int | None) -> StorageQuota:
    """Return the storage quota of another process."""
    limits = TenantLimits(storage_bytes=limit)

    def seconds() -> float:
        return clock.now_ms() / 1000

    return StorageQuota(database, QuotaService(database, limits, clock.utc, seconds), seconds)


async def measured(database: PostgresDatabase) -> int:
    """Measure all messages, and return the total of the tenant."""
    async with database.session() as session:
        while await session.storage.measure(TENANT):
            pass
        return await session.storage.total(TENANT)


async def bytes_in_rows(database_url: str) -> int:
    """Return the bytes of all message rows."""
    ((total,),) = await execute(
        database_url,
        "SELECT coalesce(sum(octet_length(body) + coalesce(octet_length(fragment), 0)), 0)"
        " FROM messages",
    )
    return int(total)


async def test_the_total_equals_the_bytes_of_the_rows(
    harness: Harness,
    database: PostgresDatabase,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The total follows appends, forks and deletions, also with concurrent measurements."""
    cids = [await harness.conversation() for _ in range(3)]
    for number, cid in enumerate(cids):
        await harness.append(cid, *[user("word " * 50 * (number + 1)) for _ in range(7)])
        assert await measured(database) == await bytes_in_rows(database_url)
    assert (
        await asyncio.gather(*(measured(database) for _ in range(4)))
        == [await bytes_in_rows(database_url)] * 4
    )
    forks = ForkService(
        database,
        harness.resolver,
        harness.active,
        RowStore(),
        new_id,
        unlimited_storage(database),
    )
    await forks.fork(TENANT, cids[2], NewFork(at_seq=5))
    assert await measured(database) == await bytes_in_rows(database_url)
    await harness.conversations.remove(TENANT, cids[0])
    assert await measured(database) == await bytes_in_rows(database_url)
    ((left,),) = await execute(database_url, "SELECT count(*) FROM log_sizes")
    assert left == 3


async def test_a_long_log_is_measured_in_parts(
    harness: Harness, database: PostgresDatabase, database_url: str
) -> None:
    """A log is measured in batches of rows, and no row twice."""
    cid = await harness.conversation()
    await harness.append(cid, *[user(f"message {number}") for number in range(50)])
    whole = statements.BEHIND.sql.replace("$1", ":tenant_id")
    part = whole.replace(f"+ {statements.MAX_ROWS}", "+ 7")
    assert part != whole
    small = type(statements.BEHIND)(part)
    rounds = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statements, "BEHIND", small)
        async with database.session() as session:
            while await session.storage.measure(TENANT):
                rounds += 1
            assert await session.storage.total(TENANT) == await bytes_in_rows(database_url)
    assert rounds == 8


async def test_storing_beyond_the_limit_is_refused(
    harness: Harness, database: PostgresDatabase
) -> None:
    """A tenant stores up to its limit; a deletion makes room within a second."""
    clock = Clock()
    storage = storage_of(database, clock, 10_000)
    cid = await harness.conversation()
    await storage.take(TENANT, 6_000)
    await harness.append(cid, user("x" * 6_000))
    with pytest.raises(StorageLimitReached) as refused:
        await storage.take(TENANT, 6_000)
    assert refused.value.facts["limit"] == 10_000
    await storage.take(TENANT, 3_000)
    await harness.conversations.remove(TENANT, cid)
    clock.pass_seconds(1.1)
    await storage.take(TENANT, 6_500)
    await storage.take("another", 9_000)


async def test_bytes_stored_by_other_processes_count(
    harness: Harness, database: PostgresDatabase
) -> None:
    """Bytes that another process stored count after a few seconds at most."""
    clock = Clock()
    first, second = (storage_of(database, clock, 10_000) for _ in range(2))
    await second.take(TENANT, 1)
    cid = await harness.conversation()
    await first.take(TENANT, 8_000)
    await harness.append(cid, user("x" * 8_000))
    clock.pass_seconds(10.1)
    with pytest.raises(StorageLimitReached):
        await second.take(TENANT, 3_000)


async def test_stored_bytes_are_not_read_without_a_limit(database: PostgresDatabase) -> None:
    """The stored bytes of a tenant without a limit cost no statement."""
    quotas = QuotaService(database, TenantLimits(), Clock().utc, lambda: 0.0)
    storage = StorageQuota(None, quotas, lambda: 0.0)  # type: ignore[arg-type]
    await storage.take(TENANT, 10**15)
