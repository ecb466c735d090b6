"""The tools an LLM calls, over HTTP: definitions, calls and the search for others.

[agent-tools.definitions, tools.search]
"""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

from app.formats import parse_tool
from app.formats.message import FormatName
from tests.api.talk import append, assert_problem, calling, new_conversation, result, talk, user
from tests.judge import refusals

CHAT = FormatName.OPENAI_CHAT
TEXT = "".join(f"line {number} {'x' * 40}\n" for number in range(1, 3001))


def native(format: FormatName, name: str, **arguments: Any) -> dict[str, Any]:
    """Return a call as a provider gives it."""
    text = json.dumps(arguments)
    calls: dict[FormatName, dict[str, Any]] = {
        FormatName.OPENAI_CHAT: {
            "id": "c2",
            "type": "function",
            "function": {"name": name, "arguments": text},
        },
        FormatName.OPENAI_RESPONSES: {
            "type": "function_call",
            "call_id": "c2",
            "name": name,
            "arguments": text,
        },
        FormatName.ANTHROPIC: {"type": "tool_use", "id": "c2", "name": name, "input": arguments},
        FormatName.GEMINI: {"functionCall": {"id": "c2", "name": name, "args": arguments}},
        FormatName.INTERACTIONS: {
            "type": "function_call",
            "id": "c2",
            "name": name,
            "arguments": arguments,
        },
    }
    return calls[format]


def text_in(format: FormatName, message: dict[str, Any]) -> str:
    """Return the text of a native tool message, whose shape must be right."""
    match format:
        case FormatName.OPENAI_CHAT:
            assert (message["role"], message["tool_call_id"]) == ("tool", "c2")
            found = message["content"]
        case FormatName.OPENAI_RESPONSES:
            assert (message["type"], message["call_id"]) == ("function_call_output", "c2")
            found = message["output"]
        case FormatName.ANTHROPIC:
            (block,) = message["content"]
            assert (message["role"], block["tool_use_id"]) == ("user", "c2")
            found = block["content"]
        case FormatName.INTERACTIONS:
            assert (message["type"], message["call_id"]) == ("function_result", "c2")
            found = message["result"]
        case _:
            (part,) = message["parts"]
            assert part["functionResponse"]["id"] == "c2"
            (found,) = part["functionResponse"]["response"].values()
    assert isinstance(found, str)
    return found


async def offloaded(client: httpx.AsyncClient) -> tuple[str, str]:
    """Return the path of a conversation with a large tool result, and the ref of that."""
    path = await new_conversation(client)
    body = await append(client, path, user("run it"), calling("c1"), result("c1", TEXT))
    ref: str = body["messages"][2]["output_ref"]["id"]
    return path, ref


async def send(client: httpx.AsyncClient, path: str, **body: Any) -> httpx.Response:
    """Send one tool call."""
    return await client.post(f"{path}/tool-calls", json=body)


async def answered(client: httpx.AsyncClient, path: str, name: str, **arguments: Any) -> Any:
    """Execute a call in the form of Chat and return the answer."""
    answer = await send(client, path, tool_call=native(CHAT, name, **arguments))
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("format", FormatName)
async def test_a_call_is_executed_in_every_format(
    client: httpx.AsyncClient, format: FormatName
) -> None:
    """Each tool reads the stored output, and answers in the format of the call."""
    path, ref = await offloaded(client)
    calls: dict[str, tuple[dict[str, Any], str]] = {
        "tool_output_cache": ({"offset": 41, "limit": 1}, "line 42 xxx"),
        "read_result": ({"limit": 6}, "line 1\n[Bytes 0-5 of "),
        "tool_output_cache_grep": ({"pattern": "^LINE 7 ", "ignore_case": True}, "7:line 7 x"),
    }
    for name, (arguments, expected) in calls.items():
        call = native(format, name, ref_id=ref, **arguments)
        answer = await send(client, path, format=format, tool_call=call)
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert (body["format"], body["is_error"]) == (format, False)
        assert expected in text_in(format, body["message"])


