"""Agent tools in payloads: beside tools of the caller always, else when texts need them.

[agent-tools.definitions]
"""

from __future__ import annotations

from typing import Any

import pytest

from app.policy.policy import AGENT_TOOL_NAMES
from tests.services.fakes import ANTHROPIC, CHAT, Build, Harness, asks, result, says, user
from tests.services.payload.builders import ASKS, TOOLS, check

READ_LINES, GREP, READ_BYTES, *_ = AGENT_TOOL_NAMES
PROVIDERS = pytest.mark.parametrize("format", [CHAT, ANTHROPIC])
LONG = "".join(f"line {number} of a long output\n" for number in range(4000))
WINDOW = {"budget": {"context_window": 60_000, "max_output_tokens": 1000}}


def tools_of(build: Build) -> list[str]:
    """Return the names of a payload's tools, a stub left out."""
    tools = build.payload.get("tools", [])
    names = [tool.get("name") or tool["function"]["name"] for tool in tools]
    return [name for name in names if name != "no_tools_available"]


async def with_long_result(harness: Harness, **policy: Any) -> str:
    """Create a conversation in which one result is longer than a view shows."""
    cid = await harness.conversation(WINDOW | policy)
    await harness.append(cid, user("go"), asks("a"), result("a", LONG), says("done"), user("more"))
    return cid


@PROVIDERS
async def test_a_turn_brings_the_tools_that_a_cut_result_needs(
    harness: Harness, format: Any
) -> None:
    """`auto` adds exactly the tools of a view's notes, and never inside a tool loop.

    [agent-tools.never-named-absent, agent-tools.enter-with-a-turn]
    """
    cid = await harness.conversation(WINDOW)
    await harness.append(cid, user("go"), asks("a"))
    before = await harness.build(cid, ASKS[format])
    await harness.append(cid, result("a", LONG))
    cut = await harness.build(cid, ASKS[format])
    assert tools_of(before) == tools_of(cut) == []
    assert cut["cache_break_reason"] is None
    assert "tool_output_cache" not in cut.contents
    await harness.append(cid, says("done"), user("more"))
    for service, reason in ((None, "tools_changed"), (harness.cold(), None)):
        turn = await harness.build(cid, ASKS[format], service)
        assert tools_of(turn) == [READ_LINES, GREP]
        assert turn["cache_break_reason"] == reason
        assert 'tool_output_cache ref_id=\\"blob_' in turn.contents
        check(turn, exact=format is CHAT)


@PROVIDERS
async def test_own_tools_stand_beside_the_callers_from_the_start(
    harness: Harness, format: Any
) -> None:
    """No step of a loop changes them: a cut result, a usage note, a compaction.

    [agent-tools.from-the-start]
    """
    small = {"context_window": 12_000, "max_output_tokens": 1000}
    cid = await harness.conversation({"budget": small}, tools=TOOLS)
    await harness.append(cid, user("go"))
    first = await harness.build(cid, ASKS[format])
    assert set(tools_of(first)) == {"read_file", *AGENT_TOOL_NAMES} - {
        "tool_search",
        "pin_messages",
    }
    reasons = set()
    for number in range(40):
        call_id = f"c{number}"
        text = LONG if number == 3 else f"line {number} " * 90
        await harness.append(cid, asks(call_id), result(call_id, text))
        build = await harness.build(cid, ASKS[format])
        assert tools_of(build) == tools_of(first)
        reasons.add(build["cache_break_reason"])
        check(build, exact=format is CHAT)
    assert "compaction" in reasons
    assert "tools_changed" not in reasons


@PROVIDERS
async def test_tools_are_stable_inside_an_epoch(harness: Harness, format: Any) -> None:
    """Once added they stay, and every later payload extends the one before [agent-tools.auto]."""
    cid = await with_long_result(harness)
    first = await harness.build(cid, ASKS[format])
    for number in range(3):
        await harness.append(cid, says("working"), user(f"go on {number}"))
        for service in (None, harness.cold()):
            later = await harness.build(cid, ASKS[format], service)
            assert (later["epoch"], tools_of(later)) == (first["epoch"], tools_of(first))
            assert later.stable[: len(first.stable)] == first.stable


@PROVIDERS
async def test_tools_stay_after_an_automatic_compaction(harness: Harness, format: Any) -> None:
    """The tools of placeholders and of the usage note stay without either. [agent-tools.stay]"""
    own = {
        "sandwich": {"preserve_top": 0},
        "compaction": {"mode": "inline"},
        "tool_output": {"context_budget_tokens": 300, "offload_threshold_bytes": 10**6},
    }
    cid = await harness.conversation(WINDOW | own)
    for number in range(4):
        call_id = f"c{number}"
        await harness.append(cid, user("go"), asks(call_id), result(call_id, "word " * 200))
    cleared = await harness.build(cid, ASKS[format])
    assert tools_of(cleared) == [READ_LINES, "compact_context"]
    assert "% used" not in cleared.contents
    await harness.talk(cid, 100, words=250)
    await harness.append(cid, user("and now?"))
    for service, reason in ((None, "compaction"), (harness.cold(), None)):
        build = await harness.build(cid, ASKS[format], service)
        assert build["cache_break_reason"] == reason
        assert tools_of(build) == [READ_LINES, "compact_context", "recall"]
        assert "tool output trimmed" not in build.contents
    await harness.set_policy(cid, {"agent_tools": "none"})
    assert tools_of(await harness.build(cid, ASKS[format])) == []


async def test_tools_are_removed_with_the_texts_that_mention_them(harness: Harness) -> None:
    """A new epoch has the tools that its texts mention, so a compaction removes unused ones.

    What it hid is found with `recall`, and `compact_context` stays where compactions are
    automatic. [summary.recall-offered, agent-tools.stay]
    """
    cid = await with_long_result(harness, sandwich={"preserve_top": 0, "preserve_bottom": 2})
    assert tools_of(await harness.build(cid)) == [READ_LINES, GREP]
    await harness.talk(cid, 10, words=200)
    await harness.append(cid, user("and now?"))
    assert (await harness.compact(cid)).compacted
    assert tools_of(await harness.build(cid)) == ["compact_context", "recall"]
    await harness.set_policy(cid, {"compaction": {"auto": False}})
    assert tools_of(await harness.build(cid)) == ["recall"]
