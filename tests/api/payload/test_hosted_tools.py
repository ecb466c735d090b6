"""Hosted tools over HTTP: their definitions in payloads, and their results in messages.

Payloads are judged by the types of the SDKs. [tools.hosted]
"""

from __future__ import annotations

import json
from typing import Any, Final

import httpx
import pytest

from tests.api.talk import append, new_conversation, user
from tests.judge import Facts, refusals

SEARCH: Final = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
EXECUTION: Final = {"type": "code_execution_20250825", "name": "code_execution"}
HOSTED: Final[dict[str, list[dict[str, Any]]]] = {
    "anthropic": [SEARCH, EXECUTION],
    "openai_responses": [
        {"type": "web_search", "filters": {"allowed_domains": ["example.org"]}},
        {"type": "mcp", "server_label": "wiki", "server_url": "https://mcp.example.org"},
    ],
    "gemini": [{"google_search": {}}, {"urlContext": {}}],
    "openai_chat": [],
}
ALL: Final = [tool for tools in HOSTED.values() for tool in tools]
LOOK_UP: Final = {"name": "look_up", "parameters": {"type": "object", "properties": {}}}
MODELS: Final = {
    "openai_chat": "gpt-4o",
    "openai_responses": "gpt-4o",
    "anthropic": "claude-sonnet-4-5",
    "gemini": "gemini-2.5-pro",
}


async def build(client: httpx.AsyncClient, path: str, format: str, **body: Any) -> dict[str, Any]:
    """Build a payload that its provider takes, and return the answer."""
    asked = {"format": format, "model": MODELS[format], **body}
    answer = await client.post(f"{path}/context", json=asked)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    assert refusals(format, found["payload"], Facts(prefill=False)) == []
    return found


