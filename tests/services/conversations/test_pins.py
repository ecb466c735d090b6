"""Pins over a real database: never summarised, cleared or dropped, whatever happens.

[pins.verbatim]
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.adapters.postgres.database import PostgresDatabase
from app.domain.common.errors import ContextOverflow, NotFound, ServiceUnavailable, ValidationError
from app.domain.prompt.resolved_settings import RequestSettings
from tests.services.fakes import (
    ANTHROPIC,
    CHAT,
    CLAUDE,
    MODEL,
    SUMMARISER,
    TENANT,
    Build,
    Clock,
    Harness,
    ScriptedGateway,
    WatchedDatabase,
    asks,
    new_id,
    result,
    says,
    user,
)
from tests.services.payload.builders import ASKS, SECTIONS, TOOLS, check, fill, policy

COMPACTING = ("sandwich", "retain_summary", "tree_summary", "chain")
DOWN = ServiceUnavailable("no", {"reason": "provider_error"})
SMALL = {
    CHAT: RequestSettings(CHAT, MODEL, None, 900),
    ANTHROPIC: RequestSettings(ANTHROPIC, CLAUDE, None, 900),
}


@pytest.fixture
def harness(database: PostgresDatabase) -> Harness:
    """One process's services with a model that summarises."""
    clock = Clock()
    return Harness(WatchedDatabase(database), ScriptedGateway(clock=clock), clock, model=SUMMARISER)


async def both(harness: Harness, cid: str, asks_: Any = None) -> list[Build]:
    """Build in both formats, warm and cold, and check."""
    builds = []
    for format, ask in (asks_ or ASKS).items():
        build = await harness.build(cid, ask)
        check(build, exact=format is CHAT)
        assert (await harness.build(cid, ask, harness.cold())).text == build.text
        builds.append(build)
    return builds


async def trip(harness: Harness, cid: str) -> dict[str, int]:
    """Append talk around a turn with parallel calls; return the seqs of that turn by name."""
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


def shows(build: Build, which: str) -> None:
    """Assert that exactly the pinned part of the trip is shown."""
    for text in REST:
        assert (text in build.contents) is (text in SHOWN[which]), text


# --- before and after -----------------------------------------------------------------------


@pytest.mark.parametrize("strategy", COMPACTING)
@pytest.mark.parametrize("which", ["question", "calls", "turn"])
@pytest.mark.parametrize("late", [False, True])
async def test_a_pin_stays_through_compactions(
    harness: Harness, strategy: str, which: str, late: bool
) -> None:
    """A message, a call group or a whole turn stays where it stood.

    Pinned late, after a compaction hid it, it is shown again: a new epoch, `pinned`.

    [pins.whole-group]
    """
    cid = await harness.conversation(policy(20_000, strategy=strategy), SECTIONS, TOOLS)
    seqs = await trip(harness, cid)
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
            shows(build, which)
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
            shows(build, which)
            assert build["summary_used"]
        await harness.talk(cid, 8)
    assert set(pinned) <= set((await harness.receipt(cid)).view.kept)
    await harness.undo(cid)
    for build in await both(harness, cid):
        assert all(text in build.contents for text in SHOWN[which])


async def test_the_summariser_sees_a_pin_as_kept(harness: Harness) -> None:
    """It is told what stays word for word, so that the summary need not repeat it.

    [strategy.preserve-user-messages]
    """
    cid = await harness.conversation(policy(20_000))
    seqs = await trip(harness, cid)
    await harness.pin(cid, seqs["question"])
    await harness.compact(cid)
    read = harness.gateway.calls[-1].messages[-1]["content"]
    assert "the harbour, please" in read and "kept" in read.lower()


@pytest.mark.parametrize("strategy", COMPACTING)
async def test_unpinning_lets_the_next_compaction_have_it(harness: Harness, strategy: str) -> None:
    """Until then it stays as it is shown, and no cache breaks."""
    cid = await harness.conversation(policy(20_000, strategy=strategy), tools=TOOLS)
    seqs = await trip(harness, cid)
    await harness.pin(cid, seqs["calls"], turn=True)
    await harness.compact(cid)
    before = await both(harness, cid)
    assert await harness.unpin(cid, seqs["calls"], turn=True) == sorted(seqs.values())
    after = await both(harness, cid)
    assert [build.text for build in after] == [build.text for build in before]
    assert {build["epoch"] for build in after} == {build["epoch"] for build in before}
    await harness.talk(cid, 8)
    assert (await harness.compact(cid)).compacted
    for build in await both(harness, cid):
        assert "ferries at nine" not in build.contents and "nine and ten" not in build.contents
    assert await harness.unpin(cid, seqs["calls"]) != []
    kinds = [kind for kind, _ in await harness.told(cid)]
    assert (kinds.count("pinned"), kinds.count("unpinned")) == (1, 1)


