"""`/v1/agents`.

[agents.settings, log.delete-everything, log.client-ids, log.idempotency-key, policy.inheritance,
 api.status-codes]
"""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from tests.api.talk import append, assert_problem, new_conversation, talk


async def new_agent(client: httpx.AsyncClient, agent_id: str, **more: Any) -> dict[str, Any]:
    """Create an agent and return it."""
    body = {"agent_id": agent_id, "name": agent_id.title(), **more}
    answer = await client.post("/v1/agents", json=body)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def test_conversations_inherit(client: httpx.AsyncClient) -> None:
    """The agent's conversations inherit model, policy, sections and tools [agents.settings]."""
    await new_agent(client, "a", model="claude-3-opus")
    path = await new_conversation(client, agent_id="a")
    await append(client, path, *talk(1))
    tools = [{"name": "search", "input_schema": {"type": "object"}}]
    body = {"sections": [{"name": "base", "content": "Be kind."}], "tools": tools}
    assert (await client.patch("/v1/agents/a", json=body)).status_code == 200
    payload = (await client.post(f"{path}/context", json={})).json()["payload"]
    assert payload["model"] == "claude-3-opus"
    assert payload["messages"][0] == {"role": "system", "content": "Be kind."}
    assert payload["tools"][0]["function"]["name"] == "search"
    assert (await client.get(path)).json()["effective_model"] == "claude-3-opus"


async def test_an_invalid_inherited_policy_can_be_read_and_changed(
    client: httpx.AsyncClient,
) -> None:
    """A policy that is invalid together with its agent's can still be read and changed."""
    await new_agent(client, "a")
    path = await new_conversation(client, agent_id="a", policy={"budget": {"context_window": 8000}})
    change = {"policy": {"budget": {"max_output_tokens": 9000}}}
    assert (await client.patch("/v1/agents/a", json=change)).status_code == 200
    assert (await client.get(path)).status_code == 200
    assert (await client.get(f"{path}/budget")).json()["budget"] is None
    appended = await append(client, path, *talk(2))
    assert appended["budget"] is None
    assert_problem(await client.post(f"{path}/context"), 422, "VALIDATION_ERROR")
    mend = {"policy": {"budget": {"context_window": 20_000}}}
    assert (await client.patch(path, json=mend)).status_code == 200
    assert (await client.post(f"{path}/context")).status_code == 200


async def test_delete_while_creating(client: httpx.AsyncClient) -> None:
    """A conversation created during the deletion of its agent is deleted or refused."""
    await new_agent(client, "a")
    creations = [client.post("/v1/conversations", json={"agent_id": "a"}) for _ in range(6)]
    *made, deletion = await asyncio.gather(*creations, client.delete("/v1/agents/a"))
    assert {answer.status_code for answer in made} <= {201, 422}
    count = sum(answer.status_code == 201 for answer in made)
    assert deletion.json()["deleted"].get("conversations", 0) == count
    assert (await client.get("/v1/conversations")).json()["data"] == []
