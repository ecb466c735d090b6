"""The tools an LLM calls, over HTTP: definitions and calls in every format (L1)."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from app.domain.agent_tools import AGENT_TOOLS, definitions_in
from app.domain.messages import FormatName
from tests.api.talk import append, assert_problem, calling, new_conversation, result, user

CHAT = FormatName.OPENAI_CHAT
TEXT = "".join(f"line {number} {'x' * 40}\n" for number in range(1, 3001))
NOWHERE = "/v1/conversations/0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b"


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
async def test_definitions_come_in_every_format(
    client: httpx.AsyncClient, format: FormatName
) -> None:
    """L1: the definitions are those of the domain, in the format asked for."""
    answer = await client.get("/v1/tool-definitions", params={"format": format})
    assert answer.status_code == 200
    assert answer.json() == {"format": format, "tools": definitions_in(format)}


async def test_definitions_are_chats_by_default(client: httpx.AsyncClient) -> None:
    """L1: without a format the definitions are those of `openai_chat`; a wrong one is told."""
    body = (await client.get("/v1/tool-definitions")).json()
    assert body["format"] == CHAT
    assert [tool["function"]["name"] for tool in body["tools"]] == list(AGENT_TOOLS)
    refused = await client.get("/v1/tool-definitions", params={"format": "cohere"})
    assert_problem(refused, 422, "VALIDATION_ERROR", "/query/format")


@pytest.mark.parametrize("format", FormatName)
async def test_a_call_is_executed_in_every_format(
    client: httpx.AsyncClient, format: FormatName
) -> None:
    """L1, F4, F5: each tool reads the stored output, and answers in the format of the call."""
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


async def test_lines_are_read_on_to_the_end(client: httpx.AsyncClient) -> None:
    """F4, L1: following each answer's last line, a model reads the whole output."""
    path, ref = await offloaded(client)
    seen, offset = [], 0
    while True:
        body = await answered(client, path, "tool_output_cache", ref_id=ref, offset=offset)
        *lines, note = body["message"]["content"].split("\n")
        seen += [line.partition("\t")[2] for line in lines]
        if note == "[End of output.]":
            break
        offset = int(note.removesuffix(".]").partition("offset=")[2])
        assert len(seen) == offset
    assert seen == TEXT.splitlines()


async def test_the_returned_message_is_the_callers_to_append(client: httpx.AsyncClient) -> None:
    """Decision 27: a call appends nothing; its message is taken by the log and never offloaded."""
    path, ref = await offloaded(client)
    body = await answered(client, path, "tool_output_cache", ref_id=ref)
    assert (await client.get(path)).json()["head_seq"] == 3
    called = {"role": "assistant", "tool_calls": [native(CHAT, "tool_output_cache", ref_id=ref)]}
    appended = await append(client, path, called, body["message"])
    assert appended["head_seq"] == 5
    blobs = (await client.get(f"{path}/blobs")).json()["data"]
    assert [blob["id"] for blob in blobs] == [ref]


async def test_what_the_model_can_mend_is_a_result(client: httpx.AsyncClient) -> None:
    """L1: unknown ref, bad pattern and wrong arguments are 200 with a message that says so."""
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


async def test_an_unknown_conversation_is_404(client: httpx.AsyncClient) -> None:
    """M: whatever the call, there is no such conversation."""
    for path in (NOWHERE, "/v1/conversations/nowhere"):
        for arguments in ({"ref_id": "blob_1"}, {}):
            answer = await send(client, path, tool_call=native(CHAT, "read_result", **arguments))
            assert_problem(answer, 404, "NOT_FOUND")


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/tool_call"),
        ({"tool_call": None}, "/tool_call"),
        ({"tool_call": []}, "/tool_call"),
        ({"tool_call": {"id": "c1"}}, "/tool_call/function"),
        ({"tool_call": native(CHAT, "shell")}, "/tool_call/function/name"),
        ({"tool_call": native(CHAT, "read_result"), "extra": 1}, "/extra"),
        ({"tool_call": native(CHAT, "read_result"), "format": "cohere"}, "/format"),
        ({"tool_call": native(CHAT, "read_result"), "format": "anthropic"}, "/tool_call/type"),
    ],
)
async def test_a_malformed_call_is_422(
    client: httpx.AsyncClient, body: dict[str, Any], pointer: str
) -> None:
    """L1, M: the place that is wrong is named, and unknown fields of the envelope are refused."""
    path = await new_conversation(client)
    assert_problem(await send(client, path, **body), 422, "VALIDATION_ERROR", pointer)


async def test_a_body_that_is_no_json_is_400(client: httpx.AsyncClient) -> None:
    """M: malformed JSON is a 400, no body and another media type a 422."""
    path = f"{NOWHERE}/tool-calls"
    headers = {"content-type": "application/json"}
    malformed = await client.post(path, content=b'{"tool_call": {', headers=headers)
    assert_problem(malformed, 400, "VALIDATION_ERROR")
    assert_problem(await client.post(path), 422, "VALIDATION_ERROR")
    plain = await client.post(path, content=b"{}", headers={"content-type": "text/plain"})
    assert_problem(plain, 422, "VALIDATION_ERROR", "/header/content-type")


async def test_an_oversized_body_is_413(client: httpx.AsyncClient) -> None:
    """M: a call is bounded like any other body, before it is read."""
    headers = {"content-type": "application/json", "content-length": str(2**40)}
    answer = await client.post(f"{NOWHERE}/tool-calls", content=b"{}", headers=headers)
    assert_problem(answer, 413, "PAYLOAD_TOO_LARGE")
