"""Overflow recovery over a real database: the provider refused the payload as too long.

[compaction.overflow-errors, strategy.sliding-window]
"""

from __future__ import annotations

import pytest

from app.common.errors import ContextOverflow, ServiceUnavailable
from app.conversations.receipt import CompactResult
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
    user,
)
from tests.services.payload.builders import ASKS, SECTIONS, TOOLS, check, policy

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
    """One process's services whose model is down: no overflow needs it."""
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
    assert made.stages == ("overflow",)
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

    [compaction.overflow, strategy.sliding-window]
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
        assert made.after_messages == len(build.messages) - 1
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
    assert [found.trigger for found in receipts] == ["overflow"] * 5
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


# --- over the window ------------------------------------------------------------------------


# --- lanes, formats, neighbours -------------------------------------------------------------


async def test_a_single_call_is_seen_after_an_overflow(harness: Harness) -> None:
    """A result is cleared before its call is dropped: without the call the model repeats it."""
    cid = await harness.conversation(policy(200_000), SECTIONS, TOOLS)
    text = "[12:00:00] compiled one unit\n" * 15_000
    batch = (user("question 0"), asks("call_1"), result("call_1", text))
    await harness.append(cid, *batch)
    await harness.build(cid)
    made, build = await overflow(harness, cid)
    assert made.after_messages == made.before_messages == 3
    assert questions(build) == [0]
    *_, call, shown = build.messages
    assert call["tool_calls"][0]["id"] == shown["tool_call_id"] == "call_1"
    assert shown["content"].startswith("[tool output trimmed; ref=blob_")
    assert (await harness.build(cid)).text == build.text
    assert (await harness.build(cid, None, harness.cold())).text == build.text
    made, build = await overflow(harness, cid)
    assert questions(build) == [0]
    assert [item["role"] for item in build.messages] == ["system", "user", "user"]
