"""Pins over a real database: never summarised, cleared or dropped, whatever happens.

[pins.verbatim]
"""

from __future__ import annotations

import pytest

from app.prompt.resolved_settings import RequestSettings
from tests.services.fakes import (
    ANTHROPIC,
    CHAT,
    CLAUDE,
    MODEL,
    SUMMARISER,
    TENANT,
    Build,
    Harness,
    asks,
    result,
    says,
    user,
)
from tests.services.payload.builders import ASKS, SECTIONS, TOOLS, both, check, policy

pytestmark = pytest.mark.services(model=SUMMARISER)

COMPACTING = ("sandwich", "retain_summary", "tree_summary", "chain")
SMALL = {
    CHAT: RequestSettings(CHAT, MODEL, None, 900),
    ANTHROPIC: RequestSettings(ANTHROPIC, CLAUDE, None, 900),
}


async def turn_with_calls(harness: Harness, cid: str) -> dict[str, int]:
    """Append a turn with parallel calls among others, and return its seqs by name."""
    await harness.talk(cid, 5)
    state = (await harness.stored(cid)).state.head_seq
    await harness.append(
        cid,
        user("the harbour, please"),
        asks("h1", "h2"),
        result("h2", "ferries at nine " + "f " * 100),
        result("h1", "ships at ten " + "s " * 100),
        says("nine and ten"),
    )
    await harness.talk(cid, 8)
    names = ("question", "calls", "second", "first", "answer")
    return {name: state + 1 + place for place, name in enumerate(names)}


SHOWN = {
    "question": ("the harbour, please",),
    "calls": ("ferries at nine", "ships at ten"),
    "turn": ("the harbour, please", "ferries at nine", "ships at ten", "nine and ten"),
}
REST = ("the harbour, please", "ferries at nine", "ships at ten", "nine and ten")


def assert_shown(build: Build, which: str) -> None:
    """Assert that exactly the pinned part of the turn is shown."""
    for text in REST:
        assert (text in build.contents) is (text in SHOWN[which]), text


# --- before and after -----------------------------------------------------------------------


@pytest.mark.parametrize("strategy", COMPACTING)
@pytest.mark.parametrize("which", ["question", "calls", "turn"])
@pytest.mark.parametrize("late", [False, True])
async def test_a_pinned_message_is_not_summarised(
    harness: Harness, strategy: str, which: str, late: bool
) -> None:
    """A message, a call group or a whole turn stays where it stood.

    Pinned late, after a compaction hid it, it is shown again: a new epoch, `pinned`.

    [pins.whole-group]
    """
    cid = await harness.conversation(policy(20_000, strategy=strategy), SECTIONS, TOOLS)
    seqs = await turn_with_calls(harness, cid)
    if late:
        assert (await harness.compact(cid)).compacted
        before = await both(harness, cid)
        assert all("harbour" not in build.contents for build in before)
    at = seqs["first" if which == "calls" else "question"]
    pinned = await harness.pin(cid, at, turn=which == "turn")
    expected = {
        "question": [seqs["question"]],
        "calls": [seqs["calls"], seqs["second"], seqs["first"]],
        "turn": sorted(seqs.values()),
    }
    assert pinned == expected[which]
    if late:
        for ask in ASKS.values():
            build = await harness.build(cid, ask)
            assert build["cache_break_reason"] == "pinned"
            assert_shown(build, which)
        reading = await harness.context.budget(TENANT, cid)
        assert reading is not None
        assert reading.budget.used_tokens == (await harness.build(cid))["tokens_used"]
    for round_ in range(2):
        if round_ or not late:
            made = await harness.compact(cid)
            assert made.compacted
            chat = await harness.build(cid)
            assert made.after_tokens == chat["tokens_used"]
            assert made.after_msg_count == len(chat.messages) - 1
        for build in await both(harness, cid):
            assert_shown(build, which)
            assert build["summary_used"]
        await harness.talk(cid, 8)
    assert set(pinned) <= set((await harness.receipt(cid)).view.unhidden_seqs)
    await harness.undo(cid)
    for build in await both(harness, cid):
        assert all(text in build.contents for text in SHOWN[which])


