"""Due marks, leases, jobs, and the queue that wakes the workers (E6, decision 25)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator

import asyncpg
import pytest
import pytest_asyncio
from pgqueuer.adapters.drivers.asyncpg import AsyncpgDriver
from uuid_utils import uuid7

from app.adapters.postgres.common.connections import Store
from app.adapters.postgres.compaction import queue
from app.adapters.postgres.compaction.jobs import LIST_DUE, Entry, Pace, PostgresQueue
from app.adapters.postgres.database import PostgresDatabase
from app.domain.common.errors import ServiceUnavailable
from app.domain.conversations.records import Settings

TENANT = "default"


def new_id() -> str:
    """Return a fresh id."""
    return str(uuid7())


@pytest_asyncio.fixture
async def conversation_id(database: PostgresDatabase) -> str:
    """The id of a new conversation."""
    made = new_id()
    async with database.session() as records:
        assert await records.conversations.add(TENANT, made, None, "bytes_4", Settings(), "{}")
    return made


@pytest_asyncio.fixture
async def connection(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A plain connection to this test's database."""
    opened = await asyncpg.connect(database_url)
    yield opened
    await opened.close()


async def test_a_due_mark_is_set_once_listed_and_cleared(
    database: PostgresDatabase, conversation_id: str
) -> None:
    """Decision 25: the mark is set where there is none, found by the sweep, and taken away."""
    async with database.session() as records:
        jobs = records.jobs
        assert await jobs.list_due(10) == []
        assert await jobs.mark_due(conversation_id)
        assert not await jobs.mark_due(conversation_id)
        assert await jobs.list_due(10) == [(TENANT, conversation_id)]
        assert await jobs.list_due(0) == []
        await jobs.clear_due(conversation_id)
        assert await jobs.list_due(10) == []
        assert not await jobs.mark_due(new_id())


async def test_a_failure_postpones_and_is_counted(
    database: PostgresDatabase, conversation_id: str, connection: asyncpg.Connection
) -> None:
    """E9: what failed is not due again before its time, and failures are counted."""
    async with database.session() as records:
        await records.jobs.mark_due(conversation_id)
        await records.jobs.postpone(conversation_id, 60)
        assert await records.jobs.list_due(10) == []
        assert not await records.jobs.mark_due(conversation_id)
        await records.jobs.postpone(conversation_id, -1)
        assert await records.jobs.list_due(10) == [(TENANT, conversation_id)]
    assert await connection.fetchval("SELECT failures FROM heads") == 2


async def test_the_oldest_mark_comes_first(
    database: PostgresDatabase, connection: asyncpg.Connection
) -> None:
    """Decision 25: a sweep that cannot take all takes those that wait longest, by the index."""
    made = [new_id() for _ in range(3)]
    async with database.session() as records:
        for age, conversation_id in enumerate(made):
            await records.conversations.add(
                TENANT, conversation_id, None, "bytes_4", Settings(), "{}"
            )
            await records.jobs.postpone(conversation_id, -age - 1)
        found = [conversation_id for _, conversation_id in await records.jobs.list_due(2)]
    assert found == [made[2], made[1]]
    await connection.execute("SET enable_seqscan = off")
    plan = await connection.fetch(f"EXPLAIN {LIST_DUE.sql}", 100)
    assert any("heads_due" in row[0] for row in plan)


async def test_a_lease_has_one_holder(database: PostgresDatabase, conversation_id: str) -> None:
    """E6: of many who ask at once one gets the lease; it renews it, and only it gives it back."""
    holders = [new_id() for _ in range(8)]

    async def take(holder: str) -> bool:
        async with database.session() as records:
            return await records.jobs.take_lease(conversation_id, holder, 30)

    taken = await asyncio.gather(*(take(holder) for holder in holders))
    assert taken.count(True) == 1
    holder, other = holders[taken.index(True)], holders[taken.index(False)]
    assert await take(holder)
    async with database.session() as records:
        await records.jobs.release_lease(conversation_id, other)
        assert not await take(other)
        await records.jobs.release_lease(conversation_id, holder)
    assert await take(other)


async def test_an_expired_lease_belongs_to_nobody(
    database: PostgresDatabase, conversation_id: str
) -> None:
    """E6: a holder that died loses the lease to the next who asks, and cannot renew it then."""
    dead, next_holder = new_id(), new_id()
    async with database.session() as records:
        assert await records.jobs.take_lease(conversation_id, dead, -1)
        assert await records.jobs.take_lease(conversation_id, next_holder, 30)
        assert not await records.jobs.take_lease(conversation_id, dead, 30)


async def test_no_lease_is_left_behind_without_its_conversation(
    database: PostgresDatabase, connection: asyncpg.Connection
) -> None:
    """A7: nobody competes for a conversation that is not there, and no row is written for it."""
    async with database.session() as records:
        gone = new_id()
        assert await records.jobs.take_lease(gone, new_id(), 30)
        assert await records.jobs.take_lease(gone, new_id(), 30)
        await records.jobs.add(TENANT, gone, new_id(), "compact", "{}")
    assert await connection.fetchval("SELECT count(*) FROM compaction_leases") == 0
    assert await connection.fetchval("SELECT count(*) FROM jobs") == 0


