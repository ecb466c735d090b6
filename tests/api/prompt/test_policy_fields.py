"""What a policy's leaves promise of a payload: the share of tools, the role of a summary."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from app.conversations.view import SUMMARY_PREFIX
from tests.api.compaction.builders import LONG
from tests.api.talk import append, new_conversation, talk, user


def tool(name: str, category: str, words: int) -> dict[str, Any]:
    """Return a tool definition of about so many tokens."""
    about = {"name": name, "description": "word " * words}
    return {"type": "function", "function": about, "category": category}


@pytest.mark.parametrize("threshold", [0.02, 0.05, 0.1, 0.3])
@pytest.mark.parametrize("format", ["openai_chat", "openai_responses", "anthropic", "gemini"])
async def test_the_tools_of_a_payload_are_within_their_share(
    client: httpx.AsyncClient, threshold: float, format: str
) -> None:
    """The tools that are not deferred, with `tool_search`, are within the threshold."""
    policy = {
        "agent_tools": ["tool_search"],
        "tool_deferral_threshold": threshold,
        "budget": {"context_window": 32_000, "max_output_tokens": 2000},
    }
    tools = [tool(f"tool{number}", "mcp", 40 + 13 * number) for number in range(40)]
    path = await new_conversation(client, policy=policy, tools=tools)
    await append(client, path, user("Hello"))
    body = (await client.post(f"{path}/context", json={"format": format})).json()
    assert body["diagnostics"]["deferred_tools"] > 0
    share = int(threshold * body["diagnostics"]["budget"]["effective_window"])
    assert body["diagnostics"]["budget"]["tool_descriptions"] <= share
    largest = 8 + 40 + 13 * 40
    assert body["diagnostics"]["budget"]["tool_descriptions"] > share - largest - 200


@pytest.mark.parametrize(
    ("format", "role"),
    [
        ("openai_chat", "system"),
        ("openai_responses", "developer"),
        ("anthropic", "user"),
        ("gemini", "user"),
    ],
)
@pytest.mark.parametrize("wanted", ["system", "user"])
async def test_a_summary_in_the_role_of_the_system(
    client: httpx.AsyncClient, format: str, role: str, wanted: str
) -> None:
    """Where a format has no system role, the summary is of the user, and `degraded` lists it."""
    path = await new_conversation(client, policy={"summary_role": wanted})
    await append(client, path, *talk(40, LONG))
    assert "summary_role_user" not in (await client.post(f"{path}/context")).json()["degraded"]
    assert (await client.post(f"{path}/compact")).json()["compacted"]
    for _ in range(2):
        body = (await client.post(f"{path}/context", json={"format": format})).json()
        payload = body["payload"]
        items = payload.get("messages") or payload.get("input") or payload["contents"]
        found = next(item for item in items if SUMMARY_PREFIX in str(item))
        assert found["role"] == (role if wanted == "system" else "user")
        is_told = wanted == "system" and role == "user"
        assert body["degraded"] == (["summary_role_user"] if is_told else [])
