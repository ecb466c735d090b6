"""Filters of `GET /v1/conversations` over HTTP.

[lists.filters]
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from app.main import create_app
from app.settings import Settings
from tests.api.conversations.builders import post
from tests.api.talk import append, assert_problem, assistant, new_conversation, user
from tests.conftest import in_thread, started
from tests.keys import create


async def ids(client: httpx.AsyncClient, query: str = "") -> list[str]:
    """Return the paths of all conversations of a list, over all its pages of two."""
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        answer = await client.get(f"/v1/conversations?limit=2&{query}{cursor}")
        assert answer.status_code == 200, answer.text
        found += [f"/v1/conversations/{item['conversation_id']}" for item in answer.json()["data"]]
        following = answer.json()["next_cursor"]
        cursor = f"&cursor={following}" if following else None
    return found


async def test_metadata_is_filtered_as_it_is_now(client: httpx.AsyncClient) -> None:
    """Also after a change, a fork and a deletion. [lists.metadata, lists.filters]"""
    first = await new_conversation(client, metadata={"user": "ann", "vip": True, "n": 7, "x": None})
    second = await new_conversation(client, metadata={"user": "bob", "vip": True, "": "e"})
    assert await ids(client, "metadata[user]=ann") == [first]
    assert await ids(client, "metadata%5Bvip%5D=true") == [second, first]
    assert await ids(client, "metadata[vip]=true&metadata[n]=7") == [first]
    assert await ids(client, "metadata[user]=an") == await ids(client, "metadata[x]=null") == []
    await client.patch(first, json={"metadata": {"user": "bob", "über": "ü & ö"}})
    assert await ids(client, "metadata[user]=bob") == [second, first]
    assert await ids(client, "metadata[%C3%BCber]=%C3%BC+%26+%C3%B6") == [first]
    assert await ids(client, "metadata[vip]=true") == [second]
    fork = f"/v1/conversations/{(await post(client, f'{first}/fork'))['conversation_id']}"
    other = (await post(client, f"{first}/fork", {"metadata": {"user": "eve"}}))["conversation_id"]
    assert await ids(client, "metadata[user]=bob") == [fork, second, first]
    assert await ids(client, "metadata[user]=eve") == [f"/v1/conversations/{other}"]
    await client.delete(first)
    assert await ids(client, "metadata[user]=bob") == [fork, second]


@pytest.mark.parametrize(
    "metadata",
    [
        {"n\x00": "a\x00b", "lone": "a\ud800b", "\udc00": "\ud800\ud800x\udc00"},
        {"written": "\\u0000 \\ud800", "path": "C:\\ud8", "to": "\\udc0", "quote": '"\\'},
        {"nested": {"k": {"k": ["\x00", {"\ud83d": "\ude00"}]}}, "": "k", "big": 1e300},
    ],
)
async def test_any_metadata_is_stored_and_listed(
    client: httpx.AsyncClient, metadata: dict[str, Any]
) -> None:
    """It comes back as it was given, and its other values are found. [lists.metadata]"""
    stored = metadata | {"face": "😀", "k": "v"}
    headers = {"Content-Type": "application/json"}

    async def send(method: str, path: str, value: Any) -> httpx.Response:
        body = json.dumps({"metadata": value}).encode()
        answer = await client.request(method, path, content=body, headers=headers)
        assert answer.is_success, answer.text
        return answer

    made = await send("POST", "/v1/conversations", stored)
    path = made.headers["location"]
    await send("POST", "/v1/conversations", {"face": "🙂", "k": "w"})
    assert (await client.get(path)).json()["metadata"] == stored
    assert await ids(client, "metadata[face]=😀&metadata[k]=v") == [path]
    assert await ids(client, 'metadata[nested]={"k":"v"}') == []
    await send("PATCH", path, {"k": "x"})
    await send("PATCH", path, metadata | {"k": "y"})
    assert (await ids(client, "metadata[k]=y"), await ids(client, "metadata[k]=v")) == ([path], [])


async def test_usage_in_a_list_is_that_of_each_conversation(client: httpx.AsyncClient) -> None:
    """`include=usage` gives in one answer what three requests for each give. [lists.usage]"""
    budget = {"context_window": 8_000, "max_output_tokens": 500}
    few = {"strategy": "sliding_window", "sliding_window": {"keep_last_n": 2}}
    paths = [
        await new_conversation(
            client, model="gpt-4o", policy={"budget": budget, "agent_tools": "none", **own}
        )
        for own in ({}, few, {}, {})
    ]
    unknown = await new_conversation(client, model="of-our-own")
    for number, path in enumerate(paths):
        for turn in range(number * 4):
            await append(client, path, user(f"{turn}. Where is the harbour? " * 9), assistant("!"))
        if number in (1, 2):
            built = await post(client, f"{path}/context")
            usage = {"prompt_tokens": 900, "completion_tokens": 20}
            await post(client, f"{path}/usage", {"usage": usage, "build_id": built["build_id"]})
    made = await post(client, f"{paths[2]}/compact", {"target_tokens": 200})
    assert made["compacted"], made["reason"]
    assert (await post(client, f"{paths[3]}/overflow"))["compacted"]
    listed = (await client.get("/v1/conversations?include=usage")).json()["data"]
    found = {f"/v1/conversations/{item['conversation_id']}": item["usage"] for item in listed}
    assert set(found) == {*paths, unknown}
    for path, shown in found.items():
        reading = (await client.get(f"{path}/budget")).json()
        totals = (await client.get(f"{path}/usage")).json()["totals"]
        receipts = (await client.get(f"{path}/compactions")).json()["data"]
        cut = [each["created_at"] for each in receipts if each["trigger"] == "overflow"]
        failure = (await client.get(f"{path}/state")).json()["last_failure"]
        last = ("compaction_id", "created_at", "trigger", "degraded")
        assert shown == {
            "budget": reading["budget"],
            "pressure": reading["pressure"],
            "cost_usd": totals["cost_usd"],
            "saved_tokens": totals["saved_tokens"],
            "last_compaction": {name: receipts[0][name] for name in last} if receipts else None,
            "failed_at": failure and failure["failed_at"],
            "overflowed_at": cut[0] if cut else None,
        }
    assert found[unknown]["budget"] is None
    assert found[paths[3]]["overflowed_at"] is not None
    assert found[paths[2]]["cost_usd"] > 0
    assert found[paths[2]]["last_compaction"] is not None
    plain = (await client.get("/v1/conversations")).json()["data"]
    assert [item["usage"] for item in plain] == [None] * 5
    wrong = await client.get("/v1/conversations?include=cost")
    assert_problem(wrong, 422, "VALIDATION_ERROR", "/query/include")


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("metadata[]=x", "/query/metadata[]"),
        ("metadata[a][b]=x", "/query/metadata[a][b]"),
        ("metadata[a]=x&metadata[a]=y", "/query/metadata[a]"),
        ("metadata[a]=%00", "/query/metadata[a]"),
        (f"metadata[{'k' * 65}]=x", f"/query/metadata[{'k' * 65}]"),
        ("&".join(f"metadata[k{n}]=x" for n in range(9)), "/query/metadata"),
    ],
)
async def test_wrong_filters_are_refused(
    client: httpx.AsyncClient, query: str, pointer: str
) -> None:
    """Each is a 422 at its place."""
    answer = await client.get(f"/v1/conversations?{query}")
    assert_problem(answer, 422, "VALIDATION_ERROR", pointer)


async def test_a_cursor_belongs_to_its_list(client: httpx.AsyncClient) -> None:
    """With other filters it is refused. [lists.cursor]"""
    for _ in range(3):
        await new_conversation(client, metadata={"a": "x"})
    query = "limit=1&metadata[a]=x"
    cursor = (await client.get(f"/v1/conversations?{query}")).json()["next_cursor"]
    same = await client.get(f"/v1/conversations?{query.replace('limit=1', '')}&cursor={cursor}")
    assert len(same.json()["data"]) == 2
    for other in (query.replace("=x", "=y"), f"{query}&agent_id=m", "limit=1"):
        answer = await client.get(f"/v1/conversations?{other}&cursor={cursor}")
        assert_problem(answer, 422, "VALIDATION_ERROR", "/query/cursor")


async def test_other_tenants_find_nothing(settings: Settings) -> None:
    """Equal metadata of another tenant is in no list."""
    keys = [in_thread(create, name, "", None, settings) for name in ("one", "two")]
    async with started(create_app(settings)) as client:
        client.headers["Authorization"] = f"Bearer {keys[0]}"
        path = await new_conversation(client, metadata={"a": "x"})
        queries = ("metadata[a]=x", "")
        assert [await ids(client, query) for query in queries] == [[path]] * 2
        client.headers["Authorization"] = f"Bearer {keys[1]}"
        assert [await ids(client, query) for query in queries] == [[]] * 2