async def test_a_part_of_what_is_pinned_can_be_unpinned(harness: Harness) -> None:
    """A turn that is pinned loses a call group's pin; the rest stays pinned. [pins.whole-group]"""
    cid = await harness.conversation(policy(20_000), tools=TOOLS)
    seqs = await trip(harness, cid)
    await harness.pin(cid, seqs["question"], turn=True)
    assert await harness.unpin(cid, seqs["second"]) == [
        seqs[n] for n in ("calls", "second", "first")
    ]
    await harness.compact(cid)
    for build in await both(harness, cid):
        assert "ferries" not in build.contents
        assert "the harbour" in build.contents and "nine and ten" in build.contents


async def test_pinning_twice_is_pinning_once(harness: Harness) -> None:
    """A pin that is there changes nothing: no epoch, no other view."""
    cid = await harness.conversation(policy(20_000), tools=TOOLS)
    seqs = await trip(harness, cid)
    await harness.compact(cid)
    first = await harness.pin(cid, seqs["calls"])
    version = (await harness.stored(cid)).state.view_version
    before = await harness.build(cid)
    assert await harness.pin(cid, seqs["first"]) == first
    assert (await harness.stored(cid)).state.view_version == version
    assert (await harness.build(cid)).text == before.text


# --- results that come later ----------------------------------------------------------------


@pytest.mark.parametrize("strategy", COMPACTING)
async def test_a_result_that_comes_after_the_pin_is_part_of_it(
    harness: Harness, strategy: str
) -> None:
    """A pin on an open call group holds for the results still to come. [pins.whole-group]"""
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


async def test_a_late_result_is_not_cleared_either(harness: Harness) -> None:
    """Where a chain only clears, the whole pinned group is spared, and counted so."""
    cid = await harness.conversation(policy(4100, 100, strategy="chain"), tools=TOOLS)
    await harness.append(cid, user("read"), asks("a", "b"), result("a", "early " * 200))
    await harness.pin(cid, 2)
    await harness.append(cid, result("b", "late " * 200))
    for number in range(9):
        await harness.append(cid, asks(f"c{number}"), result(f"c{number}", f"r{number} " * 120))
    made = await harness.compact(cid, target_tokens=2200)
    assert made.strategies_run == ("clear_tool_results",)
    for build in await both(harness, cid):
        assert "early early" in build.contents and "late late" in build.contents
        assert "r0 r0" not in build.contents
    assert made.after_tokens >= (await harness.build(cid))["tokens_used"]
    reading = await harness.context.budget(TENANT, cid)
    assert reading is not None
    assert reading.budget.used_tokens == made.after_tokens


async def test_late_results_stay_where_a_build_clears(harness: Harness) -> None:
    """The steps that need no model spare the whole pinned group as well [pins.whole-group]."""
    harness.gateway.replies = [DOWN]
    own = policy(3000, 100, sandwich={"preserve_top": 2, "preserve_bottom": 45})
    cid = await harness.conversation(own, tools=TOOLS)
    await harness.append(cid, user("read"), asks("a", "b"), result("a", "early " * 100))
    await harness.pin(cid, 2)
    await harness.append(cid, result("b", "late " * 100))
    for number in range(20):
        await harness.append(cid, asks(f"c{number}"), result(f"c{number}", f"r{number} " * 60))
    for build in await both(harness, cid):
        assert "tool_results_cleared" in build["degraded"]
        assert "early early" in build.contents and "late late" in build.contents
        assert "r0 r0" not in build.contents


# --- wherever something is left out ---------------------------------------------------------


async def test_pins_in_a_sliding_window(harness: Harness) -> None:
    """They are shown before the last N messages, wherever they stand [pins.verbatim]."""
    own = policy(20_000, strategy="sliding_window", sliding_window={"keep_last_n": 4})
    cid = await harness.conversation(own, tools=TOOLS)
    seqs = await trip(harness, cid)
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


async def test_pins_are_not_cleared_by_a_chain(harness: Harness) -> None:
    """Results around a pinned one become placeholders, it does not [pins.whole-group]."""
    cid = await harness.conversation(policy(3100, 100, strategy="chain"), tools=TOOLS)
    await harness.append(cid, user("read"))
    for number in range(9):
        await harness.append(cid, asks(f"c{number}"), result(f"c{number}", f"r{number} " * 120))
    await harness.pin(cid, 7)
    made = await harness.compact(cid, target_tokens=1700)
    assert made.strategies_run == ("clear_tool_results",)
    for build in await both(harness, cid):
        assert "r2 r2" in build.contents
        assert "r1 r1" not in build.contents and "r3 r3" not in build.contents
    assert made.after_tokens >= (await harness.build(cid))["tokens_used"]


