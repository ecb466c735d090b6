"""The floors: the cost of the same reads and writes without the service.

Floor A is asyncpg on one connection. Floor B (`floor_server`) is the same two statements behind
bare FastAPI. Both write a head row and a message with its token count and running sum, and read
the newest messages that fit a number of tokens, oldest first. Floor B also does both in one
request, with the window of each conversation cached in its process. Neither counts, checks, pairs,
budgets or renders.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import asyncpg

DATABASE = "floor"
CONNECTION = {"jit": "off", "plan_cache_mode": "force_generic_plan"}
"""The settings the service gives its own connections."""

SCHEMA = """
    CREATE TABLE heads (
        conversation_id uuid PRIMARY KEY,
        head_seq bigint NOT NULL DEFAULT 0,
        tokens bigint NOT NULL DEFAULT 0
    ) WITH (fillfactor = 50);
    CREATE TABLE messages (
        conversation_id uuid NOT NULL,
        seq bigint NOT NULL,
        tokens integer NOT NULL,
        total_tokens bigint NOT NULL,
        body text NOT NULL,
        PRIMARY KEY (conversation_id, seq)
    );
"""

APPEND = """
    WITH moved AS (
        UPDATE heads SET head_seq = head_seq + 1, tokens = tokens + $2
        WHERE conversation_id = $1 RETURNING head_seq, tokens
    )
    INSERT INTO messages SELECT $1, head_seq, $2, tokens, $3 FROM moved RETURNING seq
"""

APPEND_BATCH = """
    WITH moved AS (
        UPDATE heads SET head_seq = head_seq + cardinality($2::integer[]), tokens = tokens + $4
        WHERE conversation_id = $1 RETURNING head_seq, tokens
    ), stored AS (
        INSERT INTO messages
        SELECT $1, moved.head_seq - cardinality($2::integer[]) + item.position, item.tokens,
            moved.tokens - $4 + sum(item.tokens) OVER (ORDER BY item.position), item.body
        FROM moved, unnest($2::integer[], $3::text[])
            WITH ORDINALITY AS item (tokens, body, position)
    )
    SELECT head_seq FROM moved
"""

# Bounded on both sides, or the planner takes the range for a third of the table and sorts it.
WINDOW = """
    SELECT body FROM messages
    WHERE conversation_id = $1
        AND seq <= (SELECT head_seq FROM heads WHERE conversation_id = $1)
        AND seq > coalesce((
            SELECT before.seq FROM messages before, heads head
            WHERE before.conversation_id = $1 AND head.conversation_id = $1
                AND before.total_tokens <= head.tokens - $2
            ORDER BY before.seq DESC LIMIT 1
        ), 0)
    ORDER BY seq
"""
WINDOW_ROWS = WINDOW.replace("SELECT body", "SELECT seq, tokens, body", 1)


async def create(url: str) -> None:
    """Make the floors' database beside the service's own."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
        await connection.execute(f"CREATE DATABASE {DATABASE}")
    finally:
        await connection.close()
    floor = await connect(url)
    try:
        await floor.execute(SCHEMA)
    finally:
        await floor.close()


async def connect(url: str) -> Any:
    """Return a connection to the floors' database on the server of `url`."""
    return await asyncpg.connect(url, database=DATABASE, server_settings=CONNECTION)


async def settle(url: str) -> None:
    """Vacuum and analyse both databases, as autovacuum does after so many rows."""
    for connection in (await asyncpg.connect(url), await connect(url)):
        await connection.execute("VACUUM (ANALYZE)")
        await connection.execute("CHECKPOINT")
        await connection.close()


class FloorA:
    """Raw asyncpg: one statement appends, one reads the window."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def start(self, conversation_id: UUID) -> None:
        """Make the head row of a conversation."""
        await self._connection.execute("INSERT INTO heads VALUES ($1)", conversation_id)

    async def preload(
        self, conversation_id: UUID, tokens: Sequence[int], bodies: Sequence[str]
    ) -> None:
        """Put messages into the log by COPY."""
        async with self._connection.transaction():
            head = await self._connection.fetchrow(
                "SELECT head_seq, tokens FROM heads WHERE conversation_id = $1", conversation_id
            )
            seq, total, rows = head["head_seq"], head["tokens"], []
            for cost, body in zip(tokens, bodies, strict=True):
                seq, total = seq + 1, total + cost
                rows.append((conversation_id, seq, cost, total, body))
            await self._connection.copy_records_to_table("messages", records=rows)
            await self._connection.execute(
                "UPDATE heads SET head_seq = $2, tokens = $3 WHERE conversation_id = $1",
                conversation_id,
                seq,
                total,
            )

    async def append(self, conversation_id: UUID, tokens: int, body: str) -> None:
        """Store one message durably."""
        await self._connection.fetchval(APPEND, conversation_id, tokens, body)

    async def window(self, conversation_id: UUID, tokens: int) -> list[str]:
        """Return the newest messages that fit, oldest first, each as JSON."""
        return [row[0] for row in await self._connection.fetch(WINDOW, conversation_id, tokens)]
