"""The walls between tenants: another tenant's ids are found nowhere. [tenancy.not-found]"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import combinations
from typing import Any
from urllib.parse import quote, unquote

import asyncpg
import httpx
import pytest_asyncio

from app.database.tables import TABLES
from app.main import create_app
from app.settings import Settings
from tests.api.conversations.builders import full_conversation, post
from tests.api.http.openapi_document import OPERATIONS, schema_of
from tests.api.talk import append, calling, result, user
from tests.conftest import started
from tests.keys import create

UNKNOWN = {
    "agent_id": "nobody",
    "conversation_id": "00000000-0000-7000-8000-00000000dead",
    "message_id": "00000000-0000-7000-8000-00000000beef",
    "ref_id": "blob_" + "0" * 24,
    "compaction_id": "00000000-0000-7000-8000-00000000cafe",
    "job_id": "00000000-0000-7000-8000-00000000f00d",
    "snapshot_id": "00000000-0000-7000-8000-00000000feed",
    "model": "unlisted-model",
    "build_id": "00000000-0000-7000-8000-00000000bead",
}
COUNTED = {"api_keys", "tenants", "alembic_version"}
"""What every request may change, whoever sends it."""

Call = tuple[str, str, dict[str, Any]]
CALLS: list[Call] = [item for item in OPERATIONS if item[1].startswith("/v1/")]
NAMED = {"create_agent", "set_model", "import_snapshot"}
"""Operations whose ids are names that each tenant gives as it likes."""


SECTION = {"name": "base", "content": "You help."}
SHARED = {"kind": "sections", "version": "1"}
"""What a path has besides ids."""


@dataclass(frozen=True)
class World:
    """Two tenants, each with a conversation that everything has happened to, and its ids."""

    client: httpx.AsyncClient
    url: str
    keys: Mapping[str, str]
    ids: Mapping[str, Mapping[str, str]]

    def headers(self, tenant: str) -> dict[str, str]:
        """Return the headers of a request of this tenant."""
        return {"Authorization": f"Bearer {self.keys[tenant]}"}

    async def send(self, tenant: str, call: Call, ids: Mapping[str, str]) -> httpx.Response:
        """Send an operation with these ids in its path, query and body."""
        method, path, operation = call
        query = {
            given["name"]: ids[given["name"]]
            for given in operation.get("parameters", [])
            if given["in"] == "query" and given["name"] in ids
        }
        if "as_of" in {given["name"] for given in operation.get("parameters", [])}:
            query["as_of"] = ids["build_id"]
        if operation["operationId"] == "stream_events":
            query["follow"] = "false"
        if operation["operationId"] == "grep_blob":
            query["pattern"] = "x"
        body = body_of(operation, ids)
        more = {"content": b"raw"} if body is RAW else {"json": body} if body is not None else {}
        return await self.client.request(
            method,
            re.sub(r"\{(\w+)\}", lambda found: quote({**ids, **SHARED}[found[1]], safe=""), path),
            params=query,
            headers=self.headers(tenant),
            **more,
        )


RAW = object()


def body_of(operation: Mapping[str, Any], ids: Mapping[str, str]) -> Any:
    """Return the body of the published example, with these ids where it names any."""
    if "requestBody" not in operation:
        return None
    example = schema_of(operation["requestBody"])["examples"][0]
    if example == "raw bytes":
        return RAW
    body = dict(example)
    match operation["operationId"]:
        case "create_conversation":
            return {"agent_id": ids["agent_id"]}
        case "restore_snapshot":
            return {"conversation_id": ids["conversation_id"]}
        case "create_agent":
            return body | {"agent_id": ids["agent_id"]}
        case "fork_conversation":
            return {}
        case "answer_tool_call":
            call = {"name": "read_result", "arguments": f'{{"ref_id": "{ids["ref_id"]}"}}'}
            return {"tool_call": {"id": "call_x", "type": "function", "function": call}}
        case "append_messages":
            return {"messages": [{"role": "user", "content": "hello"}]}
    return body


async def ids_of(
    client: httpx.AsyncClient, agent_id: str, conversation_id: str | None = None
) -> dict[str, str]:
    """Make everything of which there are ids, and return those."""
    await post(client, "/v1/agents", {"agent_id": agent_id, "name": "Agent", "sections": [SECTION]})
    path = await full_conversation(client, agent_id, conversation_id)
    answered = await append(
        client, path, user("look"), calling("c2"), result("c2", f"{agent_id} " * 900)
    )
    blobs = (await client.get(f"{path}/blobs")).json()["data"]
    job = await post(client, f"{path}/compact?wait=false")
    built = await post(client, f"{path}/context", {"status": ""})
    compactions = (await client.get(f"{path}/compactions")).json()["data"]
    snapshot = await post(client, f"{path}/snapshots")
    await client.put(f"/v1/models/model-of-{agent_id[:3]}", json={"context_window": 9000})
    return {
        "agent_id": agent_id,
        "conversation_id": unquote(path.rpartition("/")[2]),
        "message_id": answered["messages"][0]["id"],
        "ref_id": blobs[0]["id"],
        "compaction_id": compactions[0]["compaction_id"],
        "job_id": job["job_id"],
        "snapshot_id": snapshot["snapshot_id"],
        "model": f"model-of-{agent_id[:3]}",
        "build_id": built["build_id"],
    }


@asynccontextmanager
async def two_tenants(
    settings: Settings, conversation_id: str | None = None
) -> AsyncIterator[World]:
    """Yield two tenants in one service, whose conversations may have the same id."""
    keys = {name: await create(name, "", None, settings) for name in ("alice", "bob")}
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(started(create_app(settings)))
        ids = {}
        for tenant, key in keys.items():
            client.headers["Authorization"] = f"Bearer {key}"
            ids[tenant] = await ids_of(client, f"{tenant}s-agent", conversation_id)
        del client.headers["Authorization"]
        assert settings.database_url is not None
        yield World(client, settings.database_url, keys, ids)


@pytest_asyncio.fixture
async def world(settings: Settings) -> AsyncIterator[World]:
    """Two tenants in one service."""
    async with two_tenants(settings) as made:
        yield made


async def everything(url: str, tenant: str, ids: Mapping[str, str]) -> dict[str, Any]:
    """Return all rows that belong to a tenant's conversation, agent or self, by table."""
    connection = await asyncpg.connect(url)
    found = {}
    try:
        for name, table in TABLES.items():
            if name in COUNTED:
                continue
            if "tenant_id" in table.columns:
                where, value = "tenant_id = $1", tenant
            elif "conversation_id" in table.columns:
                where, value = "conversation_id = CAST($1 AS uuid)", ids["conversation_id"]
            else:
                continue
            rows = await connection.fetch(f"SELECT t::text FROM {name} t WHERE {where}", value)
            found[name] = sorted(row["t"] for row in rows)
    finally:
        await connection.close()
    return found