async def test_a_cleared_result_that_is_pinned_comes_back(harness: Harness) -> None:
    """A pin on a placeholder shows the result again, and the numbers agree. [pins.whole-group]"""
    cid = await harness.conversation(policy(3100, 100, strategy="chain"), tools=TOOLS)
    await harness.append(cid, user("read"))
    for number in range(9):
        await harness.append(cid, asks(f"c{number}"), result(f"c{number}", f"r{number} " * 120))
    await harness.compact(cid, target_tokens=1700)
    before = (await harness.context.budget(TENANT, cid)).budget.used_tokens  # type: ignore[union-attr]
    assert await harness.pin(cid, 4) == [4, 5]
    for ask in ASKS.values():
        assert "r1 r1" in (await harness.build(cid, ask)).contents
    chat, _ = await both(harness, cid)
    assert "r0 r0" not in chat.contents
    after = (await harness.context.budget(TENANT, cid)).budget.used_tokens  # type: ignore[union-attr]
    assert after > before + 100
    assert after >= chat["tokens_used"]
    assert (await harness.stored(cid)).state.kept == (5,)


async def test_a_pin_on_words_between_cleared_results_breaks_nothing(harness: Harness) -> None:
    """What is shown already stays so: the pin costs no epoch. [pins.verbatim, epochs.extend]"""
    cid = await harness.conversation(policy(3100, 100, strategy="chain"), tools=TOOLS)
    await harness.append(cid, user("read"))
    for number in range(9):
        await harness.append(cid, asks(f"c{number}"), result(f"c{number}", f"r{number} " * 120))
    await harness.compact(cid, target_tokens=1700)
    before = await both(harness, cid)
    await harness.pin(cid, 1)
    after = await both(harness, cid)
    assert [build["epoch"] for build in after] == [build["epoch"] for build in before]
    assert [build.text for build in after] == [build.text for build in before]
    await harness.talk(cid, 2)
    assert (await harness.build(cid))["epoch"] == before[0]["epoch"]


async def test_pins_survive_an_emergency(harness: Harness) -> None:
    """However often the turns are halved, pins stay, and do not keep others [pins.whole-group]."""
    cid = await harness.conversation(policy(20_000), tools=TOOLS)
    seqs = await trip(harness, cid)
    await harness.pin(cid, seqs["calls"])
    for _ in range(20):
        try:
            made, built = await harness.context.overflow(TENANT, cid, ASKS[CHAT])
        except ContextOverflow:
            break
        build = Build(built)
        check(build, exact=True)
        assert made.after_tokens < made.before_tokens
        assert "ferries at nine" in build.contents and "ships at ten" in build.contents
    else:
        raise AssertionError("there is always something left to cut")
    chat, _ = await both(harness, cid)
    assert "question 7 why" in chat.contents and "answer 7" not in chat.contents


async def test_pins_in_a_lane_with_a_smaller_window(harness: Harness) -> None:
    """A request's own window shows the pins too, and so does one pinned later [pins.verbatim]."""
    cid = await harness.conversation(policy(20_000), tools=TOOLS)
    seqs = await trip(harness, cid)
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


async def test_a_pin_between_trimmed_results_of_a_lane_costs_one_epoch(harness: Harness) -> None:
    """A lane that had to clear results builds on after a pin on words between them."""
    harness.gateway.replies = [DOWN]
    cid = await harness.conversation(policy(3000, 100, strategy="full_history"), tools=TOOLS)
    await harness.set_policy(cid, {"strategy": "sandwich", "sandwich": {"preserve_bottom": 40}})
    await harness.append(cid, user("read"))
    for number in range(20):
        await harness.append(cid, asks(f"c{number}"), result(f"c{number}", f"r{number} " * 70))
    before = await harness.build(cid)
    assert "tool_results_cleared" in before["degraded"]
    await harness.pin(cid, 1)
    first = await harness.build(cid)
    assert first["epoch"] <= before["epoch"] + 1
    for _ in range(3):
        await harness.append(cid, says("so"))
        later = await harness.build(cid)
        check(later, exact=True)
        assert later["epoch"] == first["epoch"]


async def test_a_pin_when_the_window_is_full(harness: Harness) -> None:
    """At `compact_trigger` a build compacts around the pins. [pins.verbatim, budget.levels]"""
    cid = await harness.conversation(policy(1100, 100))
    await harness.append(cid, user("remember: green tea"), says("noted"))
    await harness.pin(cid, 1)
    own = {"sandwich": {"preserve_top": 0}}
    await harness.set_policy(cid, own)
    for _ in range(3):
        used = 955
        while (await harness.context.budget(TENANT, cid)).budget.used_tokens < used:  # type: ignore[union-attr]
            await harness.append(cid, user("why " * 4), says("so " * 4))
        build = await harness.build(cid)
        check(build, exact=True)
        assert build["compaction"].compacted
        assert "green tea" in build.contents and "noted" not in build.contents


