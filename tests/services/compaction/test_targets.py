"""Compactions reach the target and go not far below, as a dry run predicts.

[strategy.target, compaction.dry-run, summary.unlisted]
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.conversations.receipt import CompactResult
from app.repositories import Database
from tests.domain.histories import RawLog, raw_logs
from tests.services.fakes import SUMMARISER, Harness, ScriptedGateway, WatchedDatabase, says, user
from tests.services.payload.builders import TOOLS, policy

COMPACTING = ("sandwich", "retain_summary", "tree_summary", "chain")
"""Of the target: the part that stays where no message is large."""


async def compacted_as_shown(harness: Harness, cid: str, **options: Any) -> CompactResult:
    """Compact after a dry run, which has to tell the same, and return what came of it."""
    shown = await harness.compact(cid, dry_run=True, **options)
    state = (await harness.stored(cid)).state
    assert not shown.compacted and not shown.estimated
    made = await harness.compact(cid, **options)
    for name in (
        "before_tokens",
        "after_tokens",
        "before_messages",
        "after_messages",
        "summary_range",
        "summary_tokens",
        "stages",
        "model",
        "cost_usd",
    ):
        assert getattr(shown, name) == getattr(made, name), name
    assert shown.reason == ("dry run" if made.compacted else made.reason)
    assert made.compacted == ((await harness.stored(cid)).state != state)
    return made


# --- a table --------------------------------------------------------------------------------


# --- what a model would write ---------------------------------------------------------------


@pytest.mark.parametrize("strategy", COMPACTING)
async def test_a_dry_run_with_a_model_states_its_estimate(
    database: Database, strategy: str
) -> None:
    """Beside the estimated size of the summary all is exact.

    Without a call of the model.

    [compaction.per-call]
    """
    reply = "<summary>" + "It was said. " * 20 + "</summary>"
    harness = Harness(WatchedDatabase(database), ScriptedGateway(reply), model=SUMMARISER)
    cid = await harness.conversation(policy(6100, 100, strategy=strategy))
    for round in range(3):
        await harness.talk(cid, 90 if not round else 50)
        calls = len(harness.gateway.calls)
        shown = await harness.compact(cid, dry_run=True)
        assert shown.estimated and shown.cost_usd is None
        assert len(harness.gateway.calls) == calls
        made = await harness.compact(cid)
        assert made.compacted and not made.estimated
        rest = (shown.after_tokens - shown.summary_tokens, made.after_tokens - made.summary_tokens)
        assert rest[0] == rest[1]
        assert made.after_tokens <= 3000


# --- generated and recorded conversations ---------------------------------------------------


@given(
    log=raw_logs(),
    strategy=st.sampled_from(COMPACTING),
    target=st.sampled_from([0.2, 0.5, 0.8]),
    window=st.sampled_from([600, 1000, 2000]),
    own=st.fixed_dictionaries(
        {
            "preserve_user_messages": st.booleans(),
            "tree_summary": st.fixed_dictionaries({"chunk_size": st.integers(2, 8)}),
            "compaction": st.fixed_dictionaries(
                {"retain_last_turns": st.integers(1, 3), "target": st.just(0.5)}
            ),
        }
    ),
)
@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
async def test_generated_logs_are_compacted_as_a_dry_run_says(
    harness: Harness, log: RawLog, strategy: str, target: float, window: int, own: dict[str, Any]
) -> None:
    """A dry run tells exactly what the built-in summariser makes, and the target is met."""
    own = {**own, "compaction": {**own["compaction"], "target": target}}
    cid = await harness.conversation(policy(window + 100, 100, strategy=strategy, **own))
    for format, message in log.messages:
        await harness.append(cid, message, format=format)
    for options in ({}, {"target_tokens": window // 4}):
        made = await compacted_as_shown(harness, cid, **options)
        if made.compacted:
            assert made.after_tokens < made.before_tokens


@pytest.mark.parametrize("strategy", COMPACTING)
async def test_room_that_a_summary_does_not_need_shows_messages(
    harness: Harness, strategy: str
) -> None:
    """Most of a target is reserved for a summary; what that leaves is used. [summary.room]"""
    cid = await harness.conversation(policy(40_000, 100, strategy=strategy), tools=TOOLS)
    for number in range(120):
        await harness.append(cid, user("Go on, please."), says(f"step {number} " * 60))
    used = (await harness.build(cid))["tokens_used"]
    target = used // 2
    made = await compacted_as_shown(harness, cid, target_tokens=target)
    assert 0.85 * target <= made.after_tokens <= target
