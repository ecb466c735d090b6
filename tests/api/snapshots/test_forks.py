"""`/v1/conversations/{id}/fork`. [forks.at-seq]"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.api.talk import append, assert_problem, calling, new_conversation, result, talk, user
from tests.judge import refusals
from tests.judge.epochs import ITEMS

ID = "0199a1b2-9f8e-7d6c-8b5a-4c3d2e1f0a9b"


async def fork(client: httpx.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    """Make a fork and return the answer."""
    answer = await client.post(f"{path}/fork", json=body)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def without_marks(value: Any) -> Any:
    """Return items without the marks that move to the end with each payload."""
    if isinstance(value, dict):
        marks = ("cache_control", "prompt_cache_breakpoint")
        return {name: without_marks(each) for name, each in value.items() if name not in marks}
    return [without_marks(each) for each in value] if isinstance(value, list) else value


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


@pytest.mark.parametrize("format", ["openai_chat", "openai_responses", "anthropic", "gemini"])
async def test_forks_share_the_prefix_of_their_source(
    client: httpx.AsyncClient, format: str
) -> None:
    """Ten sub-agents at once, forked at the call that asks for them. [forks.same-prefix]"""
    model = {"anthropic": "claude-sonnet-4-5", "gemini": "gemini/gemini-2.5-pro"}.get(format)
    path = await new_conversation(client, sections=[{"name": "base", "content": "Be brief."}])
    await append(client, path, *talk(6), calling("c1"))
    head = (await client.get(path)).json()["head_seq"]
    forks = await asyncio.gather(*(fork(client, path, through_seq=head) for _ in range(10)))
    await append(client, path, result("c1"))
    answers = []
    for number, each in enumerate(({"conversation_id": path.split("/")[-1]}, *forks)):
        where = f"/v1/conversations/{each['conversation_id']}"
        await append(client, where, user(f"Task {number}"))
        answer = await client.post(f"{where}/context", json={"format": format, "model": model})
        assert answer.status_code == 200, answer.text
        answers.append(answer.json()["payload"])
        assert refusals(format, answers[-1]) == []
    unmarked = [without_marks(payload.pop(ITEMS[format])) for payload in answers]
    called = next(at for at, item in enumerate(unmarked[0]) if '"shell"' in json.dumps(item))
    shared = called + 1
    assert shared >= 6
    assert {json.dumps(items[:shared]) for items in unmarked} == {json.dumps(unmarked[0][:shared])}
    assert {json.dumps(payload) for payload in answers} == {json.dumps(answers[0])}


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
