"""Background compactions over a real database: due, claimed, done once, paused.

[compaction.background, compaction.backs-off, compaction.never-blocks]
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.common.errors import ServiceUnavailable
from app.compaction import planning
from app.compaction.run import CompactionRequest
from app.jobs.repository import Job
from app.repositories import Database
from tests.conftest import execute
from tests.services.fakes import (
    CHAT,
    SUMMARISER,
    TENANT,
    Harness,
    ScriptedGateway,
    WatchedDatabase,
    says,
    user,
)
from tests.services.payload.builders import ASKS, check, fill, policy

pytestmark = pytest.mark.services(model=SUMMARISER)

DOWN = ServiceUnavailable("no", {"reason": "provider_error"})


def another(harness: Harness, *replies: Any) -> Harness:
    """Return another process on the same database, with empty caches."""
    database = Database(harness.database.store)
    return Harness(WatchedDatabase(database), ScriptedGateway(*replies), model=SUMMARISER)


async def is_due(harness: Harness, cid: str) -> bool:
    """Whether a compaction of the conversation is due."""
    return (await harness.stored(cid)).state.is_due


async def kinds(harness: Harness, cid: str) -> list[str]:
    """Return the types of the events."""
    return [kind for kind, _ in await harness.events_of(cid)]


async def pause_seconds(url: str, cid: str) -> float:
    """Return how many seconds the pause of a conversation lasts."""
    ((seconds,),) = await execute(
        url,
        "SELECT extract(epoch FROM due_at - now())::float FROM states WHERE conversation_id = $1",
        cid,
    )
    return float(seconds)


async def end_pause(url: str, cid: str) -> None:
    """End the pause of a conversation."""
    await execute(url, "UPDATE states SET due_at = now() WHERE conversation_id = $1", cid)


# --- becoming due ---------------------------------------------------------------------------


# --- doing it -------------------------------------------------------------------------------


async def test_what_is_due_is_compacted(harness: Harness) -> None:
    """A worker compacts to the target, clears the due mark and adds an event."""
    cid = await harness.conversation(policy(1100, 100))
    await fill(harness, cid, 755)
    before = await harness.build(cid)
    assert before["compaction"] is None
    await harness.work(cid)
    stored = await harness.receipt(cid)
    assert (stored.trigger, stored.stages) == ("background", ("sandwich",))
    assert stored.before_tokens == before["tokens_used"]
    assert stored.after_tokens <= 450
    assert not await is_due(harness, cid)
    for format, ask in ASKS.items():
        build = await harness.build(cid, ask)
        check(build, exact=format is CHAT)
        assert build["summary_used"]
    events = await harness.events_of(cid)
    assert [kind for kind, _ in events] == ["due", "started", "compacted"]
    assert events[1][1] == {"trigger": "background", "stages": ["sandwich"]}
    assert events[2][1]["compaction_id"] == stored.compaction_id
    assert events[2][1]["after_tokens"] == stored.after_tokens
    await harness.work(cid)
    assert len(harness.gateway.calls) == 1


async def test_a_slow_model_blocks_no_append_and_no_build(harness: Harness) -> None:
    """A slow model blocks nothing; new messages are shown after the summary."""
    cid = await harness.conversation(policy(1100, 100))
    await fill(harness, cid, 755)
    before = await harness.build(cid)
    harness.gateway.release.clear()
    working = asyncio.create_task(harness.work(cid))
    await harness.gateway.waiting.wait()
    await harness.append(cid, user("meanwhile"))
    build = await harness.build(cid)
    assert build["epoch"] == before["epoch"]
    assert build["degraded"] == []
    await fill(harness, cid, 960)
    pending = await harness.build(cid)
    check(pending, exact=True)
    assert pending["degraded"][0] == "compaction_pending"
    assert len(harness.gateway.calls) == 1
    harness.gateway.release.set()
    await working
    after = await harness.build(cid)
    check(after, exact=True)
    assert after["summary_used"]
    assert "meanwhile" in after.contents
    assert after["degraded"] == []


async def test_below_min_gain_the_log_has_to_grow(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction that would free too little is tried again after 5 % growth."""
    monkeypatch.setattr(planning, "MIN_GAIN", 0.6)
    own = policy(1100, 100)
    cid = await harness.conversation(own)
    await fill(harness, cid, 755)
    await harness.work(cid)
    state = (await harness.stored(cid)).state
    assert (state.compaction_id, state.is_due) == (None, False)
    assert state.resume_at_tokens == state.tokens + 50
    while (await harness.stored(cid)).state.tokens < state.resume_at_tokens - 10:
        await harness.append(cid, user("why " * 4))
        assert not await is_due(harness, cid)
    await harness.append(cid, user("why " * 12))
    assert await is_due(harness, cid)
    assert harness.gateway.calls == []
    assert "failed" not in await kinds(harness, cid)