# --- the limit ------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [*COMPACTING, "sliding_window", "full_history"])
async def test_pins_take_at_most_half_of_the_history(harness: Harness, strategy: str) -> None:
    """More is 422, and nothing is stored of it. [pins.limit]"""
    cid = await harness.conversation(policy(1100, 100, strategy=strategy), SECTIONS)
    await harness.append(cid, *(user(f"{n} " + "word " * 100) for n in range(8)))
    fixed = (await harness.resolver.of(await harness.stored(cid))).usage(0, 0).fixed
    pinned = []
    with pytest.raises(ValidationError) as refused:
        for seq in range(1, 9):
            await harness.pin(cid, seq)
            pinned.append(seq)
    facts = refused.value.facts
    assert facts["limit"] == (1000 - fixed) // 2
    assert facts["pinned_tokens"] > facts["limit"]
    assert pinned == [1, 2, 3, 4]
    async with harness.database.session() as session:
        assert [entry.seq for entry in await session.contexts.pinned(cid)] == pinned
    kinds = [kind for kind, _ in await harness.told(cid)]
    assert kinds.count("pinned") == 4
    with pytest.raises(ValidationError):
        await harness.pin(cid, 5, turn=True)
    await harness.unpin(cid, 2)
    assert await harness.pin(cid, 5) == [5]


async def test_a_refused_pin_shows_nothing_again(harness: Harness) -> None:
    """A hidden turn that is too large to pin stays hidden, in the same epoch. [pins.whole-group]"""
    cid = await harness.conversation(policy(1100, 100))
    await harness.append(cid, user("read"), says("word " * 520), user("and"), says("then"))
    await harness.talk(cid, 2)
    await harness.set_policy(cid, {"sandwich": {"preserve_top": 0, "preserve_bottom": 2}})
    assert (await harness.compact(cid)).compacted
    before, state = await harness.build(cid), (await harness.stored(cid)).state
    with pytest.raises(ValidationError):
        await harness.pin(cid, 1, turn=True)
    assert (await harness.stored(cid)).state == state
    assert (await harness.build(cid)).text == before.text


async def test_without_a_known_window_there_is_no_limit(harness: Harness) -> None:
    """Where nobody knows the window pins are taken as they are. [budget.unknown-model]"""
    harness.resolver.default_model = None
    cid = await harness.conversation()
    await harness.append(cid, user("hi"))
    assert await harness.pin(cid, 1) == [1]


async def test_pins_of_nothing(harness: Harness) -> None:
    """Unknown messages, conversations and tenants are 404. [pins.verbatim, errors.problem-json]"""
    one, two = [await harness.conversation(policy(20_000)) for _ in range(2)]
    sent = await harness.append(one, user("hi"))
    (message,) = sent.messages
    pins = harness.pins
    wrong = [
        (TENANT, one, new_id()),
        (TENANT, two, message.id),
        (TENANT, new_id(), message.id),
        ("another", one, message.id),
    ]
    for tenant, cid, message_id in wrong:
        for turn in (False, True):
            with pytest.raises(NotFound):
                await pins.pin(tenant, cid, message_id, whole_turn=turn)
            with pytest.raises(NotFound):
                await pins.unpin(tenant, cid, message_id, whole_turn=turn)
    assert await harness.told(one) == []


async def test_pins_at_once(harness: Harness) -> None:
    """Pins of several callers at once: all stored, the limit kept, the sums true. [pins.limit]"""
    cid = await harness.conversation(policy(20_000, sandwich={"preserve_top": 0}))
    await harness.talk(cid, 20)
    await harness.compact(cid)
    await asyncio.gather(*(harness.pin(cid, seq) for seq in range(1, 20, 3)))
    chat, _ = await both(harness, cid)
    reading = await harness.context.budget(TENANT, cid)
    assert reading is not None
    assert reading.budget.used_tokens == chat["tokens_used"]
    state = (await harness.stored(cid)).state
    assert set(range(1, 20, 3)) <= set(state.kept)
    assert state.hidden_messages == state.head_seq - (len(chat.messages) - 1)


async def test_pins_go_with_their_conversation(harness: Harness) -> None:
    """A conversation made anew has no pins. [log.delete-everything]"""
    cid = await harness.conversation(policy(20_000))
    await fill(harness, cid, 100)
    await harness.pin(cid, 1)
    removed = await harness.conversations.remove(TENANT, cid)
    assert removed["pins"] == 1
    await harness.conversation(policy(20_000), conversation_id=cid)
    await fill(harness, cid, 100)
    async with harness.database.session() as session:
        assert await session.contexts.pinned(cid) == []
