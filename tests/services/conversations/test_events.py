"""Following conversations over a real database: resumed exactly, healed, bounded.

[events.resume]
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from app.common.concurrency import Slots
from app.common.errors import NotFound, ServiceUnavailable
from app.conversations.events import Cursor, Event, EventService
from app.database.connections import Store
from app.database.embedded import DATABASE
from app.repositories import Database
from tests.conftest import Server, execute
from tests.services.fakes import TENANT, Harness, WatchedDatabase, user

BEGINNING = Cursor(0, 0)
NOW = datetime(2026, 1, 5, tzinfo=UTC)
SECONDS = 120
"""Until a test gives up that waits for an event."""


def events_of(
    database: Any, most_streams: int = 10, page_rows: int = 500, most_per_tenant: int = 10
) -> EventService:
    """Return the event service of another process, with a short poll interval."""
    slots = Slots("event_streams", most_streams, most_per_tenant)
    return EventService(database, lambda: NOW, 0.01, slots, page_rows)


@pytest.fixture
def events(harness: Harness) -> EventService:
    """The event service of this process."""
    return events_of(harness.database)


async def add_event(harness: Harness, cid: str, number: int = 0) -> None:
    """Store an event."""
    async with harness.database.session() as session:
        await session.events.add(cid, "due", n=number)


@dataclass
class Reader:
    """A client that remembers the last id, and can leave and come back."""

    service: EventService
    cid: str
    cursor: Cursor | None = BEGINNING
    told: list[Event] = field(default_factory=list)

    async def read(
        self, most: int = 10**6, *, follow: bool = False, until: Cursor | None = None
    ) -> None:
        """Open a stream, read events after `ready`, at most this many or up to a cursor."""
        async with asyncio.timeout(SECONDS):
            stream = await self.service.open(TENANT, self.cid, self.cursor, follow=follow)
            async with aclosing(stream.events()) as events:
                ready = await anext(events)
                assert ready.type == "ready"
                self.cursor = ready.cursor
                while most and self.cursor != until:
                    try:
                        event = await anext(events)
                    except StopAsyncIteration:
                        return
                    self.told.append(event)
                    self.cursor = event.cursor
                    most -= 1

    @property
    def seqs(self) -> list[int]:
        """The received seqs, in order."""
        return seqs_of(self.told)

    @property
    def numbers(self) -> list[int]:
        """The received event seqs, in order."""
        return [event.data["n"] for event in self.told if event.type == "due"]


def seqs_of(told: Sequence[Event]) -> list[int]:
    """Return the seqs of the `appended` events."""
    return [
        seq
        for event in told
        if event.type == "appended"
        for seq in range(event.data["first_seq"], event.data["last_seq"] + 1)
    ]


async def test_a_stream_follows_writers(harness: Harness) -> None:
    """Beside many writers, each event is received once, by a stream that stays and by one that is
    resumed after every few events.
    """
    cid = await harness.conversation()
    writers, each = 8, 6
    end = Cursor(writers * each, writers * each)

    async def write(writer: int) -> None:
        for number in range(each):
            await harness.append(cid, user(f"{writer} {number}"))
            await add_event(harness, cid, writer * each + number)

    staying, leaving = (Reader(events_of(harness.database, page_rows=3), cid) for _ in range(2))

    async def come_and_go() -> None:
        while leaving.cursor != end:
            await leaving.read(5, follow=True, until=end)

    async with asyncio.TaskGroup() as group:
        group.create_task(staying.read(follow=True, until=end))
        group.create_task(come_and_go())
        for writer in range(writers):
            group.create_task(write(writer))
    for reader in (staying, leaving):
        assert reader.seqs == list(range(1, end.seq + 1))
        assert sorted(reader.numbers) == list(range(end.event_seq))
        for writer in range(writers):
            own = [number for number in reader.numbers if number // each == writer]
            assert own == sorted(own), "a writer's events are in its order"


async def test_a_deleted_conversation_ends_its_streams(
    harness: Harness, events: EventService
) -> None:
    """`deleted` is the last event; a new stream is not found [log.delete-everything]."""
    cid = await harness.conversation()
    await harness.append(cid, user("a"))
    stream = await events.open(TENANT, cid)
    told = []
    async with asyncio.timeout(SECONDS), aclosing(stream.events()) as found:
        async for event in found:
            told.append(event.type)
            if event.type == "ready":
                await harness.conversations.remove(TENANT, cid)
                # A new one with its id is another conversation.
                await harness.conversation(conversation_id=cid)
    assert told == ["ready", "deleted"]
    await harness.conversations.remove(TENANT, cid)
    with pytest.raises(NotFound):
        await events.open(TENANT, cid)


async def test_streams_are_counted(harness: Harness) -> None:
    """Beyond the limit a stream is refused until another has ended. [events.limits]"""
    cid = await harness.conversation()
    service = events_of(harness.database, most_streams=1)
    first = await service.open(TENANT, cid)
    async with aclosing(first.events()) as told:
        await anext(told)
        with pytest.raises(ServiceUnavailable) as error:
            await service.open(TENANT, cid)
        assert error.value.facts["retry_after"] > 0
    await Reader(service, cid).read()


@pytest_asyncio.fixture
async def narrow(database_url: str) -> AsyncIterator[Store]:
    """A store with a single connection."""
    opened = Store(database_url, max_size=1)
    await opened.open()
    yield opened
    await opened.close()


async def test_streams_hold_no_connection(narrow: Store) -> None:
    """Waiting streams and slow readers leave a pool of one connection to others.

    [events.idle-cost]
    """
    harness = Harness(WatchedDatabase(Database(narrow, "gpt-4o")))
    cid = await harness.conversation()
    await add_event(harness, cid)
    await harness.append(cid, user("a"))
    service = events_of(harness.database)
    slow = (await service.open(TENANT, cid, BEGINNING)).events()
    idle = Reader(service, cid, None)
    waiting = asyncio.create_task(idle.read(1, follow=True))
    async with asyncio.timeout(SECONDS), aclosing(slow):
        assert [(await anext(slow)).type for _ in range(2)] == ["ready", "due"]
        while idle.cursor is None:
            await harness.stored(cid)
        await harness.append(cid, user("b"))
        await waiting
        # The page was read before the second append; what came since is on the next.
        assert [(await anext(slow)).cursor for _ in range(2)] == [Cursor(1, 1), Cursor(2, 1)]
    assert idle.seqs == [2]


@asynccontextmanager
async def renamed(server: Server, name: str) -> AsyncIterator[None]:
    """Rename a database, so that connections to it fail."""
    away, all_databases = f"{name}_away", server.url_of(DATABASE)
    sessions = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1"
    await execute(all_databases, f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
    await execute(all_databases, sessions, name)
    await execute(all_databases, f'ALTER DATABASE "{name}" RENAME TO "{away}"')
    try:
        yield
    finally:
        await execute(all_databases, f'ALTER DATABASE "{away}" ALLOW_CONNECTIONS true')
        await execute(all_databases, f'ALTER DATABASE "{away}" RENAME TO "{name}"')


@pytest.mark.one_server  # it renames the database
async def test_streams_resume_after_the_database_was_unavailable(
    server: Server, database_url: str, harness: Harness, events: EventService
) -> None:
    """Streams wait meanwhile, and continue at their cursors [events.resume]."""
    cid = await harness.conversation()
    await harness.append(cid, user("a"))
    name = urlsplit(database_url).path[1:]
    follower, finisher = Reader(events, cid), Reader(events, cid)
    following = asyncio.create_task(follower.read(3, follow=True))
    async with asyncio.timeout(SECONDS):
        while not follower.told:
            await asyncio.sleep(0)
        stream = await events.open(TENANT, cid, BEGINNING, follow=False)
        told = stream.events()
        assert (await anext(told)).type == "ready"
        async with renamed(server, name):
            reading = asyncio.create_task(anext(told))
            with pytest.raises(ServiceUnavailable):
                await events.open(TENANT, cid)
        assert seqs_of([await reading]) == [1]
        assert await anext(told, None) is None
        await add_event(harness, cid, 1)
        await harness.append(cid, user("b"))
        await following
        await finisher.read()
    assert (follower.seqs, follower.numbers) == ([1, 2], [1])
    assert (finisher.seqs, finisher.numbers) == ([1, 2], [1])
