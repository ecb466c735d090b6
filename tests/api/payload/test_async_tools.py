"""Asynchronous tools of OpenAI Responses: calls stay open over turns, results come at any time.

[openai-responses.calls-match-outputs]
"""

from __future__ import annotations

import copy
from typing import Any

import httpx
import pytest

from tests.api.talk import append, new_conversation, user
from tests.judge import Facts, judge
from tests.judge.findings import errors

FORMAT = "openai_responses"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
SLOW = {"type": "function", "name": "survey", "parameters": SCHEMA, "async": True}
QUICK = {"type": "function", "name": "clock", "parameters": SCHEMA}
FILLER = "The harbour has seven cranes and a lighthouse. " * 40


def call(call_id: str, name: str = "survey") -> dict[str, Any]:
    """Return a call as the provider made it."""
    own = {"id": f"fc_{call_id}", "status": "completed", "name": name, "call_id": call_id}
    more = {"async": True} if name == "survey" else {}
    return {"type": "function_call", "arguments": '{"city":"Bergen"}', **own, **more}


def output(call_id: str, text: str) -> dict[str, Any]:
    """Return the output of a call."""
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def said(text: str) -> dict[str, Any]:
    """Return a message of the model."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "status": "completed", "content": content}


class Talk:
    """A conversation whose every build is judged, and extends the one before in its epoch."""

    def __init__(self, client: httpx.AsyncClient, path: str) -> None:
        self.client, self.path = client, path
        self.before: dict[str, Any] | None = None

    async def step(self, *items: dict[str, Any]) -> dict[str, Any]:
        """Append items, and return the build behind them."""
        body = {"format": FORMAT, "append": {"messages": list(items)}}
        answer = await self.client.post(f"{self.path}/context", json=body)
        assert answer.is_success, answer.text
        build: dict[str, Any] = answer.json()
        assert errors(judge(FORMAT, build["payload"], Facts(tokens=build["tokens_used"]))) == []
        if self.before is not None and build["cache_break_reason"] is None:
            stable = self.before["diagnostics"]["stable_items"]
            assert unmarked(build)[:stable] == unmarked(self.before)[:stable]
            assert build["epoch"] == self.before["epoch"]
        self.before = build
        return build


def unmarked(build: dict[str, Any]) -> list[Any]:
    """Return the items of a payload without cache breakpoints, which move."""
    items: list[Any] = copy.deepcopy(build["payload"]["input"])
    for item in items:
        for part in item.get("content", ()):
            part.pop("prompt_cache_breakpoint", None)
    return items


def pairs(build: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the types and ids of calls and outputs in a payload, in their order."""
    items = build["payload"]["input"]
    return [(item["type"], item["call_id"]) for item in items if "call_id" in item]


@pytest.fixture
async def talk(client: httpx.AsyncClient) -> Talk:
    """Return a conversation with a slow tool and a quick one."""
    tools = [SLOW, QUICK]
    return Talk(client, await new_conversation(client, model="gpt-6-sol", tools=tools))


async def test_a_call_is_open_over_turns(talk: Talk) -> None:
    """The model goes on; the result stands where it came, and every payload extends the last."""
    first = await talk.step(user("Survey Bergen, and what is an anchor?"))
    tools = {tool["name"]: tool.get("async") for tool in first["payload"]["tools"]}
    assert (tools["survey"], tools["clock"]) == (True, None)
    await talk.step(call("c1"), said("An anchor holds a ship."), user("And a buoy?"))
    waiting = await talk.step(said("A buoy marks a channel."), user("Thanks. The time there?"))
    assert pairs(waiting) == [("function_call", "c1")]
    await talk.step(call("c2", "clock"), output("c2", "12:00"))
    done = await talk.step(said("Noon."), output("c1", "Seven cranes."))
    assert pairs(done) == [
        *(("function_call", "c1"), ("function_call", "c2")),
        *(("function_call_output", "c2"), ("function_call_output", "c1")),
    ]
    assert done["payload"]["input"][-1]["output"] == "Seven cranes."
    last = await talk.step(said("It has seven cranes."), user("Good."))
    assert (last["epoch"], last["cache_break_reason"], last["degraded"]) == (1, None, [])


async def test_results_come_in_any_order(talk: Talk) -> None:
    """Two calls of one answer are answered turns apart, the second one first."""
    await talk.step(user("Survey both."))
    await talk.step(call("c1"), call("c2"), said("On it."), user("Meanwhile: hello."))
    await talk.step(said("Hello."), output("c2", "B"))
    build = await talk.step(said("B is done."), user("And A?"), output("c1", "A"))
    assert pairs(build)[2:] == [("function_call_output", "c2"), ("function_call_output", "c1")]
    assert build["epoch"] == 1


@pytest.mark.parametrize("comes", [False, True])
async def test_a_compaction_leaves_an_open_call(talk: Talk, *, comes: bool) -> None:
    """A call that waits is shown behind a compaction too, and its result is its output."""
    await talk.step(user("Survey Bergen."))
    await talk.step(call("c1"), said("I started."), user("Tell me of the harbour."))
    for number in range(6):
        await talk.step(said(f"{number} {FILLER}"), user(f"More, {number}."))
    made = await talk.client.post(f"{talk.path}/compact", json={})
    assert made.is_success, made.text
    result = [output("c1", "Seven cranes.")] if comes else []
    build = await talk.step(said("Done."), *result, user("So?"))
    assert build["cache_break_reason"] == "compaction"
    assert pairs(build)[0] == ("function_call", "c1")
    later = await talk.step(said("Yes."), *([] if comes else [output("c1", "Seven.")]), user("Ok."))
    assert pairs(later) == [("function_call", "c1"), ("function_call_output", "c1")]


async def test_settings_and_tools_change_inside_an_epoch(talk: Talk) -> None:
    """An item of the client changes them from there on, and the prefix stays.

    [compaction.configuration]
    """
    await talk.step(user("Hello."))
    effort = {"type": "configuration_update", "reasoning": {"effort": "high"}}
    crane = {"type": "function", "name": "crane", "parameters": SCHEMA, "strict": False}
    more = {"type": "additional_tools", "role": "developer", "tools": [crane]}
    changed = await talk.step(said("Hello."), effort, more, user("Lift it."))
    items = changed["payload"]["input"]
    assert [item for item in items if item["type"] != "message"] == [effort, more]
    lifted = {**call("c1", "clock"), "name": "crane"}
    last = await talk.step(lifted, output("c1", "Lifted."))
    assert (last["epoch"], last["cache_break_reason"], last["degraded"]) == (1, None, [])


async def test_another_format_shows_the_result_of_an_open_call(talk: Talk) -> None:
    """There the call is answered at once by a note, and later by the text of its result."""
    await talk.step(user("Survey Bergen."))
    await talk.step(call("c1"), said("I started."), user("Go on."))
    items = said("Well."), output("c1", "Seven cranes.")
    await append(talk.client, talk.path, *items, format=FORMAT)
    for format, model in (("openai_chat", "gpt-5"), ("anthropic", "claude-opus-5")):
        answer = await talk.client.post(
            f"{talk.path}/context", json={"format": format, "model": model}
        )
        build = answer.json()
        found = judge(format, build["payload"], Facts(tokens=build["tokens_used"]))
        assert errors(found) == []
        assert "Seven cranes." in str(build["payload"])
        assert "async" not in str(build["payload"]["tools"])
