"""A peer in this process: the session of the OpenAI Agents SDK over the same PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, takewhile
from uuid import UUID

import asyncpg
import orjson
from agents.extensions.memory import SQLAlchemySession
from sqlalchemy.ext.asyncio import create_async_engine

from benchmarks.floors import DATABASE, FloorA, connect

BYTES = """
    SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class
    WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND relname ~ $1
"""


class AgentsSession(FloorA):
    """One session of the OpenAI Agents SDK; of the items it reads those that fit the tokens."""

    def __init__(self, url: str) -> None:
        engine = create_async_engine(
            "postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(url, database=DATABASE)
        )
        self._session = SQLAlchemySession("", engine=engine, create_tables=True)
        self._tokens: list[int] = []

    async def start(self, conversation_id: UUID) -> None:
        """Name the session."""
        self._session.session_id = str(conversation_id)

    async def preload(
        self, conversation_id: UUID, tokens: Sequence[int], bodies: Sequence[str]
    ) -> None:
        """Store many items."""
        self._tokens += tokens
        await self._session.add_items([orjson.loads(body) for body in bodies])

    async def append(self, conversation_id: UUID, tokens: int, body: str) -> None:
        """Store one item durably."""
        await self.preload(conversation_id, [tokens], [body])

    async def window(self, conversation_id: UUID, tokens: int) -> list[str]:
        """Return the newest items that fit, oldest first, each as JSON."""
        sums = accumulate(reversed(self._tokens))
        fitting = sum(1 for _ in takewhile(lambda total: total <= tokens, sums))
        items = await self._session.get_items(limit=fitting)
        return [orjson.dumps(item).decode() for item in items]


async def bytes_on_disk(url: str) -> list[int]:
    """Return the bytes on disk of the service, of the floors and of the Agents SDK."""
    sizes = []
    for connection, name in (
        (await asyncpg.connect(url), ""),
        (await connect(url), "^(heads|messages)$"),
        (await connect(url), "^agent"),
    ):
        sizes.append(await connection.fetchval(BYTES, name))
        await connection.close()
    return sizes
