"""`/v1/events` over real HTTP: the events of all conversations, filtered, resumed and ended.

[events.tenant-stream]
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import AsyncExitStack

import httpx
import pytest

from app.keys import create, revoke
from app.main import create_app
from app.settings import Settings
from tests.api.conversations.test_events import Listener, Told, client_of, listening
from tests.api.talk import append, assert_problem, new_conversation, talk
from tests.conftest import serving

SECONDS = 30


@pytest.fixture
def quick(settings: Settings) -> Settings:
    """Settings with short intervals for polls and comments, and few streams."""
    short = {"events_poll_seconds": 0.02, "events_keep_alive_seconds": 0.1}
    return settings.model_copy(update=short | {"events_max_streams_per_tenant": 2})


@pytest.fixture
def base(quick: Settings) -> Iterator[str]:
    """The address of the app with these settings."""
    with serving(create_app(quick)) as url:
        yield url


async def so_far(client: httpx.AsyncClient, path: str, after: str, **query: str) -> list[Told]:
    """Return the events up to now, without `ready`."""
    query |= {"follow": "false", "last_event_id": after}
    answer = await client.get(f"{path}/events", params=query)
    assert answer.status_code == 200, answer.text
    ready, *events = await Listener(answer).rest()
    assert ready.event == "ready"
    return events


async def lives(client: httpx.AsyncClient) -> list[str]:
    """Do to two conversations what makes events, delete a third, and return the paths."""
    made = await client.post("/v1/agents", json={"agent_id": "bot", "name": "Bot"})
    assert made.status_code == 201
    policy = {"budget": {"context_window": 8000}}
    paths = [
        await new_conversation(client, agent_id="bot", policy=policy),
        await new_conversation(client, policy=policy),
        await new_conversation(client),
    ]
    for path in paths:
        await append(client, path, *talk(65, "word " * 40))
    message = (await client.get(f"{paths[0]}/messages")).json()["data"][0]["id"]
    calls = [
        ("PUT", f"{paths[0]}/messages/{message}/pin"),
        ("POST", f"{paths[1]}/compact"),
        ("DELETE", f"{paths[0]}/messages/{message}/pin"),
        ("POST", f"{paths[0]}/clear"),
        ("POST", "/v1/agents/bot/clear"),
        ("POST", f"{paths[1]}/fork"),
        ("DELETE", paths[2]),
    ]
    for method, path in calls:
        answer = await client.request(method, path)
        assert answer.is_success, (path, answer.text)
    receipt = (await client.get(f"{paths[1]}/compactions")).json()["data"][0]["compaction_id"]
    undone = await client.post(f"{paths[1]}/compactions/{receipt}/undo")
    assert undone.status_code == 200, undone.text
    return paths


async def test_the_stream_has_the_events_of_each_conversation(base: str) -> None:
    """What a conversation's own stream has without its appends, with `created` and `deleted`."""
    async with client_of(base) as client:
        async with listening(client, "/v1") as listener:
            paths = await lives(client)
            # An event is sent once all earlier transactions of the server have ended, those of
            # other databases too.
            while (event := await listener.next()) is not None and event.event != "undone":
                pass
        told = await so_far(client, "/v1", "0.0.0")
        for path in paths[:2]:
            own = await so_far(client, path, "0.0")
            of_path = [each for each in told if each.data["conversation_id"] == path[18:]]
            assert of_path[0].event == "created"
            assert [(each.event, each.data | {"agent_id": None}) for each in of_path[1:]] == [
                (each.event, each.data | {"agent_id": None})
                for each in own
                if each.event != "appended"
            ]
        kinds = {each.event for each in told}
        assert kinds >= {"created", "due", "started", "compacted", "undone", "pinned", "unpinned"}
        assert kinds >= {"cleared", "deleted"} and "appended" not in kinds
        assert [each.event for each in told if each.data["conversation_id"] == paths[2][18:]] == [
            "deleted"
        ]
        assert all(re.fullmatch(r"\d+\.\d+\.\d+", each.id) for each in told)
        agents = {each.data["conversation_id"]: each.data["agent_id"] for each in told}
        assert (agents[paths[0][18:]], agents[paths[1][18:]]) == ("bot", None)
        # Resumed after any event, the stream has exactly the others.
        for place in (0, len(told) // 2, len(told) - 1):
            assert await so_far(client, "/v1", told[place].id) == told[place + 1 :]
        some = await so_far(client, "/v1", "0.0.0", agent_id="bot")
        assert some == [each for each in told if each.data["agent_id"] == "bot"]
        answer = await client.get(
            "/v1/events?types=created&types=deleted&follow=false&last_event_id=0.0.0"
        )
        names = re.findall(r"^event: (\w+)", answer.text, re.MULTILINE)
        assert names == ["ready", *(n for n in (e.event for e in told) if n in "created deleted")]


async def test_the_stream_follows(base: str) -> None:
    """Events arrive while it is open, with comments between them."""
    async with client_of(base) as client, listening(client, "/v1") as listener:
        path = await new_conversation(client)
        event = await listener.next()
        assert event is not None
        assert (event.event, event.data["conversation_id"]) == ("created", path[18:])
        assert event.data == {
            "type": "created",
            "conversation_id": path[18:],
            "agent_id": None,
            "created_at": event.data["created_at"],
        }
        while not (await listener.line()).startswith(": keep-alive"):
            pass
        assert (await client.delete(path)).status_code == 200
        event = await listener.next()
        assert event is not None and event.event == "deleted"


async def test_streams_of_both_kinds_are_limited_together(base: str) -> None:
    """The tenant's maximum counts them all."""
    async with client_of(base) as client, AsyncExitStack() as stack:
        path = await new_conversation(client)
        await stack.enter_async_context(listening(client, path))
        await stack.enter_async_context(listening(client, "/v1"))
        for refused in ("/v1/events", f"{path}/events"):
            problem = assert_problem(await client.get(refused), 429, "RATE_LIMITED")
            assert problem["kind"] == "streams"


async def test_a_tenant_sees_its_own_events_until_its_key_is_revoked(quick: Settings) -> None:
    """Another tenant's conversations are not in the stream; a read-only key may open it."""
    mine = await create("acme", "", None, quick, read_only=True)
    writer, other = [await create(tenant, "", None, quick) for tenant in ("acme", "other")]
    app = create_app(quick)
    app.state.services.still_admits.__self__._cache_seconds = 0.05
    with serving(app) as base:
        async with client_of(base) as client, asyncio.timeout(SECONDS):
            headers = [{"Authorization": f"Bearer {key}"} for key in (writer, other)]
            client.headers["authorization"] = f"Bearer {mine}"
            async with listening(client, "/v1") as listener:
                theirs, mine_too = [
                    (await client.post("/v1/conversations", json={}, headers=own)).json()
                    for own in reversed(headers)
                ]
                event = await listener.next()
                assert event is not None
                assert event.data["conversation_id"] == mine_too["conversation_id"] != theirs
                await revoke(mine.split("_")[1], quick)
                assert await listener.next() is None


@pytest.mark.parametrize(
    ("query", "header", "pointer"),
    [
        ("last_event_id=1.2", None, "/query/last_event_id"),
        ("last_event_id=9999999999999999999.1.1", None, "/query/last_event_id"),
        ("", "9999999999999999999.1.1", "/header/Last-Event-ID"),
        ("", "x", "/header/Last-Event-ID"),
        ("types=appended", None, "/query/types/0"),
        ("types=" + "&types=".join(["due"] * 20), None, "/query/types"),
        ("agent_id=a%20b", None, "/query/agent_id"),
        ("conversation_id=x", None, "/query/conversation_id"),
    ],
)
async def test_malformed_requests(
    client: httpx.AsyncClient, query: str, header: str | None, pointer: str
) -> None:
    """The error names the parameter."""
    headers = {"Last-Event-ID": header} if header else {}
    answer = await client.get(f"/v1/events?{query}", headers=headers)
    assert_problem(answer, 422, "VALIDATION_ERROR", pointer)


async def test_an_id_of_another_database(client: httpx.AsyncClient) -> None:
    """422 names the id to go on from."""
    problem = assert_problem(
        await client.get("/v1/events?last_event_id=1.1.1"), 422, "VALIDATION_ERROR"
    )
    again = await client.get(f"/v1/events?follow=false&last_event_id={problem['newest_id']}")
    assert again.status_code == 200
