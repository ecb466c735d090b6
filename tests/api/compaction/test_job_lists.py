"""`/v1/jobs` and `/cancel`: lists by status, agent and conversation, and jobs that are stopped.

[compaction.job-lists, compaction.job-cancel]
"""

from __future__ import annotations

import asyncio
import json
import re
from threading import Event
from typing import Any

import httpx
import pytest

from app.adapters.postgres.compaction.job_lists import (
    LIST_OF_AGENT,
    LIST_OF_CONVERSATION,
    LIST_OF_TENANT,
)
from app.composition import compose
from app.domain.conversations.job import JobStatus
from app.services.compaction.background import BackgroundCompactions
from app.settings import Settings
from tests import fake_llm as behave
from tests.api.talk import append, assert_problem, new_conversation, talk
from tests.conftest import execute
from tests.fake_llm import FakeLLM
from tests.plans import plan_of

STATUSES = ("queued", "running", "done", "failed", "cancelled")
UNKNOWN_ID = "0199a1b2-9a0b-7c1d-8e2f-304152637485"


async def all_jobs(client: httpx.AsyncClient, limit: int, **query: str) -> list[dict[str, Any]]:
    """Return a whole list, page by page."""
    found: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    while True:
        answer = await client.get("/v1/jobs", params={"limit": limit, **query, **cursor})
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert len(page["data"]) <= limit
        found += page["data"]
        if page["next_cursor"] is None:
            return found
        cursor = {"cursor": page["next_cursor"]}


async def test_jobs_are_listed_by_filter(client: httpx.AsyncClient, database_url: str) -> None:
    """Each list has what was planted for it, newest first, whatever the length of its pages."""
    await client.post("/v1/agents", json={"agent_id": "a", "name": "A"})
    paths = [await new_conversation(client, agent_id="a"), await new_conversation(client)]
    ids = [path.rpartition("/")[2] for path in paths]
    planted = []
    for number in range(24):
        path, status = paths[number % 2], STATUSES[number % 5]
        job = (await client.post(f"{path}/compact?wait=false")).json()
        planted.append((job["job_id"], ids[number % 2], status))
        sql = "UPDATE jobs SET status = $1 WHERE job_id = $2"
        await execute(database_url, sql, status, job["job_id"])
    await execute(
        database_url,
        "INSERT INTO jobs (conversation_id, job_id, tenant_id, kind, agent_id)"
        " VALUES (gen_random_uuid(), gen_random_uuid(), 'another', 'compact', 'a')",
    )
    planted.reverse()
    for limit in (2, 100):
        assert [job["job_id"] for job in await all_jobs(client, limit)] == [p[0] for p in planted]
    for status in STATUSES:
        found = await all_jobs(client, 2, status=status)
        assert [job["job_id"] for job in found] == [job for job, _, its in planted if its == status]
        assert {job["status"] for job in found} == {status}
    for query in ({"conversation_id": ids[0].upper()}, {"agent_id": "a"}):
        found = await all_jobs(client, 3, **query)
        assert [job["job_id"] for job in found] == [job for job, own, _ in planted if own == ids[0]]
    found = await all_jobs(client, 3, agent_id="a", status="done")
    assert [job["job_id"] for job in found] == [
        job for job, own, status in planted if own == ids[0] and status == "done"
    ]
    assert await all_jobs(client, 3, conversation_id=UNKNOWN_ID) == []
    assert await all_jobs(client, 3, agent_id="unknown") == []


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ({"status": "lost"}, "/query/status"),
        ({"conversation_id": "a/b"}, "/query/conversation_id"),
        ({"agent_id": "a b"}, "/query/agent_id"),
        ({"agent_id": "a", "conversation_id": UNKNOWN_ID}, "/query/agent_id"),
        ({"limit": "0"}, "/query/limit"),
        ({"cursor": "x"}, "/query/cursor"),
        ({"state": "done"}, "/query/state"),
    ],
)
async def test_an_invalid_filter_is_422(
    client: httpx.AsyncClient, query: dict[str, str], pointer: str
) -> None:
    """The error names the parameter."""
    assert_problem(await client.get("/v1/jobs", params=query), 422, "VALIDATION_ERROR", pointer)


@pytest.mark.one_server  # it reads the plans of one server
@pytest.mark.parametrize(
    ("statement", "index"),
    [
        (LIST_OF_TENANT, "jobs_by_tenant"),
        (LIST_OF_AGENT, "jobs_by_agent"),
        (LIST_OF_CONVERSATION, "jobs_by_conversation"),
    ],
)
async def test_lists_read_only_their_jobs(database_url: str, statement: Any, index: str) -> None:
    """Cost model: scope, status and cursor are conditions of the index, not filters on rows."""
    plan = await plan_of(database_url, statement)
    scans = [part for part in plan.split("->") if re.search(r"on jobs\b", part)]
    listed = [scan for scan in scans if f"Scan Backward using {index}" in scan]
    assert len(listed) == len(JobStatus), plan
    for scan in listed:
        condition = scan.splitlines()[1]
        assert "Index Cond" in condition and "status = " in condition, plan
        assert "job_id < " in condition, plan
    (shown,) = [scan for scan in scans if scan not in listed]
    assert "conversation_id = " in shown and "job_id = " in shown, plan


