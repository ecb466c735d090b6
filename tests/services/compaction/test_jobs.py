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
from app.jobs.leases import Leases
from app.repositories import Database, Repositories
from tests.conftest import execute
from tests.patience import PATIENCE_SECONDS

TENANT = "default"


class Watched(Database):
    """The database, which fails while it `is_away`."""

    is_away = False

    @asynccontextmanager
    async def session(self, seconds: float | None = None) -> AsyncIterator[Repositories]:
        """Each statement commits by itself."""
        if self.is_away:
            raise ServiceUnavailable("The database does not answer")
        async with super().session(seconds) as session:
            yield session


@pytest.fixture
def watched(store: Store) -> Watched:
    """The watched database of this test."""
    return Watched(store)


@pytest_asyncio.fixture
async def conversation_id(database: Database) -> str:
    """The id of a new conversation."""
    made = new_id()
    async with database.session() as session:
        assert await session.conversations.add(TENANT, made, None, "bytes_4", StoredSettings())
    return made


TAKE_OVER = (
    "INSERT INTO compaction_leases SELECT conversation_id, $1, now() + interval '30 s' FROM states"
    " ON CONFLICT (conversation_id)"
    " DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at"
)
"""One statement: the holder may renew its lease at any moment."""


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


async def test_losing_the_lease_ends_the_work(
    watched: Watched, conversation_id: str, database_url: str
) -> None:
    """When another process takes the lease over, the block is cancelled."""
    leases = Leases(watched, new_id, seconds=0.3)
    other = new_id()
    with pytest.raises(Conflict):
        async with asyncio.timeout(PATIENCE_SECONDS), leases.held(conversation_id):
            await execute(database_url, TAKE_OVER, other)
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
