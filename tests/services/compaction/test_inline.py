"""Compactions inside a build without a model: few statements, applied once, on one view."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.adapters.postgres.common.connections import Session
from tests.services.fakes import Harness, asks, result, says, user
from tests.services.payload.builders import check, fill, policy

STATEMENTS = 5
"""Of a build that compacts: two reads, the messages, the receipt with its events, the epoch."""
CLEARING_STATEMENTS = 4


def _inline(**leaves: Any) -> dict[str, Any]:
    return policy(
        1100, 100, compaction={"mode": "inline"}, sandwich={"compression_threshold": 0.7}, **leaves
    )


def _noted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which each statement is added from now on."""
    sent: list[str] = []
    execute_statement = Session._execute

    async def noting(self: Session, run: Any, statement: Any, values: Any) -> Any:
        sent.append(statement.sql)
        return await execute_statement(self, run, statement, values)

    monkeypatch.setattr(Session, "_execute", noting)
    return sent


@pytest.mark.one_server  # it counts the statements of one server
async def test_a_build_compacts_in_five_statements(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build that compacts without a model sends at most five statements, and no BEGIN."""
    cid = await harness.conversation(_inline())
    await fill(harness, cid, 680)
    await harness.build(cid)
    await fill(harness, cid, 705)
    sent = _noted(monkeypatch)
    build = await harness.build(cid)
    assert build["compaction"].compacted
    assert len(sent) <= STATEMENTS, sent
    monkeypatch.undo()
    check(build, exact=True)


@pytest.mark.one_server
async def test_a_build_clears_results_in_four_statements(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build that clears results reads what is new and the receipt, and stores receipt and epoch.

    The next build reads what is new. Both show what a fresh process shows.
    """
    cid = await harness.conversation(
        policy(20_000, 100, tool_output={"context_budget_tokens": 600})
    )
    for number in range(12):
        call = f"call_{number}"
        await harness.append(cid, asks(call), result(call, f"{number} " + "row " * 200))
        sent = _noted(monkeypatch)
        build = await harness.build(cid)
        counted, again = len(sent), await harness.build(cid)
        monkeypatch.undo()
        assert again.payload == build.payload
        has_cleared = build["cache_break_reason"] == "tool_results_cleared"
        assert counted <= CLEARING_STATEMENTS if has_cleared else not number or counted == 1
        assert len(sent) - counted == 1
        check(build, exact=True)
        warm, harness.context = harness.context, harness.cold()
        fresh, harness.context = await harness.build(cid), warm
        assert (fresh.payload, fresh["epoch"]) == (build.payload, build["epoch"])
    assert (await harness.stored(cid)).state.results_cleared_through


@pytest.mark.one_server
async def test_a_build_that_also_clears_results_compacts_in_six_statements(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compaction starts from the receipt that the same build has stored."""
    cid = await harness.conversation(_inline(tool_output={"context_budget_tokens": 200}))
    await fill(harness, cid, 500)
    for number in range(2):
        call = f"call_{number}"
        await harness.append(cid, asks(call), result(call, f"{number} " + "row " * 120))
    await harness.build(cid)
    await harness.append(cid, asks("call_2"), result("call_2", "row " * 120))
    await fill(harness, cid, 1300)
    before = (await harness.stored(cid)).state
    sent = _noted(monkeypatch)
    build = await harness.build(cid)
    monkeypatch.undo()
    assert build["compaction"].compacted
    after = (await harness.stored(cid)).state
    assert after.view_version == before.view_version + 2
    assert after.results_cleared_through > before.results_cleared_through
    assert len(sent) <= STATEMENTS + 1, sent
    check(build, exact=True)


async def test_the_build_shows_what_a_fresh_process_reads(harness: Harness) -> None:
    """The state after a compaction is the stored one: the next process builds the same payload."""
    cid = await harness.conversation(_inline())
    await fill(harness, cid, 705)
    build = await harness.build(cid)
    assert build["compaction"].compacted
    harness.context = harness.cold()
    again = await harness.build(cid)
    assert again.payload == build.payload
    assert (again["epoch"], again["tokens_used"]) == (build["epoch"], build["tokens_used"])


async def test_two_builds_apply_one_compaction(harness: Harness) -> None:
    """[compaction.at-most-once]"""
    cid = await harness.conversation(_inline())
    await fill(harness, cid, 705)
    one, other = harness.context, harness.cold()

    async def by(context: Any) -> Any:
        harness.context = context
        return await harness.build(cid)

    builds = await asyncio.gather(by(one), by(other))
    for build in builds:
        check(build, exact=True)
    assert sum(build["compaction"] is not None for build in builds) == 1
    assert (await harness.stored(cid)).state.view_version == 1


async def test_a_leased_conversation_is_left_alone(harness: Harness) -> None:
    """While another compaction runs a build neither compacts nor clears."""
    cid = await harness.conversation(_inline())
    await fill(harness, cid, 705)
    async with harness.leases.held(cid) as is_held:
        assert is_held
        build = await harness.build(cid)
    assert build["compaction"] is None
    assert build["degraded"] == ["compaction_pending"]
    assert (await harness.stored(cid)).state.view_version == 0


async def test_an_event_between_makes_the_build_plan_again(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pin that is set while a build plans stays shown: the build plans once more."""
    cid = await harness.conversation(_inline())
    await fill(harness, cid, 300)
    appended = await harness.append(cid, user("Keep this one."), says("Done."))
    await fill(harness, cid, 705)
    runner = harness.compaction.runner
    store, pinned = runner._store, [False]

    async def late(run: Any, receipt: Any) -> Any:
        if not pinned[0]:
            pinned[0] = True
            await harness.pins.pin(
                run.source.tenant_id, cid, appended.messages[0].id, whole_turn=False
            )
        return await store(run, receipt)

    monkeypatch.setattr(runner, "_store", late)
    build = await harness.build(cid)
    check(build, exact=True)
    assert pinned == [True]
    assert "Keep this one." in str(build.payload)
    assert build["compaction"].compacted
