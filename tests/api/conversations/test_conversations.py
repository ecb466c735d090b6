"""`/v1/conversations`.

[log.delete-everything, log.client-ids, policy.merge-by-name,
 policy.inheritance, api.status-codes]
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
import pytest

from tests.api.talk import append, assert_problem, new_conversation, user
from tests.conftest import execute

ID = "0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b"
TOOL = {
    "type": "function",
    "function": {"name": "shell", "parameters": {"type": "object", "properties": {}}, "x": 1},
}


async def test_create_and_read(client: httpx.AsyncClient) -> None:
    """A creation answers 201 with Location and a UUIDv7 of the service's [log.client-ids]."""
    answer = await client.post("/v1/conversations", json={"metadata": {"a": [1, None, "é"]}})
    body = answer.json()
    assert answer.status_code == 201
    assert re.fullmatch(r"[0-9a-f-]{14}7[0-9a-f-]{21}", body["conversation_id"])
    assert answer.headers["location"] == f"/v1/conversations/{body['conversation_id']}"
    assert body["metadata"] == {"a": [1, None, "é"]}
    assert [body[f"{name}_count"] for name in ("message", "token", "turn")] == [0, 0, 0]
    assert body["model"] is None and body["effective_model"] == "gpt-4o"
    assert (await client.get(answer.headers["location"])).json() == body


async def test_an_id_by_the_client(client: httpx.AsyncClient) -> None:
    """A client's UUID is accepted in any case, once [tenancy.creates-conflict]."""
    answer = await client.post("/v1/conversations", json={"conversation_id": ID.upper()})
    assert answer.json()["conversation_id"] == ID
    again = await client.post("/v1/conversations", json={"conversation_id": ID})
    assert assert_problem(again, 409, "CONFLICT")["conversation_id"] == ID
    assert (await client.get(f"/v1/conversations/{ID.upper()}")).status_code == 200


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"conversation_id": "a/b"}, "/conversation_id"),
    ({"agent_id": "nobody"}, "/agent_id"),
    ({"model": ""}, "/model"),
    ({"metadata": {"a": "x" * 70_000}}, "/metadata"),
    ({"policy": {"sandwich": {"preserve_top": True}}}, "/policy/sandwich/preserve_top"),
    ({"policy": {"budget": {"context_window": 100}}}, "/policy/budget/max_output_tokens"),
    ({"sections": [{"name": "a", "content": "", "kind": "x"}]}, "/sections/0/kind"),
    ({"sections": [{"name": "a", "content": ""}] * 2}, "/sections/1/name"),
    ({"tools": [{"name": "a b"}]}, "/tools/0/name"),
    ({"tools": [TOOL, TOOL]}, "/tools/1/name"),
]


@pytest.mark.parametrize(("body", "pointer"), WRONG, ids=lambda value: str(value)[:60])
async def test_invalid_creations_are_refused(
    client: httpx.AsyncClient, body: dict[str, Any], pointer: str
) -> None:
    """Each is a 422 with its pointer [errors.problem-json, policy.checked-when-set]."""
    answer = await client.post("/v1/conversations", json=body)
    found = assert_problem(answer, 422, "VALIDATION_ERROR")["errors"]
    assert any(place["pointer"].startswith(pointer) for place in found), found


async def test_patch(client: httpx.AsyncClient) -> None:
    """A PATCH changes what it names and answers the whole conversation. [agents.patch]"""
    path = await new_conversation(client, model="gpt-4o", metadata={"a": 1})
    assert (await client.patch(path, json={})).json()["model"] == "gpt-4o"
    body = (await client.patch(path, json={"model": "claude-3-opus"})).json()
    assert (body["model"], body["metadata"]) == ("claude-3-opus", {"a": 1})
    body = (await client.patch(path, json={"model": None, "metadata": {"b": 2}})).json()
    assert (body["model"], body["effective_model"]) == (None, "gpt-4o")
    assert body["metadata"] == {"b": 2}
    assert body["updated_at"] > body["created_at"]
    for wrong in ({"agent_id": "a"}, {"metadata": None}, {"policy": {"nope": 1}}):
        assert_problem(await client.patch(path, json=wrong), 422, "VALIDATION_ERROR")
    assert (await client.get(path)).json() == body


async def test_concurrent_patches_are_all_applied(client: httpx.AsyncClient) -> None:
    """Concurrent patches of different leaves are all applied [policy.null-resets]."""
    path = await new_conversation(client)
    leaves = {"retain_last_turns": 1, "max_messages": 2, "threshold_ratio": 0.5}
    await asyncio.gather(
        *(client.patch(path, json={"policy": {"compaction": {key: leaves[key]}}}) for key in leaves)
    )
    assert (await client.get(path)).json()["policy_overrides"] == {"compaction": leaves}


