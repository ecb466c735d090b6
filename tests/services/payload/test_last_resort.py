"""Tools without a category that exceed the window are deferred. [tools.last-resort]"""

from __future__ import annotations

from typing import Any

import pytest

from app.common.errors import ContextOverflow, ServiceUnavailable
from app.formats.message import FormatName
from app.prompt.resolved_settings import RequestSettings
from tests.domain.payload.builders import faults
from tests.services.fakes import CHAT, Harness, says, user
from tests.services.payload.builders import MODELS, RESPONSES, built

WINDOW, OUTPUT = 8_000, 500
POLICY = {"budget": {"context_window": WINDOW, "max_output_tokens": OUTPUT}}
DEFERRED = "builtin_tools_deferred"


def tools(count: int, words: int = 150) -> list[dict[str, Any]]:
    """Return so many definitions without a category, of about so many words."""
    text = "Mind the gap. " * (words // 3)
    return [{"name": f"tool_{number}", "description": text} for number in range(count)]


def names(answer: dict[str, Any]) -> list[str]:
    """Return the names of the tools that a payload defines without deferring them."""
    payload = answer["payload"]
    if answer["format"] == FormatName.GEMINI:
        listed = [
            item for tool in payload["config"]["tools"] for item in tool["functionDeclarations"]
        ]
    else:
        listed = payload["tools"]
    return [
        item.get("name") or item.get("function", {}).get("name") or item["type"]
        for item in listed
        if not item.get("defer_loading")
    ]


@pytest.mark.parametrize("format", FormatName)
async def test_tools_beyond_the_window_are_deferred(harness: Harness, format: FormatName) -> None:
    """The payload is valid and fits, `degraded` says why, and the next payloads extend it."""
    cid = await harness.conversation(POLICY, tools=tools(60))
    await harness.append(cid, user("Hello"))
    ask = RequestSettings(format, MODELS[format])
    first = await built(harness, cid, ask)
    assert faults(format, first["payload"]) == []
    assert first["tokens_used"] <= WINDOW - OUTPUT
    assert first["degraded"] == [DEFERRED]
    assert first["deferred_tools"] == 61 - len(names(first))
    assert "tool_search" in names(first) and len(names(first)) > 1
    await harness.append(cid, says("Hi"), user("Go on " * 100))
    for service in (None, harness.cold()):
        later = await built(harness, cid, ask, service=service)
        assert (later["epoch"], names(later)) == (first["epoch"], names(first))
        assert later["degraded"] == [DEFERRED]


async def test_too_many_tools_for_the_provider(harness: Harness) -> None:
    """More small tools than OpenAI takes are deferred, and a failed read defers them as well."""
    cid = await harness.conversation({"budget": {"context_window": 100_000}}, tools=tools(200, 3))
    await harness.append(cid, user("Hello"))
    for format in (CHAT, RESPONSES):
        answer = await built(harness, cid, RequestSettings(format, MODELS[format]))
        assert faults(format, answer["payload"]) == []
        assert (answer["degraded"], answer["deferred_tools"]) == ([DEFERRED], 200 - 122)
    with harness.database.failing("last_used", ServiceUnavailable("gone")):
        answer = await built(harness, cid, RequestSettings(CHAT, "gpt-4.1"))
    assert answer["degraded"] == ["tool_deferral", DEFERRED]


async def test_nothing_is_deferred_without_a_search(harness: Harness) -> None:
    """Where the model could not find them, tools that do not fit are refused."""
    cid = await harness.conversation(POLICY | {"agent_tools": "none"}, tools=tools(60))
    await harness.append(cid, user("Hello"))
    with pytest.raises(ContextOverflow) as refused:
        await built(harness, cid)
    assert "defer_tools" in [item.action for item in refused.value.facts["suggestions"]]
