"""Agent tools in payloads: there when texts name them, and only then.

[agent-tools.definitions]
"""

from __future__ import annotations

from typing import Any

import pytest

from app.domain.common.policy import AGENT_TOOL_NAMES
from tests.services.fakes import ANTHROPIC, CHAT, Build, Harness, asks, result, says, user
from tests.services.payload.builders import ASKS, check

READ_LINES, GREP, READ_BYTES, *_ = AGENT_TOOL_NAMES
FORMATS = pytest.mark.parametrize("format", [CHAT, ANTHROPIC])
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


@FORMATS
async def test_a_cut_result_brings_the_tools_its_note_names(harness: Harness, format: Any) -> None:
    """`auto` adds exactly the tools that a view's note mentions, in every format."""
    cid = await harness.conversation(WINDOW)
    await harness.append(cid, user("go"), asks("a"))
    before = await harness.build(cid, ASKS[format])
    assert tools_of(before) == []
    await harness.append(cid, result("a", LONG))
    cut = await harness.build(cid, ASKS[format])
    assert tools_of(cut) == [READ_LINES, GREP]
    assert cut["cache_break_reason"] == "tools_changed"
    assert 'tool_output_cache ref_id=\\"blob_' in cut.contents
    check(cut, exact=format is CHAT)


@FORMATS
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


@FORMATS
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
    assert (await harness.compact(cid)).compacted
    assert tools_of(await harness.build(cid)) == ["compact_context", "recall"]
    await harness.set_policy(cid, {"compaction": {"auto": False}})
    assert tools_of(await harness.build(cid)) == ["recall"]
