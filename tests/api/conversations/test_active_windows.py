"""Over HTTP: rolling windows, clears, assembly, restarts.

Those about saving, restoring and listing snapshots are in `test_snapshots.py`, those about
transcripts in `test_transcripts.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from app.main import create_app
from app.settings import Settings
from tests.api.talk import append, assert_problem, assistant, user
from tests.conftest import started
from tests.services.fakes import Clock

DAY = 86_400


@pytest.fixture
def clock() -> Clock:
    """The clock that active windows use."""
    return Clock()


@pytest_asyncio.fixture
async def client(settings: Settings, clock: Clock) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an app whose active windows use the controlled clock."""
    async with started(create_app(settings, now=clock.utc)) as opened:
        yield opened


async def agent(client: httpx.AsyncClient, **body: Any) -> str:
    """Create an agent and return its path."""
    answer = await client.post("/v1/agents", json={"name": "Agent", **body})
    assert answer.status_code == 201, answer.text
    return str(answer.headers["Location"])


async def thread(client: httpx.AsyncClient, agent_path: str) -> str:
    """Create a conversation of the agent and return its path."""
    agent_id = agent_path.rsplit("/", 1)[1]
    answer = await client.post("/v1/conversations", json={"agent_id": agent_id})
    assert answer.status_code == 201, answer.text
    return str(answer.headers["Location"])


async def build(client: httpx.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    """Build a payload."""
    answer = await client.post(f"{path}/context", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def texts(client: httpx.AsyncClient, path: str, **body: Any) -> list[str]:
    """Return the contents of a payload's messages."""
    built = await build(client, path, **body)
    return [str(message["content"]) for message in built["payload"]["messages"]]


# --- rolling window -------------------------------------------------------------------------


async def test_rolling_window_returns_messages_within_window(
    client: httpx.AsyncClient, clock: Clock
) -> None:
    """Messages younger than the window are shown [window.cut, window.older-stays]."""
    path = await thread(client, await agent(client))
    for number in range(3):
        await append(client, path, user(f"{number}"))
        clock.pass_seconds(DAY / 4)
    assert await texts(client, path) == ["0", "1", "2"]


async def test_rolling_window_default_is_one_day(client: httpx.AsyncClient) -> None:
    """It is the default of agents; a conversation without an agent has no limit.

    [agents.settings, window.no-limit]
    """
    path = await agent(client)
    shown = (await client.get(path)).json()
    assert shown["rolling_window_seconds"] == DAY
    assert shown["last_cleared_at"] == shown["created_at"]
    own = await client.get(await thread(client, path))
    assert own.json()["rolling_window_seconds"] == DAY
    alone = await client.post("/v1/conversations", json={})
    assert alone.json()["rolling_window_seconds"] is None


async def test_rolling_window_of_a_conversation(client: httpx.AsyncClient, clock: Clock) -> None:
    """Its own value overrides the agent's, also as no limit, until it inherits again.

    A fork has the value of its source. [window.inherited]
    """
    agent_path = await agent(client, rolling_window_seconds=600)
    body = {"agent_id": agent_path.rsplit("/", 1)[1], "rolling_window_seconds": 60}
    made = await client.post("/v1/conversations", json=body)
    path = made.headers["Location"]

    async def window(place: str) -> int | None:
        seconds: int | None = (await client.get(place)).json()["rolling_window_seconds"]
        return seconds

    assert (await window(path), await window(agent_path)) == (60, 600)
    await append(client, path, user("first"))
    clock.pass_seconds(120)
    await append(client, path, user("second"))
    assert await texts(client, path) == ["second"]
    clock.pass_seconds(600)
    for value, shown, found in (
        (None, None, ["first", "second"]),
        (650, 650, ["second"]),
        ("inherit", 600, []),
    ):
        answer = await client.patch(path, json={"rolling_window_seconds": value})
        assert answer.status_code == 200, answer.text
        assert await window(path) == shown
        if found:
            assert await texts(client, path) == found
            fork = (await client.post(f"{path}/fork")).headers["Location"]
            assert await window(fork) == shown
            assert await texts(client, fork) == found
    refused: tuple[Any, ...] = (0, -1, 1.5, "60", "none", 10**10, True, [])
    for wrong in refused:
        answer = await client.patch(path, json={"rolling_window_seconds": wrong})
        assert_problem(answer, 422, "VALIDATION_ERROR")
    assert (await client.patch(path, json={"metadata": {}})).json()["rolling_window_seconds"] == 600


@pytest.mark.parametrize("stamp", ["yesterday", "", "2026-13-01T00:00:00Z", 5, {}])
async def test_an_invalid_timestamp_is_refused(client: httpx.AsyncClient, stamp: Any) -> None:
    """A timestamp that is not ISO 8601 is refused, and nothing is stored [window.message-time]."""
    path = await thread(client, await agent(client))
    body = {"messages": [user("x"), user("y", timestamp=stamp)]}
    answer = await client.post(f"{path}/messages", json=body)
    assert_problem(answer, 422, "VALIDATION_ERROR", "/messages/1/timestamp")
    assert (await client.get(path)).json()["head_seq"] == 0


# --- clear ----------------------------------------------------------------------------------


async def test_messages_after_clear_are_included(client: httpx.AsyncClient) -> None:
    """Messages after a clear are shown, in a new epoch with the reason `cleared` [window.clear]."""
    path = await agent(client)
    cid = await thread(client, path)
    await append(client, cid, user("before"), assistant("yes"))
    first = await build(client, cid)
    await client.post(f"{path}/clear")
    await append(client, cid, user("after"))
    second = await build(client, cid)
    assert [message["content"] for message in second["payload"]["messages"]] == ["after"]
    assert (second["cache_break_reason"], second["epoch"]) == ("cleared", first["epoch"] + 1)


async def test_multiple_clears_use_most_recent(client: httpx.AsyncClient, clock: Clock) -> None:
    """The latest clear counts, of the agent or of the conversation [window.clear-exact]."""
    path = await agent(client)
    cid = await thread(client, path)
    for number, cleared in enumerate((path, cid, path, cid)):
        await append(client, cid, user(f"{number}"))
        clock.pass_seconds(1)
        answer = await client.post(f"{cleared}/clear")
        assert answer.json()["last_cleared_at"] == clock.utc().isoformat()
    await append(client, cid, user("last"))
    assert await texts(client, cid) == ["last"]


async def test_clearing_unknown_or_empty(client: httpx.AsyncClient) -> None:
    """An unknown agent or conversation is 404; an empty one can be cleared [window.clear]."""
    assert_problem(await client.post("/v1/agents/nobody/clear"), 404, "NOT_FOUND")
    lost = "/v1/conversations/0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b/clear"
    assert_problem(await client.post(lost), 404, "NOT_FOUND")
    assert_problem(await client.post("/v1/conversations/7/clear"), 404, "NOT_FOUND")
    empty = (await client.post("/v1/conversations", json={})).headers["Location"]
    assert (await client.post(f"{empty}/clear")).json()["conversation_count"] == 1


# --- assembly -------------------------------------------------------------------------------


# --- restart --------------------------------------------------------------------------------


# --- Commands --------------------------------------------------------------------------------
