"""Results that a later call repeats are cleared when an epoch begins.

[tool-output.clear-repeated]
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.services.fakes import ANTHROPIC, SUMMARISER, TENANT, Build, Harness, result, says, user
from tests.services.payload.builders import ASKS, TOOLS, both, check, is_extension, policy

pytestmark = pytest.mark.services(model=SUMMARISER)

REPEATED = "repeated_results_cleared"


async def read(harness: Harness, cid: str, number: int, arguments: Any, words: int = 150) -> None:
    """Append a call with these arguments and its result, of about two tokens a word."""
    function = {"name": "read_file", "arguments": json.dumps(arguments)}
    call = {"id": f"c{number}", "type": "function", "function": function}
    asking = {"role": "assistant", "content": None, "tool_calls": [call]}
    await harness.append(cid, asking, result(f"c{number}", f"r{number} " * words))


async def reader(harness: Harness, own: Any, *arguments: Any) -> str:
    """Return a conversation with this policy whose agent has built, then read these."""
    cid = await harness.conversation(own, [{"name": "base", "content": "Be kind."}], TOOLS)
    await harness.append(cid, user("read it all"))
    await harness.build(cid)
    for number, given_ in enumerate(arguments):
        await read(harness, cid, number, given_)
    return cid


async def begin_epoch(harness: Harness, cid: str, text: str = "Be brief.") -> Build:
    """Change a section, and return the build of the epoch that begins with that."""
    await harness.patch(cid, sections=[{"name": "base", "content": text}])
    return await harness.build(cid)


def shown(build: Build) -> list[int]:
    """Return the numbers of the results that a payload shows whole."""
    return [number for number in range(50) if f"r{number} r{number} " in build.contents]


async def test_an_older_read_is_cleared_when_an_epoch_begins(harness: Harness) -> None:
    """Not before; the reason stays, `degraded` names it, the receipt has it, an undo shows it."""
    page = {"path": "a", "limit": 9}
    cid = await reader(harness, policy(50_000), page, {"path": "a"}, {"limit": 9, "path": "a"})
    await read(harness, cid, 3, {"path": "b", "limit": None})
    await read(harness, cid, 4, {"path": "b"})
    await harness.append(cid, says("both"), user("go on"))
    before = await harness.build(cid)
    assert (shown(before), before["degraded"]) == ([0, 1, 2, 3, 4], [])
    build = await begin_epoch(harness, cid)
    check(build, exact=True)
    assert (build["cache_break_reason"], build["degraded"]) == ("sections_changed", [REPEATED])
    assert (shown(build), build.contents.count("[tool output trimmed")) == ([1, 2, 4], 2)
    assert build["tokens_used"] < before["tokens_used"]
    receipt = await harness.receipts.get(TENANT, cid, build_receipt := await active(harness, cid))
    assert (receipt.trigger, receipt.repeated_seqs) == ("tool_output", [3, 9])
    _, page_of = await harness.receipts.expand(TENANT, cid, build_receipt, 0, 50)
    assert "r0 r0 " in page_of[2].body
    await harness.append(cid, says("more"))
    later = await harness.build(cid)
    assert later["degraded"] == [REPEATED] and is_extension(later, build)
    await harness.undo(cid)
    assert shown(await begin_epoch(harness, cid, "Be long.")) == [0, 1, 2, 3, 4]


async def active(harness: Harness, cid: str) -> str:
    """Return the id of the active receipt."""
    return (await harness.receipt(cid)).compaction_id


@pytest.mark.parametrize(
    "own",
    [
        {"tool_output": {"clear_repeated": False}},
        {"tool_output": {"enabled": False}},
        {"tool_output": {"exclude_tools": ["read_file"]}},
        {"strategy": "full_history"},
    ],
)
async def test_a_policy_keeps_repeated_results(harness: Harness, own: dict[str, Any]) -> None:
    """The switch, tools whose results are never cleared, and a history that stays whole."""
    cid = await reader(harness, policy(50_000, **own), *[{"path": "a"}] * 3)
    await harness.append(cid, says("done"))
    await harness.build(cid)
    assert shown(await begin_epoch(harness, cid)) == [0, 1, 2]


async def test_a_failed_call_repeats_nothing(harness: Harness) -> None:
    """The older result is the newest that there is."""
    cid = await reader(harness, policy(50_000), {"path": "a"})
    use = {"type": "tool_use", "id": "c1", "name": "read_file", "input": {"path": "a"}}
    failed = {"type": "tool_result", "tool_use_id": "c1", "content": "no", "is_error": True}
    await harness.append(
        cid,
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [failed]},
        format=ANTHROPIC,
    )
    await harness.append(cid, says("gone"))
    await harness.build(cid)
    assert shown(await begin_epoch(harness, cid)) == [0]
    await read(harness, cid, 2, {"path": "a"})
    await harness.append(cid, says("back"))
    assert shown(await begin_epoch(harness, cid, "Be long.")) == [2]


async def test_a_pin_shows_a_cleared_result(harness: Harness) -> None:
    """A pin set before keeps it, one set after shows it again at its place. [pins.verbatim]"""
    cid = await reader(harness, policy(50_000), *[{"path": name} for name in "abcabc"])
    await harness.append(cid, says("done"))
    await harness.build(cid)
    await harness.pin(cid, 3)
    assert shown(await begin_epoch(harness, cid)) == [0, 3, 4, 5]
    await harness.pin(cid, 4)
    for build in await both(harness, cid):
        assert shown(build) == [0, 1, 3, 4, 5]


async def test_two_streams_do_not_break_each_other(harness: Harness) -> None:
    """An epoch that begins because another stream cleared results clears none itself."""
    cid = await reader(harness, policy(50_000))
    await both(harness, cid)
    await read(harness, cid, 0, {"path": "a"})
    await read(harness, cid, 1, {"path": "a"})
    await harness.append(cid, says("done"))
    assert shown(await begin_epoch(harness, cid)) == [1]
    other = await harness.build(cid, ASKS[ANTHROPIC])  # its sections changed as well
    await read(harness, cid, 2, {"path": "a"})
    await harness.append(cid, says("again"))
    for _ in range(2):
        for build in await both(harness, cid):
            assert shown(build) == [1, 2]
    assert (await harness.build(cid, ASKS[ANTHROPIC]))["epoch"] == other["epoch"]


@given(
    reads=st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), min_size=2, max_size=7),
    pin=st.integers(0, 20),
    epochs=st.sets(st.integers(0, 6)),
    window=st.sampled_from([1_500, 5_000, 100_000]),
    budget=st.sampled_from([400, "auto"]),
)
@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
async def test_any_reads_stay_valid(
    harness: Harness, reads: Any, pin: int, epochs: set[int], window: int, budget: Any
) -> None:
    """Valid, in budget, warm as cold, prefix kept; a cleared result is not the newest, nor pinned.

    [tool-output.clear-repeated, budget.total]
    """
    own = policy(window, tool_output={"context_budget_tokens": budget})
    cid = await reader(harness, own)
    before: Build | None = None
    for number, (path, is_answered) in enumerate(reads):
        await read(harness, cid, number, {"path": path})
        if is_answered:
            await harness.append(cid, says("so"), user("go on"))
        if number == 1 and 0 < pin <= (await harness.stored(cid)).state.head_seq:
            await harness.pin(cid, pin)
        if number in epochs:
            await harness.patch(cid, sections=[{"name": "base", "content": f"Be {number}."}])
        build, _ = await both(harness, cid)
        if before is not None and build["epoch"] == before["epoch"]:
            assert is_extension(build, before)
        before = build
        view = (await harness.receipt(cid)).view if await has_receipt(harness, cid) else None
        for item in view.repeated_results if view is not None else ():
            assert item.seq != pin and item.seq < item.newer_seq
    if before is not None and budget == "auto" and window == 100_000:
        newest = {path: number for number, (path, _) in enumerate(reads)}
        assert {*newest.values()} <= {*shown(before)}


async def has_receipt(harness: Harness, cid: str) -> bool:
    """Whether anything was compacted or cleared."""
    return (await harness.stored(cid)).state.compaction_id is not None
