"""Receipts over a real database: listed, expanded, undone, never half applied.

[compaction.undo, compaction.state]
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from app.common.errors import Conflict
from app.compaction.receipts import ShownReceipt
from tests.services.fakes import SUMMARISER, TENANT, Harness, own_text, user
from tests.services.payload.builders import SECTIONS, TOOLS, check, fill, policy

pytestmark = pytest.mark.services(model=SUMMARISER)


async def page(harness: Harness, cid: str, limit: int = 50, before: str | None = None) -> Any:
    """Return a page of receipts."""
    return await harness.receipts.page(TENANT, cid, limit, before)


def statuses(found: list[ShownReceipt]) -> list[str]:
    """Return the statuses of receipts."""
    return [receipt.status for receipt in found]


async def expanded(harness: Harness, cid: str, compaction_id: str, limit: int) -> list[Any]:
    """Return all messages of a receipt's range, read page by page."""
    found: list[Any] = []
    while True:
        after = found[-1].seq if found else 0
        _, some = await harness.receipts.expand(TENANT, cid, compaction_id, after, limit)
        if not some:
            return found
        assert len(some) <= limit
        found += some


# --- reading --------------------------------------------------------------------------------


async def test_a_receipt_is_complete(harness: Harness) -> None:
    """A receipt has prompt, texts, cost and numbers before and after; it never changes.

    [summary.cost]
    """
    cid = await harness.conversation(policy(20_000), SECTIONS, TOOLS)
    await harness.talk(cid, 10)
    before = (await harness.build(cid))["tokens_used"]
    made = await harness.compact(cid, instructions="Keep names.")
    assert made.compaction_id is not None
    found, after = (
        await harness.receipts.get(TENANT, cid, made.compaction_id),
        await harness.build(cid),
    )
    assert (found.status, found.trigger, found.strategy) == ("active", "forced", "sandwich")
    assert found.stages == made.stages == ("sandwich",)
    assert (found.before_tokens, found.after_tokens) == (before, after["tokens_used"])
    assert (found.model, found.calls) == (SUMMARISER, 1)
    assert (found.input_tokens, found.output_tokens) == (100, 10)
    assert found.duration_ms == made.duration_ms == 20
    assert found.prompt_hash and found.created_at is not None and found.undone_at is None
    assert [own_text(summary.text) for summary in found.made] == ["what was said"]
    assert found.summaries == found.made
    await harness.talk(cid, 10)
    await harness.compact(cid)
    later = await harness.receipts.get(TENANT, cid, made.compaction_id)
    assert later == replace(found, status="replaced")


# --- undo -----------------------------------------------------------------------------------


async def test_an_undo_suspends_automatic_compaction(harness: Harness) -> None:
    """Automatic compaction resumes when the log has grown by 5 % of the window."""
    cid = await harness.conversation(policy(1100, 100))
    await fill(harness, cid, 755)
    await harness.work(cid)
    assert (await harness.receipt(cid)).trigger == "background"
    await harness.undo(cid)
    state = (await harness.stored(cid)).state
    assert state.resume_at_tokens == state.tokens + 50
    assert not state.is_due
    while (await harness.stored(cid)).state.tokens < state.resume_at_tokens - 12:
        await harness.append(cid, user("why " * 4))
        assert not (await harness.stored(cid)).state.is_due
        await harness.work(cid)
        assert (await harness.stored(cid)).state.compaction_id is None
        assert (await harness.build(cid))["compaction"] is None
    await harness.append(cid, user("why " * 12))
    assert (await harness.stored(cid)).state.is_due
    await harness.work(cid)
    assert (await harness.stored(cid)).state.compaction_id is not None


# --- at once --------------------------------------------------------------------------------


async def _during(harness: Harness, cid: str) -> asyncio.Task[Any]:
    """Start a forced compaction, and return during its model call."""
    harness.gateway.waiting.clear()
    harness.gateway.release.clear()
    running = asyncio.create_task(harness.compact(cid))
    await harness.gateway.waiting.wait()
    return running


async def test_an_undo_during_a_compaction_wins(harness: Harness) -> None:
    """A compaction planned on the old view is not applied, and stores nothing."""
    cid = await harness.conversation(policy(20_000))
    await harness.talk(cid, 8)
    await harness.compact(cid)
    await harness.talk(cid, 8)
    running = await _during(harness, cid)
    await harness.undo(cid)
    before = await harness.build(cid)
    state = (await harness.stored(cid)).state
    harness.gateway.release.set()
    with pytest.raises(Conflict):
        await running
    assert (await harness.stored(cid)).state == state
    assert statuses(await page(harness, cid)) == ["undone"]
    assert (await harness.build(cid)).text == before.text
    kinds = [kind for kind, _ in await harness.events_of(cid)]
    assert kinds == ["started", "compacted", "started", "undone", "failed"]
    assert (await harness.events_of(cid))[-1][1]["reason"] == "context_changed"
    async with harness.leases.held(cid) as is_mine:
        assert is_mine
    assert (await harness.compact(cid)).compacted


@pytest.mark.parametrize("seq", [8, 18])
async def test_a_pin_during_a_compaction_wins(harness: Harness, seq: int) -> None:
    """A pin on a message to be hidden keeps the compaction from being applied."""
    cid = await harness.conversation(policy(20_000))
    await harness.talk(cid, 10)
    running = await _during(harness, cid)
    await harness.pin(cid, seq)
    harness.gateway.release.set()
    if seq == 18:  # which would stay anyhow
        assert (await running).compacted
        return
    with pytest.raises(Conflict):
        await running
    assert (await harness.stored(cid)).state.compaction_id is None
    assert await page(harness, cid) == []
    assert (await harness.compact(cid)).compacted
    build = await harness.build(cid)
    check(build, exact=True)
    assert "answer 3 because" in build.contents
    assert (await harness.receipt(cid)).view.kept_seqs == (8,)
