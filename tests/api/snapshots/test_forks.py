"""`/v1/conversations/{id}/fork`. [forks.at-seq]"""

from __future__ import annotations

from typing import Any

import httpx

from tests.api.talk import append, assert_problem, new_conversation, talk

ID = "0199a1b2-9f8e-7d6c-8b5a-4c3d2e1f0a9b"


async def fork(client: httpx.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    """Make a fork and return the answer."""
    answer = await client.post(f"{path}/fork", json=body)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def contents(client: httpx.AsyncClient, path: str) -> list[Any]:
    """Return the contents of a payload's messages."""
    answer = await client.post(f"{path}/context", json={})
    assert answer.status_code == 200, answer.text
    return [message["content"] for message in answer.json()["payload"]["messages"]]


async def test_a_fork_is_returned_as_a_conversation(client: httpx.AsyncClient) -> None:
    """201 with Location and the fields of the conversation [forks.at-seq]."""
    path = await new_conversation(client, metadata={"a": 1}, model="gpt-4o-mini")
    await append(client, path, *talk(4))
    answer = await client.post(f"{path}/fork")
    made = answer.json()
    assert answer.status_code == 201
    assert answer.headers["location"] == f"/v1/conversations/{made['conversation_id']}"
    assert (await client.get(answer.headers["location"])).json() == made
    shown = (await client.get(path)).json()
    own = ("conversation_id", "created_at", "updated_at")
    assert made == shown | {name: made[name] for name in own}
    assert await contents(client, answer.headers["location"]) == await contents(client, path)


async def test_optional_fields_of_a_fork(client: httpx.AsyncClient) -> None:
    """The last seq, the id and the metadata of a fork."""
    path = await new_conversation(client, metadata={"a": 1})
    await append(client, path, *talk(4))
    made = await fork(client, path, through_seq=3, conversation_id=ID.upper(), metadata={"b": 2})
    assert (made["conversation_id"], made["head_seq"], made["metadata"]) == (ID, 3, {"b": 2})
    empty = await fork(client, path, through_seq=0, metadata=None)
    assert (empty["head_seq"], empty["token_count"], empty["metadata"]) == (0, 0, {"a": 1})
    nested = await fork(client, f"/v1/conversations/{ID}", through_seq=2)
    assert nested["head_seq"] == 2


async def test_unknown_sources_and_used_ids_are_refused(client: httpx.AsyncClient) -> None:
    """An unknown source is a 404, and a used id is a conflict [errors.problem-json]."""
    for unknown in (ID, "nothing"):
        answer = await client.post(f"/v1/conversations/{unknown}/fork", json={})
        assert_problem(answer, 404, "NOT_FOUND")
    path = await new_conversation(client, conversation_id=ID)
    taken = await client.post(f"{path}/fork", json={"conversation_id": ID})
    assert assert_problem(taken, 409, "CONFLICT")["conversation_id"] == ID