async def test_the_counter_is_fixed_by_the_first_message(client: httpx.AsyncClient) -> None:
    """The counter can change while the log is empty; later it is a 409 [tokens.one-counter]."""
    path = await new_conversation(client)
    change = {"policy": {"budget": {"counter": "bytes_4"}}}
    body = (await client.patch(path, json=change)).json()
    assert body["policy"]["budget"]["counter"] == "bytes_4"
    await append(client, path, user("hello"))
    back = {"policy": {"budget": {"counter": "tokenizer"}}}
    assert_problem(await client.patch(path, json=back), 409, "CONFLICT")
    assert_problem(await client.patch(path, json={"policy": None}), 409, "CONFLICT")
    same = await client.patch(path, json=change | {"metadata": {"a": 1}})
    assert same.status_code == 200


async def test_sections(client: httpx.AsyncClient) -> None:
    """Sections are replaced as a list, and are read with every setting [policy.versioned-lists]."""
    path = await new_conversation(client, sections=[{"name": "old", "content": "Old."}])
    given = [
        {"name": "b", "content": "B", "kind": "rules", "cacheable": False, "order": 7},
        {"name": "a", "content": "A\x00"},
    ]
    full = {"name": "a", "content": "A\x00", "kind": "base", "cacheable": True, "order": 1}
    for _ in range(2):
        body = (await client.patch(path, json={"sections": given})).json()
        assert (body["sections"], body["sections_version"]) == ([given[0], full], 2)
    for wrong in (None, [given[0]] * 2):
        answer = await client.patch(path, json={"sections": wrong})
        assert_problem(answer, 422, "VALIDATION_ERROR")
    body = (await client.patch(path, json={"sections": []})).json()
    assert (body["sections"], body["sections_version"], body["tools_version"]) == ([], 3, 0)
    assert (await client.get(f"{path}/versions/sections/2")).json() == {"items": given}


async def test_the_newest_versions_are_kept(client: httpx.AsyncClient) -> None:
    """A list that is replaced for ever takes bounded room; the other list keeps its versions."""
    path = await new_conversation(client, tools=[TOOL])
    for number in range(52):
        sections = [{"name": "a", "content": f"{number}"}]
        assert (await client.patch(path, json={"sections": sections})).status_code == 200
    for version, status in ((1, 404), (2, 404), (3, 200), (52, 200), (53, 404)):
        answer = await client.get(f"{path}/versions/sections/{version}")
        assert answer.status_code == status
    assert (await client.get(f"{path}/versions/tools/1")).status_code == 200


async def test_delete_while_writing(client: httpx.AsyncClient) -> None:
    """Appends during a deletion are stored before it or not at all [log.delete-everything]."""
    path = await new_conversation(client)
    posts = [client.post(f"{path}/messages", json={"messages": [user("x")]}) for _ in range(6)]
    *appends, deletion = await asyncio.gather(*posts, client.delete(path))
    assert deletion.status_code == 200
    stored = sum(answer.status_code == 201 for answer in appends)
    assert {answer.status_code for answer in appends} <= {201, 404}
    assert deletion.json()["deleted"]["messages"] == stored


# --- expiry ---------------------------------------------------------------------------------


async def test_a_conversation_expires(client: httpx.AsyncClient, database_url: str) -> None:
    """An expiry is set, changed and removed; once it has passed the conversation is unknown.

    [log.expiry]
    """
    agent = (await client.post("/v1/agents", json={"name": "Ann"})).json()["agent_id"]
    later = "2199-01-05T09:30:00+00:00"
    past = {"expires_at": "2020-01-05T09:30:00Z"}
    answer = await client.post("/v1/conversations", json=past)
    assert_problem(answer, 422, "VALIDATION_ERROR", "/expires_at")
    path = await new_conversation(client, agent_id=agent, expires_at=later)
    assert_problem(await client.patch(path, json=past), 422, "VALIDATION_ERROR", "/expires_at")
    for change, expected in (
        ({"metadata": {"a": 1}}, later),
        ({"expires_at": None}, None),
        ({"expires_at": "2199-01-05T10:30:00+01:00"}, later),
    ):
        assert (await client.patch(path, json=change)).json()["expires_at"] == expected
    await append(client, path, user("hi"))
    fork = (await client.post(f"{path}/fork", json={})).json()["conversation_id"]
    assert (await client.get(f"/v1/conversations/{fork}")).json()["expires_at"] == later
    await execute(database_url, "UPDATE conversations SET expires_at = now()")
    for method, place, body in (
        ("GET", "", None),
        ("PATCH", "", {"expires_at": None}),
        ("DELETE", "", None),
        ("GET", "/messages", None),
        ("POST", "/messages", {"messages": [user("again")]}),
        ("POST", "/context", {}),
        ("POST", "/fork", {}),
        ("GET", "/events?follow=false", None),
    ):
        answer = await client.request(method, path + place, json=body)
        assert_problem(answer, 404, "NOT_FOUND")
    assert (await client.get("/v1/conversations")).json()["data"] == []
    deleted = await client.delete(f"/v1/agents/{agent}")
    assert deleted.json()["deleted"]["conversations"] == 2