async def test_the_returned_message_is_the_callers_to_append(client: httpx.AsyncClient) -> None:
    """A call appends nothing; its message is taken by the log and never offloaded."""
    path, ref = await offloaded(client)
    body = await answered(client, path, "tool_output_cache", ref_id=ref)
    assert (await client.get(path)).json()["head_seq"] == 3
    called = {"role": "assistant", "tool_calls": [native(CHAT, "tool_output_cache", ref_id=ref)]}
    appended = await append(client, path, called, body["message"])
    assert appended["head_seq"] == 5
    blobs = (await client.get(f"{path}/blobs")).json()["data"]
    assert [blob["id"] for blob in blobs] == [ref]


async def test_an_error_the_model_can_correct_is_a_result(client: httpx.AsyncClient) -> None:
    """Unknown ref, bad pattern and invalid arguments are 200 with an error message."""
    path, ref = await offloaded(client)
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("read_result", {"ref_id": "blob_nope"}, 'no tool output with ref_id "blob_nope"'),
        ("tool_output_cache_grep", {"ref_id": ref, "pattern": "(a"}, "was not run: "),
        ("tool_output_cache", {"ref_id": ref, "lines": 5}, 'there is no argument "lines"'),
    ]
    for name, arguments, told in wrong:
        body = await answered(client, path, name, **arguments)
        assert body["is_error"] is True
        assert body["message"]["content"].startswith("Error: ")
        assert told in body["message"]["content"]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/tool_call"),
        ({"tool_call": {"id": "c1"}}, "/tool_call/function"),
        ({"tool_call": native(CHAT, "shell")}, "/tool_call/function/name"),
        ({"tool_call": native(CHAT, "read_result"), "format": "anthropic"}, "/tool_call/type"),
    ],
)
async def test_a_malformed_call_is_422(
    client: httpx.AsyncClient, body: dict[str, Any], pointer: str
) -> None:
    """The error has a pointer."""
    path = await new_conversation(client)
    assert_problem(await send(client, path, **body), 422, "VALIDATION_ERROR", pointer)


# --- search -----------------------------------------------------------------------------------

TOOLS = [
    {
        "name": name,
        "description": description,
        "category": "mcp",
        "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}},
    }
    for name, description in (
        ("get_forecast", "Weather of the coming days."),
        ("get_weather", "Weather of now."),
        ("send_mail", "Send a letter."),
    )
]