def tools_in(format: str, payload: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tools of a payload that are not functions."""
    tools = payload["config"].get("tools", []) if format == "gemini" else payload.get("tools", [])
    own = ("input_schema", "parameters", "function", "functionDeclarations")
    return [tool for tool in tools if not any(key in tool for key in own)]


async def test_each_format_has_its_own(client: httpx.AsyncClient) -> None:
    """Each payload has the hosted tools of its format unchanged; `degraded` names the others.

    Builds of one epoch extend each other, and an earlier build is read again byte for byte.
    """
    tools = [*ALL, LOOK_UP]
    made = await client.post("/v1/agents", json={"agent_id": "a", "name": "A", "tools": tools})
    assert made.json()["tools"] == tools
    path = await new_conversation(client, agent_id="a", policy={"agent_tools": "none"})
    await append(client, path, user("What is new?"))
    for format, hosted in HOSTED.items():
        built = await build(client, path, format)
        assert tools_in(format, built["payload"]) == hosted
        assert "look_up" in json.dumps(built["payload"])
        left_out = [tool for tool in ALL if tool not in hosted]
        named = [item for item in built["degraded"] if item.startswith("hosted_tool_left_out:")]
        assert len(named) == len(built["degraded"]) == len(left_out)
        without = await build(client, path, format, tools=[])
        assert without["epoch"] == built["epoch"]
        replayed = await client.get(f"{path}/context", params={"as_of": built["build_id"]})
        assert replayed.json()["payload"] == built["payload"]
        asked = {"format": format, "tools": tools, "model": built["payload"]["model"]}
        counted = await client.post("/v1/tokens/count", json=asked)
        assert counted.json()["token_count"] > 735 * len(hosted)
        assert built["diagnostics"]["budget"]["tool_descriptions"] == counted.json()["token_count"]
    last = await build(client, path, "anthropic")
    assert "hosted_tool_left_out:mcp" in last["degraded"]
    assert "hosted_tool_left_out:url_context" in last["degraded"]
    usage = {"input_tokens": last["tokens_used"] - 700, "output_tokens": 9}
    report = {"usage": usage, "build_id": last["build_id"]}
    answer = (await client.post(f"{path}/usage", json=report)).json()
    assert not answer["calibrated"], "the estimate is not the model's fault"


# --- results in messages --------------------------------------------------------------------

LOCATION: Final = {
    **{"type": "web_search_result_location", "url": "https://fjords.example.org"},
    **{"title": "Fjords", "encrypted_index": "RW5jcnlwdGVk", "cited_text": "A fjord is deep."},
}
SEARCHED: Final = {
    **{"type": "web_search_result", "url": "https://fjords.example.org", "title": "Fjords"},
    **{"encrypted_content": "RW5jcnlwdGVkIGNvbnRlbnQ=" * 40, "page_age": None},
}
PAGE: Final = {
    **{"type": "document", "title": "Fjords"},
    **{"source": {"type": "text", "media_type": "text/plain", "data": "Deep water."}},
}
FETCHED: Final = {
    **{"type": "web_fetch_result", "url": "https://fjords.example.org"},
    **{"retrieved_at": "2026-01-05T09:30:00Z", "content": PAGE},
}
EXECUTED: Final = {
    **{"type": "bash_code_execution_result", "stdout": "1308", "stderr": ""},
    **{"return_code": 0, "content": []},
}
DEPTH: Final = "The Sognefjord is 1308 m deep."


def hosted(number: int, name: str, arguments: Any, result: str, content: Any) -> list[Any]:
    """Return the blocks of a call that Anthropic ran."""
    call_id = f"srvtoolu_{number}"
    return [
        {"type": "server_tool_use", "id": call_id, "name": name, "input": arguments},
        {"type": result, "tool_use_id": call_id, "content": content},
    ]


ANTHROPIC_BLOCKS: Final[list[dict[str, Any]]] = [
    {"type": "text", "text": "I search."},
    *hosted(1, "web_search", {"query": "fjords"}, "web_search_tool_result", [SEARCHED]),
    *hosted(2, "web_fetch", {"url": FETCHED["url"]}, "web_fetch_tool_result", FETCHED),
    *hosted(
        3,
        "bash_code_execution",
        {"command": "echo 1308"},
        "bash_code_execution_tool_result",
        EXECUTED,
    ),
    {"type": "text", "text": DEPTH, "citations": [LOCATION]},
]
DONE: Final = {"id": "i_1", "status": "completed"}
FOUND: Final = {"file_id": "file_1", "filename": "a.txt", "score": 0.5, "text": "Deep."}
CITED: Final = {
    **{"type": "url_citation", "start_index": 0, "end_index": 9},
    **{"url": "https://fjords.example.org", "title": "Fjords"},
}
RESPONSES_ITEMS: Final[list[dict[str, Any]]] = [
    {"type": "web_search_call", **DONE, "action": {"type": "search", "query": "deep fjords"}},
    {"type": "file_search_call", **DONE, "queries": ["fjords"], "results": [FOUND]},
    {
        **{"type": "code_interpreter_call", **DONE, "container_id": "cntr_1"},
        **{"code": "print(1308)", "outputs": [{"type": "logs", "logs": "1308"}]},
    },
    {"type": "image_generation_call", **DONE, "result": "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYA"},
    {
        **{"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "wiki"},
        **{"tools": [{"name": "ask", "input_schema": {"type": "object"}}]},
    },
    {
        **{"type": "mcp_call", "id": "mcp_1", "server_label": "wiki", "name": "ask"},
        **{"arguments": '{"question":"How deep?"}', "output": "1308 m"},
    },
    {
        **{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"},
        **{"content": [{"type": "output_text", "text": DEPTH, "annotations": [CITED]}]},
    },
]
for number, made in enumerate(RESPONSES_ITEMS):
    made["id"] = made["id"].replace("i_1", f"i_{number}")
GEMINI_PARTS: Final[list[dict[str, Any]]] = [
    {"executableCode": {"language": "PYTHON", "code": "print(1308)"}},
    {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1308"}},
    {"text": DEPTH},
]
MESSAGES: Final[dict[str, list[dict[str, Any]]]] = {
    "anthropic": [{"role": "assistant", "content": ANTHROPIC_BLOCKS}],
    "openai_responses": RESPONSES_ITEMS,
    "gemini": [{"role": "model", "parts": GEMINI_PARTS}],
}
QUESTIONS: Final[dict[str, dict[str, Any]]] = {
    "anthropic": {"role": "user", "content": "How deep?"},
    "openai_responses": {"type": "message", "role": "user", "content": "How deep?"},
    "gemini": {"role": "user", "parts": [{"text": "How deep?"}]},
}


@pytest.mark.parametrize("format", MESSAGES)
async def test_results_of_hosted_tools(client: httpx.AsyncClient, format: str) -> None:
    """They are appended, counted, rendered back unchanged, and labelled in other formats.

    A compaction and its summary take them as well. [tools.hosted-results]
    """
    path = await new_conversation(client, tools=ALL, policy={"agent_tools": "none"})
    question, answer = QUESTIONS[format], MESSAGES[format]
    sent = {"format": format, "messages": [question, *answer, question]}
    appended = await client.post(f"{path}/messages", json=sent)
    assert appended.status_code == 201, appended.text
    stored = appended.json()["messages"]
    assert sum(item["token_count"] for item in stored[1:-1]) > 20
    own = await build(client, path, format)
    payload = json.dumps(own["payload"])
    for block in answer[0].get("content") or answer[0].get("parts") or answer:
        assert json.dumps(block)[1:-1] in payload, block
    for other in HOSTED:
        if other == format:
            continue
        built = await build(client, path, other)
        assert DEPTH in json.dumps(built["payload"])
        assert abs(built["tokens_used"] - own["tokens_used"]) < 4_000
    transcript = (await client.get(f"{path}/messages", params={"order": "asc"})).json()["data"]
    assert "1308" in json.dumps(transcript)
    for _ in range(6):
        again = await client.post(f"{path}/messages", json=sent)
        assert again.status_code == 201, again.text
    compacted = await client.post(f"{path}/compact")
    assert compacted.status_code == 200, compacted.text
    for each in HOSTED:
        await build(client, path, each)