async def queued(client: httpx.AsyncClient) -> tuple[str, str]:
    """Return the paths of a conversation with something to compact, and of a job for it."""
    path = await new_conversation(client, policy={"budget": {"context_window": 8000}})
    await append(client, path, *talk(60, "word " * 40))
    answer = await client.post(f"{path}/compact?wait=false")
    assert answer.status_code == 202, answer.text
    return path, answer.headers["location"]


async def test_a_cancelled_job_never_runs(
    client: httpx.AsyncClient, with_model: Settings, fake_llm: FakeLLM
) -> None:
    """It is claimed by no worker, and stays cancelled; a second cancel returns the same."""
    _, job = await queued(client)
    first = await client.post(f"{job}/cancel")
    assert (first.status_code, first.json()["status"]) == (200, "cancelled")
    assert (first.json()["result"], first.json()["error"]) == (None, None)
    assert (await client.post(f"{job}/cancel")).json() == first.json()
    parts = compose(with_model)
    async with parts.opened():
        claim = await parts.leases.claim()
        assert claim is None or claim.job_id is None, "only the due compaction is claimed"
        job_id = job.rpartition("/")[2]
        await parts.background.work("default", first.json()["conversation_id"], job_id)
    assert (await client.get(job)).json() == first.json()
    assert fake_llm.requests == []


async def test_a_job_that_has_ended_cannot_be_cancelled(
    client: httpx.AsyncClient, database_url: str
) -> None:
    """409 says why; an unknown job and that of another tenant are 404."""
    _, job = await queued(client)
    for status in ("done", "failed"):
        await execute(database_url, "UPDATE jobs SET status = $1", status)
        problem = assert_problem(await client.post(f"{job}/cancel"), 409, "CONFLICT")
        assert (problem["job_status"], problem["reason"]) == (status, "job_ended")
        assert status in problem["detail"]
    await execute(database_url, "UPDATE jobs SET tenant_id = 'another', status = 'queued'")
    for path in (job, f"/v1/jobs/{UNKNOWN_ID}", "/v1/jobs/nothing"):
        assert_problem(await client.post(f"{path}/cancel"), 404, "NOT_FOUND")


@pytest.mark.parametrize("watch_seconds", [0.01, 1_000.0], ids=["in its call", "before storing"])
async def test_a_running_job_is_stopped(
    client: httpx.AsyncClient, with_model: Settings, fake_llm: FakeLLM, watch_seconds: float
) -> None:
    """Its model call ends, or its result is dropped: the view is unchanged, and no receipt."""
    path, job = await queued(client)
    released, arrived = Event(), Event()
    fake_llm.script(behave.slow(released, arrived=arrived))
    parts = compose(with_model)
    async with parts.opened(), asyncio.timeout(90):
        claim = await parts.leases.claim()
        assert claim is not None
        background = BackgroundCompactions(parts.background._runner, watch_seconds)
        work = asyncio.create_task(
            background.work(claim.tenant_id, claim.conversation_id, claim.job_id)
        )
        await asyncio.to_thread(arrived.wait, 60)
        assert (await client.get(job)).json()["status"] == "running"
        assert (await client.post(f"{job}/cancel")).json()["status"] == "cancelled"
        if watch_seconds > 1:
            released.set()
        await work
        released.set()
    assert (await client.get(job)).json()["status"] == "cancelled"
    assert (await client.get(f"{path}/compactions")).json()["data"] == []
    assert (await client.get(f"{path}/state")).json()["summary"] is None
    events = (await client.get(f"{path}/events?follow=false&last_event_id=0.0")).text
    data = [json.loads(line[6:]) for line in events.splitlines() if line.startswith("data: ")]
    assert [(event["type"], event.get("reason")) for event in data][-2:] == [
        ("started", None),
        ("failed", "cancelled"),
    ]


async def test_a_cancel_and_the_end_of_a_job_exclude_each_other(
    client: httpx.AsyncClient, with_model: Settings
) -> None:
    """Whichever comes first wins: cancelled without a receipt, or done with one and 409."""
    parts = compose(with_model)
    async with parts.opened(), asyncio.timeout(60):
        for delay in range(5):
            path, job = await queued(client)
            claim = await parts.leases.claim()
            assert claim is not None
            work = asyncio.create_task(
                parts.background.work(claim.tenant_id, claim.conversation_id, claim.job_id)
            )
            for _ in range(delay * 20):
                await asyncio.sleep(0)
            answer = await client.post(f"{job}/cancel")
            await work
            shown = (await client.get(job)).json()
            receipts = (await client.get(f"{path}/compactions")).json()["data"]
            assert (answer.status_code, shown["status"], len(receipts)) in {
                (200, "cancelled", 0),
                (409, "done", 1),
            }
            await parts.leases._release(claim.conversation_id, claim.holder)