def comparable_answer(answer: httpx.Response, ids: Mapping[str, str]) -> tuple[int, str]:
    """Return an answer without what differs from one request to the next and the ids asked for."""
    text = answer.text
    for name, value in ids.items():
        text = text.replace(value, f"<{name}>")
    return answer.status_code, re.sub(r'"(request_id|created_at)":"[^"]*"', "", text)


def ids_in(call: Call) -> list[str]:
    """Return the names of the ids that an operation takes in path, query or body."""
    _, path, operation = call
    names = set(re.findall(r"\{(\w+)\}", path))
    names |= {given["name"] for given in operation.get("parameters", [])} & set(UNKNOWN)
    body = body_of(operation, UNKNOWN)
    if isinstance(body, dict):
        names |= {"agent_id", "conversation_id"} & set(body)
    names |= {"answer_tool_call": {"ref_id"}, "get_context": {"build_id"}}.get(
        operation["operationId"], set()
    )
    return sorted(names - set(SHARED))


async def test_foreign_ids_among_own_ones_are_unknown(world: World) -> None:
    """In path, query and body, in every mix with one's own ids, a foreign id is nobody's.

    A conversation of one's own does not open a message, blob, compaction, build or snapshot of
    another's. Upper case makes no difference.

    [api.limits, tenancy.every-table]
    """
    theirs, own = world.ids["alice"], dict(world.ids["bob"])
    before = await everything(world.url, "alice", theirs)
    assert sum(map(len, before.values())) > 50
    for call in CALLS:
        names = ids_in(call)
        name = call[2]["operationId"]
        if name in NAMED:
            continue
        for size in range(1, len(names) + 1):
            for chosen in combinations(names, size):
                foreign = own | {name: theirs[name] for name in chosen}
                unknown = own | {name: UNKNOWN[name] for name in chosen}
                loud = foreign | {"conversation_id": foreign["conversation_id"].upper()}
                expected = comparable_answer(await world.send("bob", call, unknown), unknown)
                got = await world.send("bob", call, foreign)
                assert comparable_answer(got, foreign) == expected, f"{name} {chosen}: {got.text}"
                if "{" in call[1] and size == len(names):
                    assert (got.status_code, got.json()["code"]) == (404, "NOT_FOUND"), name
                if "conversation_id" in chosen:
                    assert (await world.send("bob", call, loud)).status_code == expected[0]
    assert await everything(world.url, "alice", theirs) == before


async def test_lists_have_resources_of_the_own_tenant_only(world: World) -> None:
    """Lists of conversations, agents, snapshots, models and messages have a tenant's own only."""
    for tenant, other in (("alice", "bob"), ("bob", "alice")):
        for path in ("/v1/conversations", "/v1/agents", "/v1/snapshots", "/v1/models"):
            page = await world.client.get(
                path, params={"limit": 1000}, headers=world.headers(tenant)
            )
            assert page.status_code == 200
            for value in world.ids[other].values():
                assert f'"{value}"' not in page.text
    own = await world.client.get("/v1/conversations", headers=world.headers("bob"))
    assert len(own.json()["data"]) == 2


async def test_an_id_of_another_tenant_is_free(world: World) -> None:
    """A creation or a fork with another tenant's id is like one with an id that nobody has.

    Only an own id is taken. [log.client-ids]
    """
    own = world.ids["bob"]["conversation_id"]
    for path in ("/v1/conversations", f"/v1/conversations/{own}/fork"):
        answers = []
        for used in (world.ids["alice"], UNKNOWN, world.ids["bob"]):
            conversation_id = used["conversation_id"]
            answer = await world.client.post(
                path, json={"conversation_id": conversation_id}, headers=world.headers("bob")
            )
            answers.append(answer)
            if answer.status_code == 201:
                where = answer.headers["Location"]
                assert where == f"/v1/conversations/{conversation_id}"
                removed = await world.client.delete(where, headers=world.headers("bob"))
                assert removed.json()["deleted"]["conversations"] == 1
        assert [answer.status_code for answer in answers] == [201, 201, 409]
        taken = answers[-1].json()
        assert taken["detail"] == f"The id {own!r} is taken"
