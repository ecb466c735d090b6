"""Transcripts over HTTP: how each message is shown, full-text search, pages.

[search.words]
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import pytest_asyncio

from app.main import create_app
from app.settings import Settings
from tests.api.talk import append, assert_problem, calling, new_conversation, result, talk, user
from tests.conftest import started
from tests.services.fakes import Clock

QUIET = {"agent_tools": "none"}
SANDWICH = {**QUIET, "sandwich": {"preserve_top": 1, "preserve_bottom": 2}}


@pytest.fixture
def clock() -> Clock:
    """The clock that active windows use."""
    return Clock()


@pytest_asyncio.fixture
async def client(settings: Settings, clock: Clock) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an app with this clock."""
    async with started(create_app(settings, now=clock.utc)) as opened:
        yield opened


async def read(client: httpx.AsyncClient, path: str, **query: Any) -> list[dict[str, Any]]:
    """Return the messages of one page."""
    answer = await client.get(f"{path}/messages", params=query)
    assert answer.status_code == 200, answer.text
    data: list[dict[str, Any]] = answer.json()["data"]
    return data


async def read_all(client: httpx.AsyncClient, path: str, **query: Any) -> list[dict[str, Any]]:
    """Return the messages of all pages."""
    found: list[dict[str, Any]] = []
    while True:
        page = (await client.get(f"{path}/messages", params=query)).json()
        found += page["data"]
        if page["next_cursor"] is None:
            return found
        query["cursor"] = page["next_cursor"]


async def visibilities(
    client: httpx.AsyncClient, path: str, **query: Any
) -> list[tuple[str, str | None]]:
    """Return the state of every message, and the compaction that caused it."""
    found = await read_all(client, path, **query)
    shown = [item["visibility"] for item in found]
    return [(mark["state"], mark["compaction_id"]) for mark in shown]


async def compact(client: httpx.AsyncClient, path: str, **ask: Any) -> str:
    """Compact, and return the receipt's id."""
    answer = await client.post(f"{path}/compact", json=ask)
    assert answer.status_code == 200 and answer.json()["compacted"], answer.text
    compaction_id: str = answer.json()["compaction_id"]
    return compaction_id


# --- how the context shows each message -----------------------------------------------------


async def test_cleared_tool_results(client: httpx.AsyncClient) -> None:
    """A result with a placeholder is `cleared`, and the transcript has its text."""
    output = {"context_budget_tokens": 300, "clear_at_least": 1}
    path = await new_conversation(client, policy={**QUIET, "tool_output": output})
    for number in range(3):
        text = f"{number} " + "word " * 200
        await append(client, path, user("look"), calling("c"), result("c", text))
    assert {state for state, _ in await visibilities(client, path)} == {"verbatim"}
    built = await client.post(f"{path}/context")
    assert "tool output trimmed" in built.text
    found = await read(client, path)
    assert [item["seq"] for item in found if item["visibility"]["state"] == "cleared"] == [3, 6]
    assert found[2]["content"].startswith("0 word")
    (receipt,) = (await client.get(f"{path}/compactions")).json()["data"]
    assert found[2]["visibility"]["compaction_id"] == receipt["compaction_id"]


# --- full-text search -----------------------------------------------------------------------


async def test_search_finds_compacted_messages(client: httpx.AsyncClient) -> None:
    """A match names the compaction that hid it [search.finds-compacted]."""
    path = await new_conversation(client, policy=SANDWICH)
    planted = talk(12)
    planted[4]["content"] += " The Bergen train leaves at nine."
    await append(client, path, *planted)
    made = await compact(client, path)
    await append(client, path, user("And the train to Voss?"))
    found = await read(client, path, query="train")
    assert [item["seq"] for item in found] == [5, 13]
    assert found[0]["content"] == planted[4]["content"]
    assert found[0]["visibility"] == {
        "state": "summarised",
        "compaction_id": made,
        "restored_at": None,
    }
    assert found[1]["visibility"]["state"] == "verbatim"
    for query, seqs in (("bergen TRAIN", [5]), ("leav", [5])):
        assert [item["seq"] for item in await read(client, path, query=query)] == seqs, query


# --- messages and pages ---------------------------------------------------------------------


async def test_limits_of_pages(client: httpx.AsyncClient) -> None:
    """A page has 1 to 1000 messages, 50 by default [api.lists]."""
    path = await new_conversation(client)
    for wrong in ("limit=0", "limit=1001", "limit=x", "order=up", "content=all"):
        answer = await client.get(f"{path}/messages?{wrong}")
        pointer = f"/query/{wrong.partition('=')[0]}"
        assert_problem(answer, 422, "VALIDATION_ERROR", pointer)
    await append(client, path, *talk(51, "x"))
    assert [len(await read(client, path)), len(await read(client, path, limit=1000))] == [50, 51]


# --- one message ----------------------------------------------------------------------------


async def test_one_message_is_that_of_the_transcript(client: httpx.AsyncClient) -> None:
    """Each message is read by its id as the transcript shows it, with its result as asked for.

    [transcript.one-message]
    """
    path = await new_conversation(client, policy=SANDWICH)
    text = "line\n" * 5000
    strange = "a/b%c?d/pin"
    await append(client, path, *talk(12), user("look", id=strange), calling("c"), result("c", text))
    await compact(client, path)
    *_, item = await read_all(client, path, content="full")
    assert item["content"] == text
    for content in ("view", "full"):
        for item in await read_all(client, path, content=content):
            where = f"{path}/messages/{quote(item['id'], safe='')}"
            answer = await client.get(where, params={"content": content})
            assert answer.status_code == 200 and answer.json() == item
    assert_problem(await client.get(f"{path}/messages/unknown"), 404, "NOT_FOUND")
    assert_problem(await client.get(f"{path}/messages/{'x' * 257}"), 404, "NOT_FOUND")
    other = await new_conversation(client)
    assert_problem(await client.get(f"{other}/messages/{item['id']}"), 404, "NOT_FOUND")
    asked = await client.get(f"{path}/messages/{item['id']}", params={"content": "all"})
    assert_problem(asked, 422, "VALIDATION_ERROR", "/query/content")
