"""Contents and interruptions that tests of compaction, pins and overflow share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from tests.conftest import execute

LONG = "We talked about the harbour, the trains and the weather in Bergen. " * 12
UNKNOWN_ID = "00000000-0000-7000-8000-000000000000"


@asynccontextmanager
async def killed_while_waiting(url: str) -> AsyncIterator[None]:
    """Hold all heads; what the block starts is killed in the database once it waits for one."""
    holder = await asyncpg.connect(url)
    lock = holder.transaction()
    await lock.start()
    await holder.execute("SELECT FROM heads FOR UPDATE")
    try:
        yield
        waits = (
            "SELECT pid FROM pg_stat_activity"
            " WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        while not (rows := await execute(url, waits)):
            await asyncio.sleep(0)
        await execute(url, "SELECT pg_terminate_backend($1)", rows[0]["pid"])
    finally:
        await lock.rollback()
        await holder.close()
