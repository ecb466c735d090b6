"""Overflow recovery over a real database: the provider refused the payload as too long.

[compaction.overflow-errors, strategy.sliding-window]
"""

from __future__ import annotations

from typing import Any

import pytest

from app.common.errors import ContextOverflow, ServiceUnavailable
from app.conversations.compaction_receipt import CompactResult
from app.prompt.resolved_settings import RequestSettings
from app.repositories import Database
from tests.services.fakes import (
    CHAT,
    SUMMARISER,
    TENANT,
    Build,
    Clock,
    Harness,
    ScriptedGateway,
    WatchedDatabase,
    asks,
    result,
    says,
    user,
)
from tests.services.payload.builders import ASKS, SECTIONS, TOOLS, check, fill, policy

STRATEGIES = (
    "sandwich",
    "retain_summary",
    "tree_summary",
    "chain",
    "sliding_window",
    "full_history",
)
DOWN = ServiceUnavailable("no", {"reason": "provider_error"})
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}


@pytest.fixture
def harness(database: Database) -> Harness:
    """One process's services whose model is down: no emergency needs it."""
    clock = Clock()
    return Harness(
        WatchedDatabase(database), ScriptedGateway(DOWN, clock=clock), clock, model=SUMMARISER
    )


async def overflow(
    harness: Harness, cid: str, ask: RequestSettings | None = None
) -> tuple[CompactResult, Build]:
    """Cut, check what is built then, and return both."""
    ask = ask or ASKS[CHAT]
    before = len(harness.gateway.calls)
    made, built = await harness.context.overflow(TENANT, cid, ask)
    build = Build(built)
    check(build, exact=ask.format is CHAT)
    assert len(harness.gateway.calls) == before
    assert made.compacted
    assert made.after_tokens < made.before_tokens
    assert made.strategies_run == ("emergency",)
    assert (made.model, made.cost_usd or 0) == (None, 0)
    return made, build


def questions(build: Build) -> list[int]:
    """Return the numbers of the questions that are shown."""
    texts = [str(item["content"]) for item in build.messages if item["role"] == "user"]
    return [int(text.split()[1]) for text in texts if text.startswith("question ")]


# --- what is dropped ------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("enabled", [True, False])
async def test_the_oldest_half_of_the_turns_goes_each_time(
    harness: Harness, strategy: str, enabled: bool
) -> None:
    """Repeated cuts end at the newest user message, then 422; no model is called.

    It works whatever the strategy, and without compaction; the log never changes.

    [compaction.emergency, strategy.sliding-window]
    """
    own = policy(
        20_000,
        strategy=strategy,
        compaction={"enabled": enabled},
        sliding_window={"keep_last_n": 100},
    )
    cid = await harness.conversation(own, SECTIONS, TOOLS)
    await harness.talk(cid, 16)
    log = await harness.bodies(cid)
    whole = await harness.build(cid)
    left = []
    for turns in (8, 4, 2, 1):
        made, build = await overflow(harness, cid)
        left.append(questions(build))
        assert left[-1] == list(range(16 - turns, 16))
        gone = 2 * (16 - turns)
        note = f"[{gone} earlier messages were left out to fit the window.]"
        assert build.messages[1]["content"] == note
        assert not build["summary_used"]
        assert made.after_tokens == build["tokens_used"]
        assert made.after_msg_count == len(build.messages) - 1
        assert (await harness.build(cid)).text == build.text
        assert (await harness.build(cid, None, harness.cold())).text == build.text
    made, build = await overflow(harness, cid)
    assert questions(build) == [15]
    assert "answer 15" not in build.contents
    with pytest.raises(ContextOverflow) as refused:
        await harness.context.overflow(TENANT, cid, ASKS[CHAT])
    assert refused.value.facts["budget"].tokens_used == build["tokens_used"]
    assert await harness.bodies(cid) == log
    receipts = await harness.receipts.page(TENANT, cid, 50, None)
    assert [found.trigger for found in receipts] == ["emergency"] * 5
    for _ in range(5):
        await harness.undo(cid)
    assert (await harness.build(cid)).text == whole.text


async def test_the_last_resort_keeps_media(harness: Harness) -> None:
    """Of the newest user message nothing is cut, its images included [budget.user-text-kept]."""
    cid = await harness.conversation(policy(20_000), tools=TOOLS)
    await harness.talk(cid, 3)
    content = [{"type": "text", "text": "question 9 about this"}, IMAGE]
    await harness.append(cid, {"role": "user", "content": content})
    for number in range(4):
        await harness.append(cid, asks(f"c{number}"), result(f"c{number}", "got it " * 60))
    while True:
        try:
            await overflow(harness, cid)
        except ContextOverflow:
            break
    for format, ask in ASKS.items():
        build = await harness.build(cid, ask)
        check(build, exact=format is CHAT)
        assert "https://example.org/a.png" in build.contents
        assert "question 9 about this" in build.contents
        assert "got it" not in build.contents and "question 2" not in build.contents