async def test_a_lease_does_not_wait_for_an_append(
    database: PostgresDatabase, conversation_id: str, connection: asyncpg.Connection
) -> None:
    """E6: appends go on meanwhile; a head locked by one does not keep a lease waiting."""
    async with connection.transaction():
        await connection.execute("UPDATE heads SET tokens = tokens + 1")
        async with asyncio.timeout(5), database.session() as records:
            assert await records.jobs.take_lease(conversation_id, new_id(), 30)


async def test_a_job_stays_as_it_ended(database: PostgresDatabase, conversation_id: str) -> None:
    """E6: a job is found by its tenant only, moves on, and its first end is its last."""
    job_id = new_id()
    async with database.session() as records:
        jobs = records.jobs
        await jobs.add(TENANT, conversation_id, job_id, "compact", '{"model":null}')
        job = await jobs.find(TENANT, job_id)
        assert job is not None
        assert (job.status, job.kind, job.ask) == ("queued", "compact", '{"model":null}')
        assert (job.conversation_id, job.result, job.error) == (conversation_id, None, None)
        assert await jobs.find("another", job_id) is None
        assert await jobs.list_open(10) == [(TENANT, conversation_id, job_id)]
        await jobs.change(conversation_id, job_id, "running")
        assert await jobs.list_open(10) == [(TENANT, conversation_id, job_id)]
        await jobs.change(conversation_id, job_id, "done", result="{}")
        await jobs.change(conversation_id, job_id, "running")
        ended = await jobs.find(TENANT, job_id)
        assert ended is not None
        assert (ended.status, ended.result) == ("done", "{}")
        assert ended.updated_at > job.updated_at
        assert await jobs.list_open(10) == []


async def test_the_migrated_queue_is_pgqueuers(
    store: Store, connection: asyncpg.Connection
) -> None:
    """Decision 25: the migration makes what the library wants, and its own upgrade has no wish."""

    async def ignore(_entry: Entry) -> None:
        return None

    await queue.Consumer(connection, ignore, 1, Pace()).check()
    plan = await queue.queries(AsyncpgDriver(connection)).plan_upgrade()
    assert (plan.statements, plan.notes) == ((), ())


def test_the_queue_has_pgqueuers_own_names() -> None:
    """Rule 4 of the queue: its names are the library's, whatever the environment calls them."""
    environ = {"PATH": "/usr/bin", "CHANNEL": "elsewhere", "PGQUEUER_PREFIX": "other_"}
    code = (
        "from app.adapters.postgres.compaction.queue import NAMES;"
        "print(NAMES.channel, NAMES.queue_table)"
    )
    told = subprocess.run(
        (sys.executable, "-c", code), env=environ, capture_output=True, text=True, check=True
    )
    assert told.stdout.split() == ["ch_pgqueuer", "pgqueuer"]


async def test_what_is_asked_for_twice_is_there_once(
    store: Store, conversation_id: str, connection: asyncpg.Connection
) -> None:
    """Decision 25: entries have a key; a job that is waited for has its own, and goes first."""
    wakeups = PostgresQueue(store)
    job_id = new_id()
    both = asyncio.gather(*(wakeups.enqueue(TENANT, conversation_id) for _ in range(4)))
    assert (await both).count(True) == 1
    assert await wakeups.enqueue(TENANT, conversation_id, job_id)
    assert not await wakeups.enqueue(TENANT, conversation_id, job_id)
    other = Entry(TENANT, new_id())
    again = [Entry(TENANT, conversation_id), Entry(TENANT, conversation_id, job_id), other, other]
    assert await wakeups.enqueue_all(again) == 1
    rows = await connection.fetch("SELECT dedupe_key FROM pgqueuer ORDER BY priority DESC, id")
    assert [row[0] for row in rows] == [
        f"job:{job_id}",
        f"compact:{conversation_id}",
        f"compact:{other.conversation_id}",
    ]


async def test_old_notes_of_the_queue_are_forgotten(
    store: Store, connection: asyncpg.Connection
) -> None:
    """The queue's own log does not grow for ever."""
    wakeups = PostgresQueue(store)
    await wakeups.enqueue(TENANT, new_id())
    await wakeups.enqueue(TENANT, new_id())
    await connection.execute(
        "UPDATE pgqueuer_log SET created = now() - interval '8 days'"
        " WHERE id = (SELECT min(id) FROM pgqueuer_log)"
    )
    await wakeups.forget_ended()
    assert await connection.fetchval("SELECT count(*) FROM pgqueuer_log") == 1


async def test_asking_without_a_database() -> None:
    """A8: nobody can be asked while the database is away; what is due is found by the sweep."""
    with pytest.raises(ServiceUnavailable):
        await PostgresQueue(Store("postgresql://nobody@127.0.0.1:1/none")).enqueue(TENANT, new_id())
