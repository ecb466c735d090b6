"""`/v1/conversations/{id}/events` over real HTTP: streamed, resumed, bounded, left in time.

[events.resume, events.order]
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.composition import utc_now
from app.database.connections import Store
from app.main import create_app
from app.repositories import Database
from app.settings import Settings
from app.tenancy.api_keys import KeyService
from tests.api.talk import append, assert_problem, new_conversation, talk, user
from tests.commands import serving as serving_process
from tests.commands import stop
from tests.conftest import execute, serving
from tests.patience import PATIENCE_SECONDS


@dataclass(frozen=True)
class Told:
    """One event as it came over the wire, its data parsed."""

    id: str
    event: str
    data: dict[str, Any]


class Listener:
    """An open stream, read as a browser does."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self._lines = answer.aiter_lines()

    async def line(self) -> str:
        """Return the next line."""
        return await anext(self._lines)

    async def next(self) -> Told | None:
        """Return the next event, None at the end of the stream."""
        fields: dict[str, str] = {}
        async for line in self._lines:
            if line and not line.startswith(":"):
                name, _, value = line.partition(": ")
                fields[name] = value
            elif not line and fields:
                return Told(fields["id"], fields["event"], json.loads(fields["data"]))
        return None

    async def rest(self) -> list[Told]:
        """Return every event until the stream ends."""
        found = []
        while (event := await self.next()) is not None:
            found.append(event)
        return found


@asynccontextmanager
async def listening(
    client: httpx.AsyncClient, path: str, last_event_id: str | None = None, **query: str
) -> AsyncIterator[Listener]:
    """Open a stream and wait for its `ready`."""
    headers = {"Last-Event-ID": last_event_id} if last_event_id else {}
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        client.stream("GET", f"{path}/events", params=query, headers=headers) as answer,
    ):
        assert answer.status_code == 200, await answer.aread()
        listener = Listener(answer)
        ready = await listener.next()
        assert ready is not None and ready.event == "ready"
        assert last_event_id in (None, ready.id)
        yield listener


