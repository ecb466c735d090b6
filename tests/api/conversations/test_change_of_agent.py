"""A conversation that is given to another agent. [agents.change]"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
import pytest_asyncio

from app.cli.api_keys import create
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


async def agent(client: httpx.AsyncClient, name: str, **body: Any) -> None:
    """Create an agent whose only section is its name."""
    sections = [{"name": "base", "content": f"You are {name}."}]
    body = {"agent_id": name, "name": name, "sections": sections, **body}
    answer = await client.post("/v1/agents", json=body)
    assert answer.status_code == 201, answer.text


async def conversation(client: httpx.AsyncClient, **body: Any) -> str:
    """Create a conversation and return its path."""
    answer = await client.post("/v1/conversations", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.headers["Location"])


async def give(client: httpx.AsyncClient, path: str, agent_id: str | None) -> dict[str, Any]:
    """Change the agent of a conversation."""
    answer = await client.patch(path, json={"agent_id": agent_id})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def build(client: httpx.AsyncClient, path: str) -> tuple[list[str], str | None]:
    """Return the texts of a payload, and why it does not extend the one before."""
    answer = await client.post(f"{path}/context", json={})
    assert answer.status_code == 200, answer.text
    built = answer.json()
    return [item["content"] for item in built["payload"]["messages"]], built["cache_break_reason"]


async def test_settings_window_and_clear_follow(client: httpx.AsyncClient, clock: Clock) -> None:
    """All that an agent decides is decided by the new one, and nothing by the old one."""
    await agent(client, "old", model="gpt-4o-mini", policy={"sandwich": {"preserve_top": 7}})
    await agent(client, "new", rolling_window_seconds=3600)
    await agent(client, "twin", rolling_window_seconds=3600)
    path = await conversation(client, agent_id="old", metadata={"kept": True})
    await append(client, path, user("early"), assistant("yes"))
    assert await build(client, path) == (["You are old.", "early", "yes"], None)

    found = await give(client, path, "new")
    assert (found["agent_id"], found["rolling_window_seconds"]) == ("new", 3600)
    assert (found["effective_model"], found["metadata"]) == ("gpt-4o", {"kept": True})
    assert found["policy"]["sandwich"]["preserve_top"] != 7
    assert await build(client, path) == (["You are new.", "early", "yes"], "model_changed")
    listed = await client.get("/v1/conversations", params={"agent_id": "new"})
    assert [item["agent_id"] for item in listed.json()["data"]] == ["new"]

    assert (await give(client, path, "twin"))["agent_id"] == "twin"
    assert await build(client, path) == (["You are twin.", "early", "yes"], "sections_changed")
    clock.pass_seconds(3601)
    await append(client, path, user("late"))
    assert await build(client, path) == (["You are twin.", "late"], "window_moved")
    assert (await client.post("/v1/agents/old/clear")).json()["conversations"] == 0
    assert (await client.post("/v1/agents/twin/clear")).json()["conversations"] == 1
    await append(client, path, user("last"))

    found = await give(client, path, None)
    assert (found["agent_id"], found["rolling_window_seconds"]) == (None, None)
    assert await build(client, path) == (["last"], "sections_changed")
    for name in ("old", "new", "twin"):
        assert (await client.delete(f"/v1/agents/{name}")).status_code == 200
    assert (await client.get(path)).json()["head_seq"] == 4


async def test_equal_settings_keep_the_epoch(client: httpx.AsyncClient) -> None:
    """Payloads extend those before when the new agent gives the same settings."""
    for name in ("a", "b"):
        await agent(client, name, sections=[])
    path = await conversation(client, agent_id="a")
    await append(client, path, user("hello"))
    assert (await build(client, path))[1] is None
    await give(client, path, "b")
    assert await build(client, path) == (["hello"], None)


LONG = "and more words than a summary of the same has, " * 40


async def test_the_clear_of_the_new_agent_counts(client: httpx.AsyncClient, clock: Clock) -> None:
    """Nothing from before the clear is shown, neither verbatim nor in a summary, nor in a fork."""
    clock.pass_seconds((datetime.now(UTC) - clock.utc()).total_seconds())
    await agent(client, "old")
    await agent(client, "new", rolling_window_seconds=None)
    policy = {"sandwich": {"preserve_top": 0, "preserve_bottom": 2}}
    path = await conversation(client, agent_id="old", policy=policy)
    before = f"before {LONG}"
    await append(client, path, user(f"SECRET {LONG}"), *[assistant("ok"), user(before)] * 4)
    clock.pass_seconds(60)
    await client.post("/v1/agents/new/clear")
    clock.pass_seconds(60)
    await append(client, path, assistant("after"), user("now"))
    compacted = await client.post(f"{path}/compact")
    assert compacted.json()["compacted"], compacted.text

    await give(client, path, "new")
    forked = await client.post(f"{path}/fork")
    for place in (path, forked.headers["Location"]):
        texts, _ = await build(client, place)
        assert texts.count("now") == 1
        assert not any("SECRET" in text or "before" in text for text in texts), texts
    assert (await client.get(path)).json()["last_cleared_at"] is not None


async def test_only_agents_of_the_tenant(settings: Settings) -> None:
    """An agent that is unknown, or another tenant's, is refused; as is another's conversation."""
    headers = [
        {"Authorization": f"Bearer {await create(name, '', None, settings)}"} for name in "ab"
    ]
    async with started(create_app(settings)) as client:
        await client.post("/v1/agents", json={"agent_id": "x", "name": "X"}, headers=headers[0])
        made = await client.post("/v1/conversations", json={}, headers=headers[1])
        path = made.headers["Location"]
        for wrong in ("x", "nobody"):
            answer = await client.patch(path, json={"agent_id": wrong}, headers=headers[1])
            assert_problem(answer, 422, "VALIDATION_ERROR")
            assert answer.json()["errors"][0]["pointer"] == "/agent_id"
        answer = await client.patch(path, json={"agent_id": "x"}, headers=headers[0])
        assert_problem(answer, 404, "NOT_FOUND")


async def test_concurrent_changes_and_deletions(client: httpx.AsyncClient) -> None:
    """Moves in both directions beside deletions end without a deadlock, and lose nothing.

    A conversation is gone only with the agent that it was given to last.
    """
    for name in ("a", "b", "c"):
        await agent(client, name)
    paths = [await conversation(client, agent_id="ab"[number % 2]) for number in range(6)]
    for path in paths:
        await append(client, path, user("hello"))

    async def move(path: str, names: str) -> None:
        for name in names:
            answer = await client.patch(path, json={"agent_id": name})
            assert answer.status_code in (200, 404, 422), answer.text

    async def clear() -> None:
        for name in ("b", "c", "b"):
            assert (await client.post(f"/v1/agents/{name}/clear")).status_code == 200

    async def delete() -> None:
        assert (await client.delete("/v1/agents/a")).status_code == 200

    moves = [move(path, "bc" if number % 2 == 0 else "cb") for number, path in enumerate(paths)]
    await asyncio.gather(*moves, clear(), delete(), *(append_to(client, path) for path in paths))
    listed = (await client.get("/v1/conversations")).json()["data"]
    assert {item["agent_id"] for item in listed} <= {"b", "c"}
    for number, path in enumerate(paths):
        answer = await client.get(path)
        if number % 2 or answer.status_code == 200:  # those of "a" may be deleted before a move
            assert answer.json()["agent_id"] == "cb"[number % 2]


async def append_to(client: httpx.AsyncClient, path: str) -> None:
    """Append beside the other requests."""
    answer = await client.post(f"{path}/messages", json={"messages": [user("more")]})
    assert answer.status_code in (201, 404), answer.text
