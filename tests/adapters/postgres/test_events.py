"""Events in Postgres: numbered without gaps, gone with their conversation.

[events.order, log.delete-everything]
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import pytest
import pytest_asyncio

from app.conversations.events.events import Cursor
from app.conversations.settings import StoredSettings
from app.database.connections import Store
from app.repositories import Database
from tests.conftest import execute

TENANT = "default"
CID = "0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b"
OTHER = "0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5c"
BEGINNING = Cursor(0, 0)


@pytest_asyncio.fixture(autouse=True)
async def conversations(database: Database) -> None:
    """Two conversations without messages."""
    async with database.session() as session:
        for conversation_id in (CID, OTHER):
            await session.conversations.add(
                TENANT, conversation_id, None, "tokenizer", StoredSettings(), "{}"
            )


async def add(database: Database, conversation_id: str = CID, data: str = "{}") -> None:
    """Add an event in a statement of its own."""
    async with database.session() as session:
        await session.events.add(conversation_id, "due", data)


async def numbers(database: Database, conversation_id: str = CID) -> list[int]:
    """Return the numbers of a conversation's events."""
    async with database.session() as session:
        page = await session.events.page(TENANT, conversation_id, BEGINNING, 1000)
    assert page is not None
    assert page.newest.event_seq == len(page.stored)
    return [row.seq for row in page.stored]


async def test_events_added_at_once_have_no_gaps(database: Database) -> None:
    """Writers at the same time never share or skip a number, and times rise with them."""
    await asyncio.gather(*(add(database, data=f'{{"n":{n}}}') for n in range(40)))
    assert await numbers(database) == list(range(1, 41))
    assert await numbers(database, OTHER) == []
    async with database.session() as session:
        page = await session.events.page(TENANT, CID, BEGINNING, 1000)
    assert page is not None
    times = [row.created_at for row in page.stored]
    assert times == sorted(times)
    assert {row.data for row in page.stored} == {f'{{"n":{n}}}' for n in range(40)}


async def test_an_event_is_part_of_its_transaction(database: Database) -> None:
    """What is rolled back leaves neither an event nor a gap, and others wait for it."""
    await add(database)
    waiting: asyncio.Task[None] | None = None
    with pytest.raises(ZeroDivisionError):
        async with database.transaction() as session:
            await session.events.add(CID, "started", "{}")
            waiting = asyncio.create_task(add(database))
            raise ZeroDivisionError
    assert waiting is not None
    await waiting
    async with database.transaction() as session:
        await session.events.add(CID, "started", "{}")
        await session.events.add(CID, "compacted", "{}")
        assert await numbers(database) == [1, 2]
    assert await numbers(database) == [1, 2, 3, 4]


async def test_a_deleted_conversation_stores_nothing(database: Database) -> None:
    """An event that waits for a deletion to end finds no conversation, and is dropped."""
    async with database.transaction() as session:
        await session.log.lock(TENANT, CID, None)
        late = asyncio.create_task(add(database))
        await session.conversations.remove(CID)
    await late
    async with database.session() as session:
        assert await session.events.page(TENANT, CID, BEGINNING, 10) is None
        await session.conversations.add(TENANT, CID, None, "tokenizer", StoredSettings(), "{}")
    assert await numbers(database) == []


async def test_deleting_a_conversation_takes_its_events(
    database: Database, database_url: str
) -> None:
    """The events of a deleted conversation are counted and gone, those of others stay."""
    for conversation_id in (CID, CID, OTHER):
        await add(database, conversation_id)
    async with database.transaction() as session:
        removed = await session.conversations.remove(CID)
    assert removed["events"] == 2
    left = await execute(database_url, "SELECT conversation_id FROM events")
    assert [row["conversation_id"] for row in left] == [UUID(OTHER)]


async def test_a_page_is_bounded_and_knows_its_tenant(database: Database) -> None:
    """A page starts after its cursor and ends at its limit; another tenant sees none."""
    for _ in range(5):
        await add(database)
    async with database.session() as session:
        page = await session.events.page(TENANT, CID, Cursor(0, 1), 3)
        last = await session.events.page(TENANT, CID, Cursor(0, 4), 3)
        assert await session.events.page("another", CID, BEGINNING, 3) is None
        assert await session.events.find_newest("another", CID) is None
        assert await session.events.find_newest(TENANT, CID) == Cursor(0, 5)
        heads = await session.events.newest_of([CID, OTHER, CID.replace("5b", "5d")])
    assert page is not None and last is not None
    assert [row.seq for row in page.stored] == [2, 3, 4]
    assert not page.is_last and last.is_last
    assert page.newest == Cursor(0, 5)
    assert heads == {CID: Cursor(0, 5), OTHER: BEGINNING}


@pytest_asyncio.fixture
async def second_store(database_url: str) -> AsyncIterator[Store]:
    """A store of another process on this test's database."""
    opened = Store(database_url, min_size=0, max_size=4)
    await opened.open()
    yield opened
    await opened.close()


async def test_two_processes_share_the_numbers(database: Database, second_store: Store) -> None:
    """Events of several processes are one sequence."""
    second = Database(second_store)
    await asyncio.gather(*(add(one) for one in (database, second) * 10))
    assert await numbers(second) == list(range(1, 21))
