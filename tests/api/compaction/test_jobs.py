"""`/v1/jobs/{id}`: polling background work. [compaction.jobs]"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest_asyncio

from app.common import json_text
from app.compaction.run import CompactionRequest
from app.composition import new_id
from app.jobs.repository import Job
from app.main import create_app
from app.repositories import Database
from app.settings import Settings
from tests.api.talk import append, assert_problem, new_conversation, talk
from tests.conftest import started
from tests.patience import PATIENCE_SECONDS


@pytest_asyncio.fixture
async def job(client: httpx.AsyncClient, database: Database) -> Job:
    """A job that nobody works on."""
    conversation_id = (await new_conversation(client)).rpartition("/")[2]
    job_id = new_id()
    async with database.session() as session:
        await session.jobs.add("default", conversation_id, job_id, "compact", "{}")
        found = await session.jobs.find("default", job_id)
    assert found is not None
    return found


@pytest_asyncio.fixture
async def working(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an app that does background work as well."""
    async with started(create_app(settings, with_worker=True)) as opened:
        yield opened


async def change(database: Database, job: Job, status: str, **more: Any) -> None:
    """Store how far a job has come."""
    texts = {name: json_text.dumps(value) for name, value in more.items()}
    async with database.session() as session:
        await session.jobs.change(job.conversation_id, job.job_id, status, **texts)


async def test_a_job_is_deleted_with_its_conversation(client: httpx.AsyncClient, job: Job) -> None:
    """Deleting a conversation deletes its jobs, and reports how many. [log.delete-everything]"""
    deleted = await client.delete(f"/v1/conversations/{job.conversation_id}")
    assert deleted.json()["deleted"]["jobs"] == 1
    assert_problem(await client.get(f"/v1/jobs/{job.job_id}"), 404, "NOT_FOUND")


async def test_the_api_runs_jobs_itself(working: httpx.AsyncClient, database: Database) -> None:
    """A service without other workers does the jobs itself, also those stored before."""
    path = await new_conversation(working, policy={"budget": {"context_window": 8000}})
    await append(working, path, *talk(60, "word " * 40))
    conversation_id, job_id = path.rpartition("/")[2], new_id()
    async with database.session() as session:
        request = CompactionRequest().model_dump_json()
        await session.jobs.add("default", conversation_id, job_id, "compact", request)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (shown := (await working.get(f"/v1/jobs/{job_id}")).json())["status"] != "done":
            assert shown["status"] != "failed", shown
            await asyncio.sleep(0.02)
    assert shown["result"]["compacted"] in {True, False}
