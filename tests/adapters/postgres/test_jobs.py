"""Due compactions, jobs, leases and claims, over a real database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest_asyncio
from uuid_utils import uuid7

from app.conversations.conversation import StoredSettings
from app.jobs.repository import WAITING
from app.repositories import Database
from tests.patience import PATIENCE_SECONDS

TENANT = "default"


def new_id() -> str:
    """Return a fresh id."""
    return str(uuid7())


@pytest_asyncio.fixture
async def conversation_id(database: Database) -> str:
    """The id of a new conversation."""
    made = new_id()
    async with database.session() as session:
        assert await session.conversations.add(TENANT, made, None, "bytes_4", StoredSettings())
    return made


@pytest_asyncio.fixture
async def connection(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A plain connection to this test's database."""
    opened = await asyncpg.connect(database_url)
    yield opened
    await opened.close()


async def claims(database: Database) -> list[tuple[str, str | None]]:
    """Claim all there is, and return the conversation and job of each in order."""
    found = []
    async with database.session() as session:
        while claim := await session.jobs.claim(new_id(), 30):
            found.append((claim.conversation_id, claim.job_id))
    return found


async def test_jobs_come_first_and_then_the_oldest(
    database: Database, connection: asyncpg.Connection
) -> None:
    """What waits longest is claimed first, by the indexes; a caller waits for a job."""
    made = [new_id() for _ in range(4)]
    jobs = [new_id() for _ in range(2)]
    async with database.session() as session:
        for age, each in enumerate(made):
            await session.conversations.add(TENANT, each, None, "bytes_4", StoredSettings())
            await session.jobs.postpone(each, -age - 1)
        for job_id in jobs:
            await session.jobs.add(TENANT, made[1], job_id, "compact", "{}")
    assert await claims(database) == [
        (made[1], jobs[0]),
        (made[3], None),
        (made[2], None),
        (made[0], None),
    ]
    await connection.execute("SET enable_seqscan = off")
    plan = "".join(row[0] for row in await connection.fetch(f"EXPLAIN {WAITING.sql}", 10))
    assert "states_due" in plan and "jobs_open" in plan


async def test_a_claim_waits_for_nobody(
    database: Database, conversation_id: str, connection: asyncpg.Connection
) -> None:
    """What an append or another claim has locked is skipped."""
    other = new_id()
    async with database.session() as session:
        await session.conversations.add(TENANT, other, None, "bytes_4", StoredSettings())
        await session.jobs.postpone(conversation_id, -2)
        await session.jobs.postpone(other, -1)
        async with connection.transaction():
            await connection.execute(
                "UPDATE states SET tokens = tokens + 1 WHERE conversation_id = $1", conversation_id
            )
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert await claims(database) == [(other, None)]
    assert await claims(database) == [(conversation_id, None)]
