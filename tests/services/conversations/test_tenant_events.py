"""The events of a tenant over a real database: in one order, once, whoever commits first.

[events.tenant-resume]
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.adapters.postgres.common.connections import Store
from app.adapters.postgres.conversations.tenant_events import NEWEST, PAGE_OF_TENANT
from app.adapters.postgres.database import PostgresDatabase
from app.domain.common.errors import ValidationError
from app.domain.conversations.events import EventType
from app.domain.conversations.tenant_events import (
    ALL_EVENTS,
    BEGINNING,
    TENANT_EVENT_TYPES,
    EventFilter,
    TenantCursor,
    tenant_cursor_from,
)
from app.services.common.tenant_shares import TenantShares
from app.services.conversations.events import EventService
from app.services.conversations.tenant_events import TenantEvent
from tests.conftest import execute
from tests.plans import plan_of
from tests.services.fakes import TENANT, Harness, WatchedDatabase

SECONDS = 30
WRITERS = 3


@pytest.fixture
def harness(database: PostgresDatabase) -> Harness:
    """One process's services on this test's database."""
    return Harness(WatchedDatabase(database))


def events_of(database: Any, page_rows: int = 500) -> EventService:
    """Return the event service of another process."""
    shares = TenantShares("event_streams", "event streams", 10, 10)
    now = datetime(2026, 1, 5, tzinfo=UTC)
    return EventService(
        database,
        lambda: now,
        poll_seconds=0.01,
        shares=shares,
        page_rows=page_rows,
    )


@dataclass
class Reader:
    """A client that remembers the last id, and comes back to another process each time."""

    database: Any
    page_rows: int = 500
    cursor: TenantCursor | None = None
    wanted: EventFilter = ALL_EVENTS
    told: list[TenantEvent] = field(default_factory=list)

    async def read(self, most: int = 10**6, *, follow: bool = False) -> None:
        """Read at most so many events, and leave."""
        service = events_of(self.database, self.page_rows)
        async with asyncio.timeout(SECONDS):
            stream = await service.open_of_tenant(TENANT, self.cursor, self.wanted, follow=follow)
            async with aclosing(stream.events()) as events:
                ready = await anext(events)
                assert (ready.type, ready.conversation_id) == ("ready", None)
                assert self.cursor in (None, BEGINNING, ready.cursor)
                self.cursor = ready.cursor
                while most:
                    try:
                        event = await anext(events)
                    except StopAsyncIteration:
                        return
                    self.told.append(event)
                    self.cursor = tenant_cursor_from(str(event.cursor))
                    most -= 1

    @property
    def numbers(self) -> list[int]:
        """The numbers of the `due` events."""
        return [event.data["n"] for event in self.told if event.type == "due"]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "commit", "roll_back", "read", "read"]),
        st.integers(0, WRITERS - 1),
    ),
    min_size=12,
    max_size=30,
)


@given(steps=STEPS, page_rows=st.integers(1, 4), most=st.integers(1, 3))
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
async def test_each_event_is_sent_once_in_any_order_of_commits(
    harness: Harness, steps: Sequence[tuple[str, int]], page_rows: int, most: int
) -> None:
    """Transactions that overlap, commit out of order or roll back; a reader that comes and goes.

    What was committed is sent once, and what was rolled back never.
    """
    cids = [await harness.conversation() for _ in range(WRITERS)]
    reader = Reader(harness.database, page_rows)
    await reader.read()
    open_ones: dict[int, tuple[Any, Any]] = {}
    pending: dict[int, list[int]] = {}
    committed: list[int] = []
    number = 0

    async def end(writer: int, *, commits: bool) -> None:
        transaction, _ = open_ones.pop(writer)
        if commits:
            await transaction.__aexit__(None, None, None)
            committed.extend(pending.pop(writer))
        else:
            pending.pop(writer)
            error = LookupError("rolled back")
            with suppress(LookupError):
                await transaction.__aexit__(LookupError, error, None)

    for step, writer in steps:
        match step:
            case "write":
                if writer not in open_ones:
                    transaction = harness.database.transaction()
                    open_ones[writer] = transaction, await transaction.__aenter__()
                number += 1
                pending.setdefault(writer, []).append(number)
                session = open_ones[writer][1]
                await session.events.add(cids[writer], "due", f'{{"n":{number}}}')
            case "read":
                await reader.read(most)
                assert set(reader.numbers) <= set(committed)
            case _:
                if writer in open_ones:
                    await end(writer, commits=step == "commit")
    for writer in list(open_ones):
        await end(writer, commits=True)
    # Other tests use the same server: their open transactions hold the events back.
    async with asyncio.timeout(SECONDS):
        await reader.read()
        while len(reader.numbers) < len(committed):
            await reader.read()
    assert sorted(reader.numbers) == sorted(committed)
    assert len(set(reader.numbers)) == len(reader.numbers)
    cursors = [event.cursor for event in reader.told]
    assert cursors == sorted(cursors), "ids go up"
    for cid in cids:
        events = [event for event in reader.told if event.conversation_id == cid]
        own = [event.data["n"] for event in events if event.type == "due"]
        assert own == sorted(own), "a conversation's events are in its order"


async def test_a_late_commit_is_not_overtaken(harness: Harness, store: Store) -> None:
    """An event waits for older transactions, and then both come: with a naive order one is lost."""
    first, second = [await harness.conversation() for _ in range(2)]
    reader = Reader(harness.database)
    await reader.read()
    async with harness.database.transaction() as slow:
        await slow.events.add(first, "due", '{"n":1}')
        async with harness.database.session() as session:
            await session.events.add(second, "due", '{"n":2}')
        await reader.read()
        assert reader.numbers == []
    await reader.read()
    assert reader.numbers == [1, 2]


async def test_a_stream_follows_writers(harness: Harness) -> None:
    """Beside writers, a reader that leaves after every few events receives each once."""
    cids = [await harness.conversation() for _ in range(WRITERS)]
    reader = Reader(harness.database, page_rows=3)
    await reader.read()

    async def write(writer: int) -> None:
        for number in range(8):
            async with harness.database.transaction() as session:
                data = f'{{"n":{writer * 8 + number}}}'
                await session.events.add(cids[writer], "due", data)

    writing = asyncio.gather(*(write(writer) for writer in range(WRITERS)))
    while len(reader.told) < WRITERS * 8:
        await reader.read(min(5, WRITERS * 8 - len(reader.told)), follow=True)
    await writing
    assert sorted(reader.numbers) == list(range(WRITERS * 8))
    await reader.read()
    assert len(reader.told) == WRITERS * 8


async def test_a_filter_leaves_out_and_advances(harness: Harness, database_url: str) -> None:
    """Of agent and types alone, of this tenant alone; a page full of others ends no stream."""
    agent_id = await harness.agent()
    mine, other = await harness.conversation(agent_id=agent_id), await harness.conversation()
    for number in range(4):
        async with harness.database.session() as session:
            for kind in ("due", "gc"):
                await session.events.add(mine, kind, f'{{"n":{number}}}')
                await session.events.add(other, kind, f'{{"n":{number + 10}}}')
    await execute(
        database_url,
        "INSERT INTO events (conversation_id, event_seq, type, tenant_id, server_id,"
        " transaction_id, event_id) SELECT gen_random_uuid(), 1, 'due', 'another', server_id,"
        " transaction_id, event_id FROM events",
    )
    for wanted, count in (
        (ALL_EVENTS, 18),
        (EventFilter(agent_id=agent_id), 9),
        (EventFilter(types=("due",)), 8),
        (EventFilter(agent_id, ("due", "created")), 5),
        (EventFilter("unknown"), 0),
    ):
        reader = Reader(harness.database, 3, BEGINNING, wanted)
        await reader.read()
        assert len(reader.told) == count, wanted
        assert {event.conversation_id for event in reader.told} <= {mine, other}
        if wanted.agent_id:
            assert {event.agent_id for event in reader.told} <= {agent_id}


async def test_ids_of_another_server_are_refused(harness: Harness) -> None:
    """After a restore elsewhere transactions count anew: an id of before is no position here."""
    await harness.conversation()
    service = events_of(harness.database)
    stream = await service.open_of_tenant(TENANT)
    now = stream.cursor
    for wrong in (
        replace(now, server_id=now.server_id + 1),
        replace(now, transaction_id=now.transaction_id + 10**9),
        replace(BEGINNING, number=1),
    ):
        with pytest.raises(ValidationError) as refusal:
            await service.open_of_tenant(TENANT, wrong)
        assert refusal.value.facts["newest_id"] == str(now)


async def test_a_stream_ends_when_another_server_answers(
    harness: Harness, database_url: str
) -> None:
    """The events of a restored database are not taken for new ones."""
    await harness.conversation()
    service = events_of(harness.database)
    stream = await service.open_of_tenant(TENANT, BEGINNING)
    async with asyncio.timeout(SECONDS), aclosing(stream.events()) as events:
        await anext(events)
        stream.cursor = replace(stream.cursor, server_id=stream.cursor.server_id + 1)
        assert [event async for event in events] == []


@pytest.mark.one_server  # it reads the plans of one server
@pytest.mark.parametrize("statement", [PAGE_OF_TENANT, NEWEST], ids=["page", "newest"])
async def test_reads_go_by_position(database_url: str, statement: Any) -> None:
    """Cost model: a poll and a page read by the tenant's index, whatever there is.

    [events.tenant-cost]
    """
    plan = await plan_of(database_url, statement)
    scans = [part for part in plan.split("->") if " on events" in part]
    (scan,) = scans
    assert "using events_by_tenant" in scan, plan
    condition = next(line for line in scan.splitlines() if "Index Cond" in line)
    assert "tenant_id = " in condition and "transaction_id < " in condition
    assert "Filter" not in scan


def test_every_type_but_those_of_a_log_is_sent() -> None:
    """The types of a tenant are those of a conversation, without appends, and `created`."""
    assert set(EventType) - set(TENANT_EVENT_TYPES) == {"appended", "ready"}


@given(st.from_regex(r"[0-9.]{1,60}", fullmatch=True))
def test_ids_are_read_back(text: str) -> None:
    """A position is parsed to what its text says, and other texts are none."""
    cursor = tenant_cursor_from(text)
    assert cursor is None or str(cursor) == text