@pytest.fixture
def settings(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings of an app that polls often."""
    monkeypatch.setattr("app.composition.EVENT_POLL_SECONDS", 0.02)
    return Settings(database_url=database_url, default_model="gpt-4o")


@pytest.fixture
def base(settings: Settings) -> Iterator[str]:
    """The address of the app with these settings."""
    app = create_app(settings)
    app.state.keep_alive_seconds = 0.1
    with serving(app) as url:
        yield url


@asynccontextmanager
async def client_of(base: str) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of the address."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=base, timeout=PATIENCE_SECONDS, limits=limits) as client:
        yield client


async def add_event(database_url: str, path: str, kind: str = "due") -> None:
    """Store an event, as the services do."""
    await execute(
        database_url,
        """
        WITH moved AS (
            UPDATE states SET event_seq = event_seq + 1
            WHERE conversation_id = CAST($1 AS uuid) RETURNING conversation_id, event_seq
        )
        INSERT INTO events (conversation_id, event_seq, type, data)
        SELECT conversation_id, event_seq, $2, '{"why":"\\n\\u2028 \\"so\\""}' FROM moved
        """,
        path.rpartition("/")[2],
        kind,
    )


async def test_events_are_streamed(base: str, database_url: str) -> None:
    """`ready` comes at once, then each event with its id, type and data."""
    async with client_of(base) as client:
        path = await new_conversation(client)
        await append(client, path, user("before"))
        async with listening(client, path) as listener:
            headers = listener.answer.headers
            assert headers["content-type"].startswith("text/event-stream")
            assert headers["cache-control"] == "no-store"
            await append(client, path, *talk(3))
            appended = await listener.next()
            await add_event(database_url, path)
            due = await listener.next()
    assert appended is not None and due is not None
    assert (appended.id, appended.event) == ("4.0", "appended")
    own = {"type", "conversation_id", "created_at"}
    assert {key: value for key, value in appended.data.items() if key not in own} == {
        "first_seq": 2,
        "last_seq": 4,
        "message_count": 3,
        "head_seq": 4,
    }
    assert appended.data["type"] == "appended"
    assert path.endswith(appended.data["conversation_id"])
    assert (due.id, due.event, due.data["why"]) == ("4.1", "due", '\n\u2028 "so"')


async def test_a_stream_is_resumed_after_a_disconnect(base: str, database_url: str) -> None:
    """With the last id, by header or URL, no event is lost or sent twice."""
    async with client_of(base) as client:
        path = await new_conversation(client)
        async with listening(client, path) as listener:
            await append(client, path, user("a"))
            last = await listener.next()
        assert last is not None
        await add_event(database_url, path, "started")
        await append(client, path, user("b"))
        await add_event(database_url, path, "compacted")
        async with listening(client, path, last.id) as listener:
            resumed = [await listener.next() for _ in range(3)]
        async with listening(client, path, last_event_id="1.1", follow="false") as listener:
            by_header = await listener.rest()
        answer = await client.get(
            f"{path}/events",
            params={"last_event_id": "0.0", "follow": "false"},
            headers={"Last-Event-ID": "2.1"},
        )
        whole = await client.get(
            f"{path}/events", params={"last_event_id": "0.0", "follow": "false"}
        )
    assert [event and (event.id, event.event) for event in resumed] == [
        ("1.1", "started"),
        ("2.1", "appended"),
        ("2.2", "compacted"),
    ]
    assert [event.id for event in by_header] == ["2.1", "2.2"]
    assert [line for line in answer.text.splitlines() if line.startswith("id")] == [
        "id: 2.1",
        "id: 2.2",
    ]
    ids = [line for line in whole.text.splitlines() if line.startswith("id")]
    assert ids == ["id: 0.0", "id: 1.0", "id: 1.1", "id: 2.1", "id: 2.2"]


@pytest.mark.parametrize("last_event_id", ["1", "a.b", "01.0", "1.0.0", "9" * 17 + ".0"])
async def test_malformed_ids(client: httpx.AsyncClient, last_event_id: str) -> None:
    """A malformed id is a 422 that names the parameter [events.resume]."""
    path = await new_conversation(client)
    query = await client.get(f"{path}/events", params={"last_event_id": last_event_id})
    assert_problem(query, 422, "VALIDATION_ERROR", "/query/last_event_id")
    header = await client.get(f"{path}/events", headers={"Last-Event-ID": last_event_id})
    assert_problem(header, 422, "VALIDATION_ERROR", "/header/Last-Event-ID")


@pytest.mark.parametrize("last_event_id", ["2.0", "0.1"])
async def test_ids_beyond_the_newest_event(client: httpx.AsyncClient, last_event_id: str) -> None:
    """An id beyond the newest event is a 422 with the newest id [events.resume]."""
    path = await new_conversation(client)
    await append(client, path, user("a"))
    answer = await client.get(f"{path}/events", headers={"Last-Event-ID": last_event_id})
    assert assert_problem(answer, 422, "VALIDATION_ERROR")["newest_id"] == "1.0"


async def test_an_idle_stream_is_kept_alive(base: str) -> None:
    """While nothing happens, comments keep proxies from closing the connection."""
    async with client_of(base) as client:
        path = await new_conversation(client)
        async with listening(client, path) as listener:
            lines = [await listener.line() for _ in range(4)]
    assert lines == [": keep-alive", ""] * 2


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_shutdown_ends_streams(workers: str, database_url: str, tmp_path: Path) -> None:
    """SIGTERM ends open streams regularly, and the process in time [operation.shutdown]."""
    arguments = ("--database-url", database_url, "--workers", workers)
    with serving_process(tmp_path, *arguments) as (process, port):
        base = f"http://127.0.0.1:{port}"
        async with client_of(base) as client, AsyncExitStack() as stack:
            path = await new_conversation(client)
            listeners = [
                await stack.enter_async_context(listening(client, path)) for _ in range(10)
            ]
            leaving = asyncio.create_task(asyncio.to_thread(stop, process))
            for listener in listeners:
                assert await listener.rest() == []
            await leaving


async def test_a_revoked_key_ends_its_streams(settings: Settings, store: Store) -> None:
    """They end without events as well; the streams of other keys continue."""
    keys = KeyService(Database(store), utc_now, time.monotonic)
    lasting = await keys.create("acme", "", None)
    app = create_app(settings)
    app.state.keep_alive_seconds = 0.1
    with serving(app) as base:
        async with keyed(base, lasting) as other:
            path = await new_conversation(other)
            expires_at = datetime.now(UTC) + timedelta(seconds=3)
            short = await keys.create("acme", "", expires_at)
            async with listening(other, path) as lives, keyed(base, short) as client:
                async with listening(client, path) as ending:
                    assert await ending.rest() == []
                assert_problem(await client.get(path), 401, "UNAUTHENTICATED")
                await append(other, path, user("said later"))
                told = await lives.next()
                assert told is not None and told.event == "appended"


@asynccontextmanager
async def keyed(base: str, key: str) -> AsyncIterator[httpx.AsyncClient]:
    """Open a client with an API key."""
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=base, headers=headers) as client:
        yield client
