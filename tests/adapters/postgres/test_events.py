"""Events in Postgres: numbered without gaps, gone with their conversation.

[events.order, log.delete-everything]
"""

from __future__ import annotations

import asyncio

import pytest
import pytest_asyncio

from app.conversations.conversation import StoredSettings
from app.conversations.events.events import Cursor
from app.repositories import Database

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
