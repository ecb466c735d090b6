"""What a compaction frees, and what its summary has at least, in small windows.

[strategy.min-gain, summary.room]
"""

from __future__ import annotations

import pytest

from app.compaction.receipts import ShownReceipt
from app.repositories import Database
from tests.services.fakes import (
    SUMMARISER,
    TENANT,
    Harness,
    ScriptedGateway,
    WatchedDatabase,
    asks,
    result,
    says,
    user,
)

COMPACTING = ("sandwich", "retain_summary", "tree_summary", "chain")
MODES = ("inline", "background")


@pytest.fixture
def harness(database: Database) -> Harness:
    """One process's services with a model that summarises."""
    reply = f"<summary>{'a fact of what was done. ' * 400}</summary>"
    return Harness(WatchedDatabase(database), ScriptedGateway(reply), model=SUMMARISER)


async def receipts_of(harness: Harness, cid: str) -> list[ShownReceipt]:
    """Return the receipts of all compactions, the oldest first."""
    return list(await harness.receipts.page(TENANT, cid, 1000, None))[::-1]


async def test_one_large_result_in_the_preserved_top(harness: Harness) -> None:
    """It is cleared in the stored view: no model is called turn after turn for next to nothing."""
    harness.gateway.replies = ["<summary>short</summary>"]
    budget = {"context_window": 17_400, "max_output_tokens": 1_000}
    cid = await harness.conversation({"budget": {"context_window": 200_000}})
    await harness.append(cid, user("Read it."), asks("c"), result("c", "line of log\n" * 4_000))
    await harness.set_policy(cid, {"budget": budget})
    for number in range(40):
        await harness.append(cid, says(f"Answer {number}."), user(f"Question {number}?"))
        await harness.work(cid)
        build = await harness.build(cid)
        assert build["degraded"] == []
    assert len(harness.gateway.calls) == 0
    assert all(
        each.before_tokens - each.after_tokens > 2_300 for each in await receipts_of(harness, cid)
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("most", [6, 30])
async def test_max_messages_makes_a_compaction_due(harness: Harness, mode: str, most: int) -> None:
    """Again and again, in both modes, also where more has to stay than it allows."""
    harness.gateway.replies = ["<summary>short</summary>"]
    compaction = {"mode": mode, "max_messages": most}
    cid = await harness.conversation(
        {"budget": {"context_window": 128_000}, "compaction": compaction}
    )
    for number in range(60):
        size = 1 if number < 10 else 20  # at first too little for a summary
        await harness.append(
            cid, user(f"Question {number}?" * size), says(f"Answer {number}." * size)
        )
        if mode == "background":
            await harness.work(cid)
        await harness.build(cid)
        if number > 30 and most == 30:
            assert (await harness.stored(cid)).state.shown_messages <= most
    made = len(await receipts_of(harness, cid))
    assert (4 <= made <= 8) if most == 30 else (5 <= made <= 20)
    assert made <= len(harness.gateway.calls) <= made + 2, "a few answers are refused"


@pytest.mark.parametrize("strategy", COMPACTING)
async def test_large_results_of_open_calls_give_way(harness: Harness, strategy: str) -> None:
    """While other calls of the same message are open, its results can be cleared."""
    budget = {"context_window": 8_000, "max_output_tokens": 1_000}
    cid = await harness.conversation({"strategy": strategy, "budget": budget})
    calls = [f"c{number}" for number in range(9)]
    await harness.append(cid, user("Read them all."), asks(*calls))
    for call_id in calls:
        await harness.append(cid, result(call_id, "\n".join(f"line {n}" for n in range(900))))
        build = await harness.build(cid)
        assert "Read them all." in build.contents
        assert [each["id"] for each in build.messages[1]["tool_calls"]] == calls
