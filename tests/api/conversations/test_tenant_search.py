"""Search in several conversations over HTTP: a tenant's, and an agent's.

[search.tenant]
"""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
import pytest

from app.conversations.search import index
from app.conversations.search import service as tenant_search
from app.main import create_app
from app.settings import Settings
from tests.api.talk import append, assert_problem, assistant, new_conversation, user
from tests.conftest import in_thread, started
from tests.keys import create

Found = list[tuple[str, int]]


async def indexed(client: httpx.AsyncClient) -> None:
    """Index all messages, as the worker does."""
    transport: Any = client._transport
    await index.index_all(transport.app.state.services.database, 0)


async def search(client: httpx.AsyncClient, **query: Any) -> Found:
    """Return conversation and seq of each hit, over all pages."""
    await indexed(client)
    found: Found = []
    cursor: dict[str, str] = {}
    for _ in range(100):
        answer = await client.get("/v1/search", params=query | cursor)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert len(page["data"]) <= query.get("limit", 20)
        found += [(hit["conversation_id"], hit["seq"]) for hit in page["data"]]
        if page["next_cursor"] is None:
            return found
        cursor = {"cursor": page["next_cursor"]}
    raise AssertionError("the search does not end")


async def planted(client: httpx.AsyncClient, count: int) -> list[str]:
    """Return the ids of conversations with some whales, those of even ones in agent `a`."""
    await client.post("/v1/agents", json={"agent_id": "a", "name": "A"})
    ids = []
    for number in range(count):
        path = await new_conversation(client, **({} if number % 2 else {"agent_id": "a"}))
        messages = [user(f"whale {place}" if place % 3 == 0 else "boat") for place in range(8)]
        await append(client, path, *messages)
        ids.append(path.rpartition("/")[2])
    return ids


def whales(ids: list[str]) -> Found:
    """Return where the whales are, of the newest conversation first."""
    return [(conversation_id, seq) for conversation_id in reversed(ids) for seq in (7, 4, 1)]


@pytest.mark.parametrize("limit", [1, 4, 100])
async def test_pages_together_have_every_hit(
    client: httpx.AsyncClient, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However small the bounds of a request are, each hit is found once, and in order."""
    bounds = {"MAX_CONVERSATIONS": 4, "_CONVERSATIONS_READ": 2, "_MAX_PAGE_BLOCKS": 3}
    for name, value in bounds.items():
        monkeypatch.setattr(tenant_search, name, value)
    monkeypatch.setattr(index, "BLOCK", 3)
    ids = await planted(client, 5)
    assert await search(client, query="whale", limit=limit) == whales(ids)
    assert await search(client, query="whale", agent_id="a", limit=limit) == whales(ids[::2])
    assert await search(client, query="shark", limit=limit) == []
    oldest = f"/v1/conversations/{ids[0]}"
    await append(client, oldest, assistant("The whale surfaces beside the boat. " + "Waves. " * 90))
    now = [*whales(ids[1:]), (ids[0], 9), *whales(ids[:1])]
    assert await search(client, query="whale", limit=limit) == now
    await client.delete(oldest)
    assert await search(client, query="whale", limit=limit) == whales(ids[1:])


async def test_a_hit_shows_where_the_words_are(client: httpx.AsyncClient) -> None:
    """The snippet is one line around the match, and an answer tells how far the index is."""
    path = await new_conversation(client)
    text = f"{'Waves. ' * 200}The whale\nsurfaces. {'Gulls. ' * 200}"
    appended = await append(client, path, user("boat"), assistant(text))
    page = (await client.get("/v1/search?query=whale")).json()
    assert page["data"] == [] and page["indexed_before"] is not None
    await indexed(client)
    page = (await client.get("/v1/search?query=whale")).json()
    (hit,) = page["data"]
    assert page["indexed_before"] is None
    assert "The whale surfaces." in hit["snippet"] and len(hit["snippet"]) < 1_000
    assert (hit["role"], hit["seq"]) == ("assistant", 2)
    assert hit["message_id"] == appended["messages"][1]["id"]
    assert hit["conversation_id"] == path.rpartition("/")[2]


async def test_other_tenants_are_never_searched(settings: Settings) -> None:
    """Not by words, and not by a cursor that names their conversation."""
    keys = [in_thread(create, name, "", None, settings) for name in ("one", "two")]
    async with started(create_app(settings)) as client:
        client.headers["Authorization"] = f"Bearer {keys[0]}"
        ids = await planted(client, 2)
        await indexed(client)
        page = (await client.get("/v1/search?query=whale&limit=1")).json()
        cursor = page["next_cursor"]
        assert json.loads(base64.urlsafe_b64decode(cursor + "=="))[3] in ids
        assert (await client.get(f"/v1/search?query=whale&cursor={cursor}")).json()["data"]
        client.headers["Authorization"] = f"Bearer {keys[1]}"
        for query in ("query=whale", f"query=whale&cursor={cursor}", "query=whale&agent_id=a"):
            assert (await client.get(f"/v1/search?{query}")).json()["data"] == []


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("", "/query/query"),
        ("query=", "/query/query"),
        ("query=-%00%F0%9F%98%80", "/query/query"),
        ("query=" + "x" * 1_001, "/query/query"),
        ("query=" + "+".join(map(str, range(65))), "/query/query"),
        ("query=a&limit=101", "/query/limit"),
        ("query=a&agent_id=%20", "/query/agent_id"),
        ("query=a&cursor=abc", "/query/cursor"),
        ("query=a&order=asc", "/query/order"),
    ],
)
async def test_wrong_searches_are_refused(
    client: httpx.AsyncClient, query: str, pointer: str
) -> None:
    """Each is a 422 at its place."""
    answer = await client.get(f"/v1/search?{query}")
    assert_problem(answer, 422, "VALIDATION_ERROR", pointer)


async def test_a_cursor_belongs_to_its_search(client: httpx.AsyncClient) -> None:
    """With another query or agent it is refused. [lists.cursor]"""
    await planted(client, 1)
    await indexed(client)
    cursor = (await client.get("/v1/search?query=whale&limit=1")).json()["next_cursor"]
    for query in ("query=boat", "query=whale&agent_id=a"):
        answer = await client.get(f"/v1/search?{query}&cursor={cursor}")
        assert_problem(answer, 422, "VALIDATION_ERROR", "/query/cursor")


async def test_a_redaction_removes_the_words_of_its_message(client: httpx.AsyncClient) -> None:
    """The same words of other messages stay."""
    path = await new_conversation(client)
    await append(client, path, user("zebra lion", id="m"), user("zebra"))
    assert [seq for _, seq in await search(client, query="zebra")] == [2, 1]
    await client.post(f"{path}/messages/m/redact")
    for query, left in (("zebra", [2]), ("lion", [])):
        assert [seq for _, seq in await search(client, query=query)] == left


async def test_a_fork_is_indexed_as_its_source(client: httpx.AsyncClient) -> None:
    """It is found before the worker has read it."""
    (source,) = await planted(client, 1)
    await indexed(client)
    copy = (await client.post(f"/v1/conversations/{source}/fork", json={})).json()
    page = (await client.get("/v1/search?query=whale")).json()
    found = [(hit["conversation_id"], hit["seq"]) for hit in page["data"]]
    assert found == whales([source, copy["conversation_id"]])