async def test_truncated_messages_are_summarised_later(harness: Harness) -> None:
    """The next compaction summarises truncated messages and removes the note."""
    for strategy in ("sandwich", "retain_summary", "tree_summary", "chain"):
        cid = await harness.conversation(policy(20_000, strategy=strategy))
        await harness.talk(cid, 12)
        await overflow(harness, cid)
        harness.gateway.replies = ["<summary>what was said</summary>"]
        harness.gateway.calls.clear()
        await harness.talk(cid, 12)
        made = await harness.compact(cid)
        assert made.compacted
        assert made.summary_range is not None and made.summary_range[0] == 1
        read = "".join(call.messages[-1]["content"] for call in harness.gateway.calls)
        assert all(read.count(f"question {n} why") == 2 for n in range(6)), strategy
        for format, ask in ASKS.items():
            build = await harness.build(cid, ask)
            check(build, exact=format is CHAT)
            assert "were left out" not in build.contents
        harness.gateway.replies = [DOWN]


# --- over the window ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "leaves", [{"compaction": {"enabled": False}}, {"strategy": "full_history"}]
)
async def test_overflow_cuts_until_it_fits_where_nothing_else_reduces(
    harness: Harness, leaves: dict[str, Any]
) -> None:
    """A build is 422; calls of `/overflow` make the payload fit."""
    cid = await harness.conversation(policy(1100, 100, **leaves))
    await fill(harness, cid, 4500)
    log = await harness.bodies(cid)
    with pytest.raises(ContextOverflow):
        await harness.build(cid)
    made, build = await overflow(harness, cid)
    assert made.before_tokens > 4400
    assert made.after_tokens <= 1000
    assert build["degraded"] == []
    assert (await harness.build(cid)).text == build.text
    assert len(await harness.receipts.page(TENANT, cid, 10, None)) == 1
    assert await harness.bodies(cid) == log


# --- lanes, formats, neighbours -------------------------------------------------------------


async def test_a_single_call_is_seen_after_an_overflow(harness: Harness) -> None:
    """A result is cleared before its call is dropped: without the call the model repeats it."""
    cid = await harness.conversation(policy(200_000), SECTIONS, TOOLS)
    text = "[12:00:00] compiled one unit\n" * 15_000
    batch = (user("question 0"), asks("call_1"), result("call_1", text))
    await harness.append(cid, *batch)
    await harness.build(cid)
    made, build = await overflow(harness, cid)
    assert made.after_msg_count == made.before_msg_count == 3
    assert questions(build) == [0]
    *_, call, shown = build.messages
    assert call["tool_calls"][0]["id"] == shown["tool_call_id"] == "call_1"
    assert shown["content"].startswith("[tool output trimmed; ref=blob_")
    assert (await harness.build(cid)).text == build.text
    assert (await harness.build(cid, None, harness.cold())).text == build.text
    made, build = await overflow(harness, cid)
    assert questions(build) == [0]
    assert [item["role"] for item in build.messages] == ["system", "user", "user"]


async def test_a_result_too_large_for_the_context_window_is_shortened(harness: Harness) -> None:
    """Where a single result is too long, only its text is shortened."""
    cid = await harness.conversation(policy(16_000), SECTIONS, TOOLS)
    text = "[12:00:00] compiled one unit\n" * 15_000
    await harness.append(cid, user("question 0"), asks("call_1"), result("call_1", text))
    build = await harness.build(cid)
    assert questions(build) == [0]
    assert build["degraded"] == []
    assert "left out" not in build.contents
    assert "[Output cut: " in build.messages[-1]["content"]


async def test_an_emergency_cut_calls_no_model_afterwards(harness: Harness) -> None:
    """A payload that is still over `compact_trigger` is answered without a summary.

    [compaction.proactive]
    """
    harness.gateway.replies = ["<summary>what was said</summary>"]
    cid = await harness.conversation(policy(1100, 100))
    await harness.append(cid, user("why " * 20), says("so"), user("why " * 940))
    assert (await harness.stored(cid)).state.tokens > 955
    _, build = await overflow(harness, cid)
    assert build["compaction"] is None
    assert harness.gateway.calls == []
