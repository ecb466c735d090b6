"""Contents and interruptions that tests of compaction, pins and overflow share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from tests.conftest import lock_waiters

LONG = "We talked about the harbour, the trains and the weather in Bergen. " * 12
UNKNOWN_ID = "00000000-0000-7000-8000-000000000000"


@asynccontextmanager
async def killed_while_waiting(url: str) -> AsyncIterator[None]:
    """Hold all heads; what the block starts is killed in the database once it waits for one."""
    holder = await asyncpg.connect(url)
    lock = holder.transaction()
    await lock.start()
    await holder.execute("UPDATE heads SET due_at = due_at")  # Citus locks no rows of all shards
    try:
        yield
        while not await lock_waiters(url, end=True):
            await asyncio.sleep(0)
    finally:
        await lock.rollback()
        await holder.close()