async def test_the_summariser_is_given_pinned_messages_as_kept(harness: Harness) -> None:
    """It is told what stays word for word, so that the summary need not repeat it.

    [strategy.preserve-user-messages]
    """
    cid = await harness.conversation(policy(20_000))
    seqs = await turn_with_calls(harness, cid)
    await harness.pin(cid, seqs["question"])
    await harness.compact(cid)
    read = harness.gateway.calls[-1].messages[-1]["content"]
    assert "the harbour, please" in read and "kept" in read.lower()


# --- results that come later ----------------------------------------------------------------


@pytest.mark.parametrize("strategy", COMPACTING)
async def test_results_after_the_pin_are_pinned(harness: Harness, strategy: str) -> None:
    """A pin on an open call group applies to its later results [pins.whole-group]."""
    own = policy(4100, 100, strategy=strategy)
    cid = await harness.conversation(own, tools=TOOLS)
    await harness.talk(cid, 3)
    await harness.append(cid, asks("a", "b"), result("a", "early " * 100))
    state = (await harness.stored(cid)).state.head_seq
    assert await harness.pin(cid, state) == [state - 1, state]
    await harness.append(cid, result("b", "late " * 100), says("so"))
    for number in range(9):
        await harness.append(cid, asks(f"c{number}"), result(f"c{number}", f"r{number} " * 90))
    await harness.talk(cid, 6)
    for _ in range(2):
        assert (await harness.compact(cid)).compacted
        for build in await both(harness, cid):
            assert "early early" in build.contents
            assert "late late" in build.contents
            assert "r0 r0" not in build.contents
        await harness.talk(cid, 8)
    await harness.undo(cid)
    for build in await both(harness, cid):
        assert "late late" in build.contents


# --- wherever something is left out ---------------------------------------------------------


async def test_pins_in_a_sliding_window(harness: Harness) -> None:
    """They are shown before the last N messages, at any position [pins.verbatim]."""
    own = policy(20_000, strategy="sliding_window", sliding_window={"keep_last_n": 4})
    cid = await harness.conversation(own, tools=TOOLS)
    seqs = await turn_with_calls(harness, cid)
    before = await both(harness, cid)
    await harness.pin(cid, seqs["first"])
    await harness.pin(cid, seqs["question"])
    for build in await both(harness, cid):
        assert len(build.messages) > len(before[0].messages)
        for text in ("the harbour", "ferries at nine", "ships at ten"):
            assert text in build.contents
        assert "nine and ten" not in build.contents
    moved = await harness.build(cid)
    await harness.append(cid, user("next"))
    later = await harness.build(cid)
    assert later["cache_break_reason"] == "window_moved"
    assert len(later.messages) == len(moved.messages) or "next" in later.contents
    check(later, exact=True)
    assert "ferries at nine" in later.contents


async def test_pins_in_a_smaller_context_window(harness: Harness) -> None:
    """A request with its own context window shows the pins, also later ones [pins.verbatim]."""
    cid = await harness.conversation(policy(20_000), tools=TOOLS)
    seqs = await turn_with_calls(harness, cid)
    await harness.pin(cid, seqs["question"])
    for build in await both(harness, cid, SMALL):
        assert "the harbour, please" in build.contents
        assert "ferries" not in build.contents
    await harness.pin(cid, seqs["calls"])
    for build in await both(harness, cid, SMALL):
        assert "the harbour, please" in build.contents
        assert "ferries at nine" in build.contents and "ships at ten" in build.contents
    first = await harness.build(cid, SMALL[CHAT])
    await harness.append(cid, user("and now?"))
    later = await harness.build(cid, SMALL[CHAT])
    assert later["epoch"] == first["epoch"], "the pins cost one epoch, not one each build"
    assert (await harness.stored(cid)).state.compaction_id is None


# --- the limit ------------------------------------------------------------------------------