async def search(client: httpx.AsyncClient, path: str, **body: Any) -> Any:
    """Search tools and return the answer."""
    answer = await client.post(f"{path}/tools/search", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("format", FormatName)
async def test_a_search_returns_definitions_in_every_format(
    client: httpx.AsyncClient, format: FormatName
) -> None:
    """Full definitions in the format, best first, and the promoted tools [tools.promotion]."""
    path = await new_conversation(client, tools=TOOLS)
    body = await search(client, path, query="what is the weather", format=format)
    assert body["format"] == format
    assert body["names"] == body["promoted"] == ["get_weather", "get_forecast"]
    assert body["total"] == 3
    shown = body["tools"]
    if format is FormatName.GEMINI:
        (shown,) = (tool["functionDeclarations"] for tool in shown)
    read = [parse_tool(tool, "") for tool in shown]
    assert [tool.name for tool in read] == body["names"]
    assert read[0].description == "Weather of now."
    assert "place" in read[0].parameters["properties"]


async def test_a_search_covers_all_settings_levels(client: httpx.AsyncClient) -> None:
    """The agent's tools, the conversation's, and those of the request [tools.search]."""
    agent = {"name": "Bot", "agent_id": "bot", "tools": TOOLS}
    assert (await client.post("/v1/agents", json=agent)).status_code == 201
    own = [{"name": "get_weather", "description": "Weather of this conversation."}]
    path = await new_conversation(client, agent_id="bot", tools=own)
    body = await search(client, path, query="get_weather", limit=1)
    assert body["tools"][0]["function"]["description"] == "Weather of this conversation."
    sent = [{"name": "space_weather", "description": "Weather of the sun."}]
    body = await search(client, path, query="weather of the sun", limit=1, tools=sent)
    assert (body["names"], body["total"]) == (["space_weather"], 4)
    assert body["promoted"] == ["get_weather", "space_weather"]


@pytest.mark.parametrize("format", FormatName)
async def test_a_model_searches_by_a_call(client: httpx.AsyncClient, format: FormatName) -> None:
    """`tool_search` answers in the format of the call, and promotes what it finds."""
    path = await new_conversation(client, tools=TOOLS)
    call = native(format, "tool_search", query="weather", limit=1)
    answer = (await send(client, path, format=format, tool_call=call)).json()
    assert answer["is_error"] is False
    found = json.loads(text_in(format, answer["message"]))
    assert (found["name"], found["description"]) == ("get_weather", "Weather of now.")
    assert (await search(client, path, query="chess"))["promoted"] == ["get_weather"]


@pytest.mark.parametrize("format", FormatName)
async def test_a_model_recalls_by_a_call(client: httpx.AsyncClient, format: FormatName) -> None:
    """`recall` answers in the format of the call, and appends nothing [search.recall]."""
    path = await new_conversation(client)
    await append(client, path, user("The staging port is 5433."), calling("c1"), result("c1", "ok"))
    call = native(format, "recall", query="which port has staging?")
    answer = (await send(client, path, format=format, tool_call=call)).json()
    assert answer["is_error"] is False
    found = text_in(format, answer["message"])
    assert re.match(r"#1 user 20[-\d: ]+: The staging port is 5433.\n#2 assistant ", found)
    nothing = native(format, "recall", query="zebra ???")
    answer = (await send(client, path, format=format, tool_call=nothing)).json()
    assert text_in(format, answer["message"]) == "[No message matches.]"
    assert (await client.get(path)).json()["head_seq"] == 3


@pytest.mark.parametrize("format", FormatName)
async def test_a_model_pins_by_a_call(client: httpx.AsyncClient, format: FormatName) -> None:
    """By number or id, with the call group; all or none, within the limit. [agent-tools.pin]"""
    policy = {"budget": {"context_window": 2000, "max_output_tokens": 100}}
    listed = {"policy": {"agent_tools": ["pin_messages"], **policy}}
    path = await new_conversation(client, **listed)
    await append(client, path, user("Port 5433."), calling("c1"), result("c1", "ok"))
    await append(client, path, user("long " * 1500), {**user("Never on Fridays."), "id": "rule"})

    async def pins(*messages: str | int) -> str:
        call = native(format, "pin_messages", messages=[*messages])
        answer = (await send(client, path, format=format, tool_call=call)).json()
        text = text_in(format, answer["message"])
        assert answer["is_error"] is not text.startswith("[")
        return text

    async def pinned() -> list[int]:
        page = (await client.get(f"{path}/messages")).json()["data"]
        return [message["seq"] for message in page if message["pinned"]]

    assert "There is no message #9" in await pins("1", "#9")
    assert "Pinned messages would take" in await pins("#1", "#4")
    assert "messages must be a list of 1 to 20 texts" in await pins()
    assert await pinned() == []
    assert await pins("#3", "rule", 1) == "[Pinned: #1, #2, #3, #5.]"
    assert await pinned() == [1, 2, 3, 5]
    built = (await client.post(f"{path}/context", json={"format": format})).json()
    assert "pin_messages" in json.dumps(built["payload"])
    assert refusals(format, built["payload"]) == []


async def test_a_native_search_names_tools_only(client: httpx.AsyncClient) -> None:
    """With `native` Anthropic gets references. [tools.native-deferral]"""
    path = await new_conversation(client, tools=TOOLS)
    call = native(FormatName.ANTHROPIC, "tool_search", query="weather")
    answer = (await send(client, path, format="anthropic", tool_call=call, native=True)).json()
    (block,) = answer["message"]["content"]
    assert [item["tool_name"] for item in block["content"]] == ["get_weather", "get_forecast"]


async def test_a_model_compacts_by_a_call(client: httpx.AsyncClient) -> None:
    """`compact_context` compacts at any pressure, and answers with the result."""
    path = await new_conversation(client)
    body = await answered(client, path, "compact_context")
    assert body["message"]["content"].startswith("[Nothing was compacted: ")
    await append(client, path, *talk(40, "word " * 200))
    body = await answered(client, path, "compact_context")
    assert body["is_error"] is False
    assert body["message"]["content"].startswith("[Compacted: ")
    assert (await client.get(f"{path}/state")).json()["summary"]
