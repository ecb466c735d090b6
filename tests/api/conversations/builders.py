"""Conversations in which everything that can be deleted is there."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import httpx

from tests.api.talk import append, assistant, calling, result, talk, user


async def post(client: httpx.AsyncClient, path: str, body: Any = None) -> dict[str, Any]:
    """Post and return the answer, which must not be a problem."""
    answer = await client.post(path, json=body if body is not None else {})
    assert answer.status_code in (200, 201, 202), answer.text
    found: dict[str, Any] = answer.json()
    return found


async def full_conversation(
    client: httpx.AsyncClient, agent_id: str, conversation_id: str | None = None
) -> str:
    """Return the path of a conversation with a row in every table."""
    made = await post(
        client,
        "/v1/conversations",
        {
            "agent_id": agent_id,
            "sections": [{"name": "base", "content": "You help."}],
            "metadata": {"kind": "full"},
            "policy": {"sandwich": {"preserve_top": 1, "preserve_bottom": 1}},
            **({"conversation_id": conversation_id} if conversation_id is not None else {}),
        },
    )
    path = f"/v1/conversations/{quote(made['conversation_id'], safe='')}"
    key = {"Idempotency-Key": "once"}
    await client.post(f"{path}/messages", json={"messages": talk(8, "word " * 60)}, headers=key)
    await append(client, path, user("look"), calling("c1"), result("c1", "x" * 9000))
    last = await append(client, path, assistant("done"))
    pinned = last["messages"][0]["id"]
    assert (await client.put(f"{path}/messages/{pinned}/pin")).status_code == 200
    await client.post(f"{path}/blobs", content=b"raw", headers={"Content-Type": "text/plain"})
    built = await post(client, f"{path}/context", {"status": "busy"})
    usage = {"prompt_tokens": built["tokens_used"], "completion_tokens": 5}
    await post(client, f"{path}/usage", {"usage": usage, "build_id": built["build_id"]})
    assert (await post(client, f"{path}/compact"))["compacted"]
    await post(client, f"{path}/compact?wait=false")
    await post(client, f"{path}/context")
    await post(client, f"{path}/snapshots")
    await post(client, f"/v1/agents/{agent_id}/snapshots")
    redacted = (await client.get(f"{path}/messages?limit=1")).json()["data"][0]["id"]
    await post(client, f"{path}/messages/{redacted}/redact")
    assert (await client.get(f"{path}/messages?query=word")).json()["data"]
    await post(client, f"{path}/context")
    await post(client, f"{path}/clear")
    await post(client, f"{path}/fork")
    return path