# --- once -----------------------------------------------------------------------------------


async def test_a_view_that_changed_meanwhile_is_checked_again(harness: Harness) -> None:
    """An undo during the model call wins; the compaction stays due and is checked again."""
    cid = await harness.conversation(policy(1100, 100))
    await fill(harness, cid, 755)
    await harness.work(cid)
    first = (await harness.receipt(cid)).compaction_id
    while not await is_due(harness, cid):
        await harness.append(cid, user("why " * 4), says("so " * 4))
    harness.gateway.waiting.clear()
    harness.gateway.release.clear()
    working = asyncio.create_task(harness.work(cid))
    await harness.gateway.waiting.wait()
    await harness.undo(cid)
    harness.gateway.release.set()
    await working
    assert await is_due(harness, cid)
    found = await harness.receipts.page(TENANT, cid, 10, None)
    assert [receipt.compaction_id for receipt in found] == [first]
    await harness.work(cid)
    assert not await is_due(harness, cid), "it rests after the undo"
    assert (await harness.stored(cid)).state.compaction_id is None


# --- failing --------------------------------------------------------------------------------


async def test_each_failure_pauses_compactions_for_longer(
    harness: Harness, database_url: str
) -> None:
    """30 s, then doubling, up to an hour; failures are counted, the view is unchanged."""
    harness.gateway.replies = [DOWN]
    cid = await harness.conversation(policy(1100, 100))
    await fill(harness, cid, 755)
    before = await harness.build(cid)
    for number, seconds in enumerate((30, 60, 120, 240), start=1):
        await harness.work(cid)
        state = (await harness.stored(cid)).state
        assert (state.failures, state.is_backing_off, state.is_due) == (number, True, True)
        assert seconds - 10 < await pause_seconds(database_url, cid) <= seconds
        assert await harness.leases.claim() is None
        await harness.append(cid, user("so"))
        assert (await harness.stored(cid)).state.is_backing_off
        await end_pause(database_url, cid)
    await execute(database_url, "UPDATE states SET failures = 40")
    await harness.work(cid)
    assert 3590 < await pause_seconds(database_url, cid) <= 3600
    assert len(harness.gateway.calls) == 5
    events = await harness.events_of(cid)
    assert [kind for kind, _ in events] == ["due", *["started", "failed"] * 5]
    assert events[2][1] == {
        "trigger": "background",
        "reason": "provider_error",
        "calls": 1,
        "code": "SERVICE_UNAVAILABLE",
        "detail": "no",
    }
    assert (await harness.build(cid))["epoch"] == before["epoch"]
    assert (await harness.stored(cid)).state.compaction_id is None


# --- inside the build -----------------------------------------------------------------------


# --- jobs that callers wait for ---------------------------------------------------------------


async def start(harness: Harness, cid: str, **options: Any) -> Job:
    """Start a job that compacts."""
    return await harness.compaction.start_job(TENANT, cid, CompactionRequest(**options))


async def test_a_job_whose_worker_died_is_done_by_another(harness: Harness) -> None:
    """A job found running, because its worker was killed, is run again [compaction.jobs]."""
    cid = await harness.conversation(policy(20_000))
    await harness.talk(cid, 10)
    job = await start(harness, cid)
    async with harness.database.session() as session:
        await session.jobs.change(cid, job.job_id, "running")
    await another(harness).work(cid, job.job_id)
    assert (await harness.compaction.job(TENANT, job.job_id)).status == "done"
    assert (await harness.receipt(cid)).trigger == "forced"


async def test_two_workers_at_once_compact_once(harness: Harness) -> None:
    """Of two workers woken at the same time one makes the summary."""
    other = another(harness)
    cid = await harness.conversation(policy(1100, 100))
    await fill(harness, cid, 755)
    await asyncio.gather(*(one.work(cid) for one in (harness, other, harness, other)))
    assert len(harness.gateway.calls) + len(other.gateway.calls) == 1
    assert len(await harness.receipts.page(TENANT, cid, 10, None)) == 1
    await harness.work(cid)
    assert not await is_due(harness, cid)
