"""What a compaction frees, and what its summary has at least, in small windows.

[strategy.min-gain, summary.room]
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from app.adapters.postgres.database import PostgresDatabase
from app.domain.compaction.summary_budget import summary_floor
from app.domain.conversations.compaction_receipt import Compaction
from app.services.compaction.runs import SUMMARY_SHORT
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
def harness(database: PostgresDatabase) -> Harness:
    """One process's services with a model that summarises."""
    reply = f"<summary>{'a fact of what was done. ' * 400}</summary>"
    return Harness(WatchedDatabase(database), ScriptedGateway(reply), model=SUMMARISER)


async def receipts_of(harness: Harness, cid: str) -> list[Compaction]:
    """Return the receipts of all compactions, the oldest first."""
    page = await harness.receipts.page(TENANT, cid, 1000, None)
    return [item.compaction for item in page][::-1]


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
    """While the window has room it may take its floor; else receipt and answer say so."""
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
        is_short = SUMMARY_SHORT in receipt.degraded
        assert lacks_content or is_short or receipt.summary_tokens >= 0.8 * floor


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
