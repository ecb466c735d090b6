"""Assembly of payloads: tail, deltas, deferred tools, replayed builds.

[payload.as-of, agent-tools.definitions]
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from app.common.errors import ServiceUnavailable
from app.formats.message import FormatName
from app.prompt.resolved_settings import RequestSettings
from app.prompt.sections import PromptSection, SectionKind
from tests.domain.payload.builders import faults
from tests.judge.epochs import ITEMS
from tests.services.fakes import ANTHROPIC, Harness, failing, says, user
from tests.services.payload.builders import MODELS, built

BASE = {"name": "base", "content": "You are kind."}
PAD = {"name": "pad", "content": "Try the door.", "kind": "scratchpad"}


def tool(name: str, category: str = "mcp", words: int = 60) -> dict[str, Any]:
    """Return a tool definition of about so many words."""
    description = f"Does {name}. " + "Mind the gap. " * (words // 3)
    return {"name": name, "description": description, "category": category}


def small(window: int = 8_000, **leaves: Any) -> dict[str, Any]:
    """Return a policy with a window of its own."""
    return {"budget": {"context_window": window, "max_output_tokens": 500}} | leaves


def said(answer: dict[str, Any]) -> str:
    """Return the whole payload as text."""
    return orjson.dumps(answer["payload"]).decode()


def tool_names(answer: dict[str, Any]) -> list[str]:
    """Return the names of a chat payload's tools."""
    return [item["function"]["name"] for item in answer["payload"].get("tools", [])]


# --- the tail -------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FormatName)
async def test_dynamic_text_stands_in_the_tail(harness: Harness, format: FormatName) -> None:
    """Status and scratchpad come last, and changing them changes no prefix."""
    conversation_id = await harness.conversation(sections=[BASE, PAD])
    await harness.append(conversation_id, user("Hello"))
    pad = PromptSection("pad", "Try the window.", SectionKind.SCRATCHPAD)
    ask = RequestSettings(format, MODELS[format], status="Two others are busy.")
    first = await built(harness, conversation_id, ask)
    second = await built(harness, conversation_id, replace(ask, dynamic=(pad,), status="Alone."))
    for answer, texts in (
        (first, ("Two others are busy.", "Try the door.")),
        (second, ("Alone.", "Try the window.")),
    ):
        items = answer["payload"][ITEMS[format]]
        assert faults(format, answer["payload"]) == []
        assert answer["tail"] == items[-1:]
        last = orjson.dumps(items[-1]).decode()
        assert said(answer).index(texts[0]) < said(answer).index(texts[1])
        assert all(text in last for text in texts)
        assert answer["tokens_used"] == answer["budget"]["tokens_used"]
    assert "Try the door." not in said(second)
    assert second["prefix_hash"] == first["prefix_hash"]
    assert second["epoch"] == first["epoch"]
    assert second["stable_items"] == first["stable_items"]


# --- deltas ---------------------------------------------------------------------------------


# --- tools held back ------------------------------------------------------------------------


async def test_a_promoted_tool_is_shown(harness: Harness) -> None:
    """What a search found in this turn is in the next payload, and stays in its epoch.

    [tools.stable-in-epoch]
    """
    tools = [tool(f"tool_{n}") for n in range(20)]
    conversation_id = await harness.conversation(small(), tools=tools)
    await harness.append(conversation_id, user("Hello"))
    first = await built(harness, conversation_id)
    assert "tool_19" not in tool_names(first)
    async with harness.database.session() as session:
        await session.log.promote(conversation_id, ["tool_19"])
    second = await built(harness, conversation_id)
    assert "tool_19" in tool_names(second)
    assert second["cache_break_reason"] == "tools_changed"
    await harness.append(conversation_id, says("Hi"), user("Go on"))
    third = await built(harness, conversation_id)
    assert third["epoch"] == second["epoch"]
    assert tool_names(third) == tool_names(second)


async def test_native_tool_search_keeps_the_prefix(harness: Harness) -> None:
    """Anthropic gets every tool, deferred ones marked; a reference loads one."""
    tools = [tool(f"tool_{n}") for n in range(20)]
    conversation_id = await harness.conversation(small(), tools=tools)
    await harness.append(conversation_id, user("Hello"))
    ask = RequestSettings(ANTHROPIC, "claude-sonnet-4-5")
    first = await built(harness, conversation_id, ask)
    assert first["defers_natively"]
    listed = first["payload"]["tools"]
    assert len(listed) == 26
    deferred = [item["name"] for item in listed if item.get("defer_loading")]
    assert len(deferred) == first["deferred_tools"] > 0
    found = {"type": "tool_reference", "tool_name": deferred[0]}
    gone = {"type": "tool_reference", "tool_name": "no_longer_there"}
    await harness.append(
        conversation_id,
        {"role": "assistant", "content": [
            {"type": "tool_use", "id": "t1", "name": "tool_search", "input": {"query": "x"}}
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": [found, gone]}
        ]},
        format=ANTHROPIC,
    )  # fmt: skip
    second = await built(harness, conversation_id, ask)
    assert second["epoch"] == first["epoch"]
    assert second["payload"]["tools"] == listed
    assert orjson.dumps(found) in orjson.dumps(second["payload"])
    assert orjson.dumps(gone) not in orjson.dumps(second["payload"])
    assert faults(ANTHROPIC, second["payload"]) == []
    grown = second["budget"]["tool_descriptions"] - first["budget"]["tool_descriptions"]
    assert grown > 40


async def test_all_tools_are_sent_when_their_use_cannot_be_read(harness: Harness) -> None:
    """A deferral that fails defers no tool, and `degraded` lists it. [tools.deferral-failure]"""
    tools = [tool(f"tool_{n}") for n in range(20)]
    conversation_id = await harness.conversation(small(), tools=tools)
    await harness.append(conversation_id, user("Hello"))
    with failing("last_used", ServiceUnavailable("gone")):
        answer = await built(harness, conversation_id)
    assert len(tool_names(answer)) == 25
    assert answer["degraded"] == ["tool_uses_unread"]


# --- earlier payloads -----------------------------------------------------------------------
