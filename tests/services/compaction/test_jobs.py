"""Jobs and leases as the services use them, over a real database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from app.common.errors import Conflict, ServiceUnavailable
from app.composition import new_id
from app.conversations.conversation import StoredSettings
from app.database.connections import Store
from app.repositories import Database, Repositories
from app.work.leases import Leases
from app.work.repository import Claim
from tests.conftest import execute
from tests.patience import PATIENCE_SECONDS

TENANT = "default"


class Watched(Database):
    """The database, counting open sessions and failing on request."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.open_sessions = 0
        self.is_away = False
        self.was_asked = asyncio.Event()

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Repositories]:
        """Each statement commits by itself."""
        self.was_asked.set()
        if self.is_away:
            raise ServiceUnavailable("The database does not answer")
        async with super().session() as session:
            self.open_sessions += 1
            try:
                yield session
            finally:
                self.open_sessions -= 1


@pytest.fixture
def watched(store: Store) -> Watched:
    """The watched database of this test."""
    return Watched(store)


@pytest_asyncio.fixture
async def conversation_id(database: Database) -> str:
    """The id of a new conversation."""
    made = new_id()
    async with database.session() as session:
        assert await session.conversations.add(
            TENANT, made, None, "bytes_4", StoredSettings(), "{}"
        )
    return made


async def forget_leases(url: str, holder: str | None = None) -> None:
    """Delete every lease, or give it to another holder."""
    if holder is None:
        await execute(url, "DELETE FROM compaction_leases")
        return
    # One statement: the holder may renew its lease at any moment.
    await execute(
        url,
        "INSERT INTO compaction_leases SELECT conversation_id, $1, now() + interval '30 s'"
        " FROM heads ON CONFLICT (conversation_id)"
        " DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at",
        holder,
    )


async def test_cancelling_releases_the_lease(watched: Watched, conversation_id: str) -> None:
    """Cancelled work leaves no lease."""
    leases, inside = Leases(watched, new_id), asyncio.Event()

    async def work() -> None:
        async with leases.held(conversation_id):
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with leases.held(conversation_id) as is_mine:
        assert is_mine


async def test_a_lease_is_renewed_while_work_goes_on(
    watched: Watched, conversation_id: str
) -> None:
    """A holder at work renews its lease, holding no connection meanwhile."""
    leases = Leases(watched, new_id, seconds=0.3)
    async with leases.held(conversation_id) as is_mine:
        assert is_mine
        for _ in range(6):
            watched.was_asked.clear()
            await watched.was_asked.wait()
        async with leases.held(conversation_id) as is_mine_too:
            assert not is_mine_too
        async with asyncio.timeout(PATIENCE_SECONDS):
            while watched.open_sessions:
                await asyncio.sleep(0)


async def test_losing_the_lease_ends_the_work(
    watched: Watched, conversation_id: str, database_url: str
) -> None:
    """When another process takes the lease over, the block is cancelled."""
    leases = Leases(watched, new_id, seconds=0.3)
    other = new_id()
    with pytest.raises(Conflict):
        async with asyncio.timeout(PATIENCE_SECONDS), leases.held(conversation_id):
            await forget_leases(database_url, other)
            await asyncio.Event().wait()
    (row,) = await execute(database_url, "SELECT holder FROM compaction_leases")
    assert str(row["holder"]) == other


async def test_a_lease_that_cannot_be_renewed_ends_the_work(
    watched: Watched, conversation_id: str
) -> None:
    """Without a database the block ends with its lease, before another may start."""
    leases = Leases(watched, new_id, seconds=0.3)
    with pytest.raises(ServiceUnavailable):
        async with asyncio.timeout(PATIENCE_SECONDS), leases.held(conversation_id):
            watched.is_away = True
            await asyncio.Event().wait()


async def test_a_forced_compaction_waits_for_the_lease(
    watched: Watched, conversation_id: str
) -> None:
    """A forced compaction waits for a running one without a connection."""
    leases, waiting, done = Leases(watched, new_id), asyncio.Event(), asyncio.Event()

    async def force() -> None:
        waiting.set()
        async with leases.wait(conversation_id, 10):
            done.set()

    async with leases.held(conversation_id):
        task = asyncio.create_task(force())
        await waiting.wait()
        for _ in range(3):
            watched.was_asked.clear()
            await watched.was_asked.wait()
        assert not done.is_set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await task
    assert done.is_set()


async def claimed(leases: Leases) -> Claim:
    """Claim waiting work, of which there is some."""
    claim = await leases.claim()
    assert claim is not None
    return claim


async def test_a_claim_is_a_lease(watched: Watched, conversation_id: str) -> None:
    """Claimed work excludes builds and requests until its lease is released."""
    leases = Leases(watched, new_id, seconds=0.3)
    async with watched.session() as session:
        await session.jobs.set_due(conversation_id)
    async with leases.renewed(await claimed(leases)):
        for _ in range(6):
            watched.was_asked.clear()
            await watched.was_asked.wait()
        async with leases.held(conversation_id) as is_mine:
            assert not is_mine
        assert await leases.claim() is None
    async with leases.held(conversation_id) as is_mine:
        assert is_mine
