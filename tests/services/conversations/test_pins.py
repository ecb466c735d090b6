"""Pins over a real database: never summarised, cleared or dropped, whatever happens.

[pins.verbatim]
"""

from __future__ import annotations

import pytest

from tests.services.fakes import SUMMARISER, Harness, asks, result, says, user
from tests.services.payload.builders import TOOLS, both, check, policy

pytestmark = pytest.mark.services(model=SUMMARISER)

COMPACTING = ("sandwich", "retain_summary", "tree_summary", "chain")


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


# --- before and after -----------------------------------------------------------------------


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


# --- the limit ------------------------------------------------------------------------------
