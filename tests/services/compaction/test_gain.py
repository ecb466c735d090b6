"""What a compaction frees, and what its summary has at least, in small windows.

[strategy.min-gain, summary.room]
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from app.compaction.planning import summary_floor
from app.compaction.receipts import Receipt
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


async def receipts_of(harness: Harness, cid: str) -> list[Receipt]:
    """Return the receipts of all compactions, the oldest first."""
    page = await harness.receipts.page(TENANT, cid, 1000, None)
    return list(page)[::-1]


def talk(random: Random, number: int) -> list[dict[str, Any]]:
    """Return a turn of whole sentences, some with calls."""
    count = random.choice((1, 4, 12))
    turn = [
        user("\n".join(f"The port of unit {number}-{n} must be {n + 3}." for n in range(count)))
    ]
    for call in range(random.choice((0, 1, 3))):
        call_id = f"c{number}_{call}"
        lines = range(random.choice((3, 99)))
        found = "\n".join(f"unit {number}-{call}-{n} was found" for n in lines)
        turn += [asks(call_id), result(call_id, found)]
    return [*turn, says("\n".join(f"I decided that {number}-{n} is done." for n in range(count)))]


@pytest.mark.parametrize("strategy", COMPACTING)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fixed", [200, 3_600])
async def test_a_summary_has_its_floor(
    harness: Harness, strategy: str, mode: str, fixed: int
) -> None:
    """While the window has room it may take its floor."""
    budget = {"context_window": 8_000, "max_output_tokens": 1_000}
    compaction = {"mode": mode, "model": "extractive"}
    own = {"strategy": strategy, "budget": budget, "compaction": compaction}
    sections = [{"name": "base", "content": "Be kind. " * (fixed // 3)}]
    cid, random = await harness.conversation(own, sections), Random(f"{strategy} {mode}")
    for number in range(40):
        await harness.append(cid, *talk(random, number))
        if mode == "background":
            await harness.work(cid)
        await harness.build(cid)
    receipts = await receipts_of(harness, cid)
    assert len([each for each in receipts if each.made]) >= 3
    for receipt in receipts:
        freed = receipt.before_tokens - receipt.after_tokens
        assert freed >= 0.1 * 7_000
        is_cleared = "clear_tool_results" in receipt.strategies_run
        floor = 0 if is_cleared else summary_floor(freed + receipt.summary_tokens)
        lacks_content = not any(each.unlisted for each in receipt.made)
        assert fixed > 3_000 or lacks_content or receipt.summary_tokens >= 0.8 * floor


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


@pytest.mark.parametrize("model", [None, "extractive"])
async def test_a_tree_has_three_levels_at_most(harness: Harness, model: str | None) -> None:
    """At the top its summaries are merged into one of the same level. [strategy.tree]"""
    budget = {"context_window": 4_000, "max_output_tokens": 500}
    tree, compaction = {"chunk_size": 2}, {"mode": "inline", "model": model}
    own = {"strategy": "tree_summary", "budget": budget, "tree_summary": tree}
    cid, random = await harness.conversation({**own, "compaction": compaction}), Random("tree")
    harness.gateway.replies = [f"<summary>{'it was done. ' * 5}</summary>"]
    for number in range(60):
        await harness.append(cid, *talk(random, number))
        await harness.build(cid)
    receipts = await receipts_of(harness, cid)
    assert {made.level for receipt in receipts for made in receipt.summaries} <= {1, 2, 3}
    assert any(len(made.sources) > 1 for receipt in receipts for made in receipt.made)


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
