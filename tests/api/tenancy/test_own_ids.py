"""Ids of conversations that callers choose: in every operation, and between tenants.

[log.client-ids]
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import asyncpg
import httpx
import pytest

from app.settings import Settings
from tests.api.talk import assert_problem, user
from tests.api.tenancy.test_tenants import CALLS, Call, everything, two_tenants
from tests.snapshot_files import entry, snapshot_file

STRANGE = ". Kunde 42?&=%2e#'\"<>;+:@漢é🙂 ~ .."
PLAIN_UUID = "6f1e2d3c-4b5a-4978-8695-a4b3c2d1e0f9"
RESERVED_UUID = "6f1e2d3c-4b5a-8978-8695-a4b3c2d1e0f9"
LAST = {"delete_agent", "delete_conversation", "delete_snapshot", "delete_model"}
MADE = {"create_conversation", "create_agent", "fork_conversation", "import_snapshot"}
"""Operations whose answer is about something new."""


async def keys_of(url: str, tenant: str) -> list[str]:
    """Return the keys of a tenant's conversations that have an own id, as the database has them."""
    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch(
            "SELECT conversation_id FROM conversations WHERE tenant_id = $1 AND own_id IS NOT NULL",
            tenant,
        )
    finally:
        await connection.close()
    return [str(row["conversation_id"]) for row in rows]


def conversations_in(answer: Any) -> Iterator[str]:
    """Yield every id of a conversation in an answer."""
    match answer:
        case dict():
            for name, value in answer.items():
                if name in ("conversation_id", "source_conversation_id"):
                    yield value
                elif name == "conversation_ids":
                    yield from value
                else:
                    yield from conversations_in(value)
        case list():
            for item in answer:
                yield from conversations_in(item)


def in_order(call: Call) -> tuple[bool, bool]:
    """Order operations: those that delete what others need come last."""
    name = call[2]["operationId"]
    return name in LAST, name in ("delete_conversation", "delete_agent")


@pytest.mark.parametrize("own", [STRANGE, PLAIN_UUID, RESERVED_UUID])
async def test_every_operation_takes_an_own_id(settings: Settings, own: str) -> None:
    """Two tenants use one id, and each operation of one finds and shows that id and no key.

    Nothing of the other tenant changes.
    """
    async with two_tenants(settings, own) as world:
        theirs = world.ids["alice"]
        (key, *_) = [*await keys_of(world.url, "alice"), own]
        stored = dict(theirs) | {"conversation_id": key}
        before = await everything(world.url, "alice", stored)
        assert sum(map(len, before.values())) > 50
        ids = world.ids["bob"]
        assert ids["conversation_id"] == own
        (hidden,) = await keys_of(world.url, "bob")
        assert hidden not in (own, key)
        seen = 0
        for call in sorted(CALLS, key=in_order):
            name = call[2]["operationId"]
            answer = await world.send("bob", call, ids)
            assert answer.status_code not in (404, 500), f"{name}: {answer.text}"
            for text in (answer.text, str(answer.headers)):
                assert hidden not in text.replace(f'"prompt_cache_key":"{hidden}', ""), name
            if "{conversation_id}" in call[1] and "location" in answer.headers and name not in MADE:
                assert quote(own, safe="") in answer.headers["location"]
            is_json = "ndjson" not in answer.headers["content-type"]
            if is_json and "json" in answer.headers["content-type"] and name not in MADE:
                found = [item for item in conversations_in(answer.json()) if item == own]
                seen += bool(found)
        assert seen > 8
        assert await everything(world.url, "alice", stored) == before


REFUSED = ["", ".", "..", "a/b", "a\\b", " a", "a ", "a\tb", "a\u0000", "\u200b", "a" * 257]


@pytest.mark.parametrize("text", REFUSED)
async def test_other_texts_are_refused(client: httpx.AsyncClient, text: str) -> None:
    """A creation or an import says why; in a path the text names no conversation."""
    created = await client.post("/v1/conversations", json={"conversation_id": text})
    problem = assert_problem(created, 422, "VALIDATION_ERROR", "/conversation_id")
    assert "must" in problem["detail"] or "should" in problem["detail"]
    file = snapshot_file([entry(user("x"), conversation_id=text)])
    imported = await client.post("/v1/snapshots", json=file)
    assert_problem(imported, 422, "VALIDATION_ERROR", "/messages/0/conversation_id")
    if text.strip("./"):
        found = await client.get(f"/v1/conversations/{quote(text, safe='')}")
        assert_problem(found, 404, "NOT_FOUND")


@pytest.mark.parametrize("own", ["a thread", PLAIN_UUID])
async def test_one_of_several_creations_succeeds(settings: Settings, own: str) -> None:
    """Concurrent creations and forks of one id make one conversation.

    It makes no difference that another tenant deletes its conversation with that id meanwhile.
    """
    async with two_tenants(settings) as world:
        source = world.ids["bob"]["conversation_id"]

        async def send(tenant: str, method: str, path: str, **body: Any) -> httpx.Response:
            headers = world.headers(tenant)
            return await world.client.request(method, path, json=body or None, headers=headers)

        where = f"/v1/conversations/{quote(own, safe='')}"
        for path in ("/v1/conversations", f"/v1/conversations/{source}/fork") * 3:
            taken = await send("alice", "POST", "/v1/conversations", conversation_id=own)
            assert taken.status_code == 201
            creations = (send("bob", "POST", path, conversation_id=own) for _ in range(4))
            answers = await asyncio.gather(*creations, send("alice", "DELETE", where))
            statuses = sorted(answer.status_code for answer in answers)
            assert statuses == [200, 201, 409, 409, 409], [answer.text for answer in answers]
            assert (await send("bob", "DELETE", where)).status_code == 200
            assert (await send("bob", "GET", where)).status_code == 404
