"""Short ways to say what most API tests say."""

from __future__ import annotations

from typing import Any

import httpx


def user(text: Any, **more: Any) -> dict[str, Any]:
    """Return a user message."""
    return {"role": "user", "content": text, **more}


def assistant(text: str, **more: Any) -> dict[str, Any]:
    """Return an assistant message."""
    return {"role": "assistant", "content": text, **more}


def calling(*call_ids: str) -> dict[str, Any]:
    """Return an assistant message with a call for each id."""
    calls = [
        {"id": call_id, "type": "function", "function": {"name": "shell", "arguments": "{}"}}
        for call_id in call_ids
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(call_id: str, text: str = "done") -> dict[str, Any]:
    """Return a tool message."""
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def talk(count: int, text: str = "word " * 20) -> list[dict[str, Any]]:
    """Return so many messages, user and assistant in turn."""
    speak = (user, assistant)
    return [speak[index % 2](f"{index} {text}") for index in range(count)]


async def new_conversation(client: httpx.AsyncClient, **body: Any) -> str:
    """Create a conversation and return its path."""
    answer = await client.post("/v1/conversations", json=body)
    assert answer.status_code == 201, answer.text
    return f"/v1/conversations/{answer.json()['conversation_id']}"


async def append(
    client: httpx.AsyncClient, path: str, *messages: dict[str, Any], **more: Any
) -> dict[str, Any]:
    """Append messages and return the answer."""
    answer = await client.post(f"{path}/messages", json={"messages": list(messages), **more})
    assert answer.status_code == 201, answer.text
    body: dict[str, Any] = answer.json()
    return body


def assert_problem(answer: httpx.Response, status: int, code: str, *pointers: str) -> Any:
    """Assert that the answer is this problem at these places, and return its body."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["code"] == code
    assert body["status"] == status
    assert body["type"].startswith("urn:context-service:problem:")
    assert body["title"] and body["detail"]
    found = {place["pointer"] for place in body["errors"]}
    assert set(pointers) <= found, body
    return body
