"""Long logs and large databases, made by SQL from messages that were appended over HTTP.

Millions of appends would take hours. What is copied was stored by the service itself, so copies
have all columns of its schema, of whichever version. Triggers do not run for copies.

1. `extend` repeats a closed range of a log behind its end, with running sums, turns and head.
2. `copy_conversations` copies all rows of a conversation under new ids.
3. `settle` does what autovacuum would have done by then.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import asyncpg
import uuid_utils

COPIES_AT_ONCE = 200_000
"""About how many messages one statement copies."""
_NOT_COPIED = ("compaction_leases", "jobs", "idempotency_keys", "blob_uploads", "usage_reports")
"""Tables of work in progress, or with ids that are unique among all conversations."""
_COLUMNS = """
    SELECT c.relname, array_agg(quote_ident(a.attname) ORDER BY a.attnum)
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
    WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace
        AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
    GROUP BY c.relname
    HAVING 'conversation_id' = ANY (array_agg(a.attname))
"""
# Made ids sort before those of the service, and in the order of the log as those do.
_REPEATED: Mapping[str, str] = {
    "seq": "h.head_seq + (n * b.size) + m.seq - b.first + 1",
    "message_id": """'00000000-0000-7000-8000-'
        || lpad(to_hex(h.head_seq + (n * b.size) + m.seq - b.first + 1), 12, '0')""",
    "turn": "h.turns + (n * b.turns) + m.turn - b.first_turn + 1",
    "total_tokens": "h.tokens + (n * b.tokens) + m.total_tokens - b.tokens_before",
    "at": "h.newest_at",
    "late_at": "NULL",
    "created_at": "now()",
}
_RANGE = """
    SELECT min(seq) AS first, count(*) AS size, min(turn) AS first_turn,
        max(turn) - min(turn) + 1 AS turns, sum(tokens)::bigint AS tokens,
        min(total_tokens - tokens) AS tokens_before
    FROM messages WHERE conversation_id = $1 AND seq BETWEEN $2 AND $3
"""
_MOVE_HEAD = f"""
    UPDATE heads h SET head_seq = h.head_seq + $4 * b.size, turns = h.turns + $4 * b.turns,
        tokens = h.tokens + $4 * b.tokens
    FROM ({_RANGE}) b WHERE h.conversation_id = $1
    RETURNING h.head_seq
"""


@asynccontextmanager
async def copying(url: str) -> AsyncIterator[asyncpg.Connection]:
    """Connect for copies: without triggers, and without a flush for each commit."""
    settings = {"session_replication_role": "replica", "synchronous_commit": "off", "jit": "off"}
    connection = await asyncpg.connect(url, server_settings=settings, command_timeout=3600)
    try:
        yield connection
    finally:
        await connection.close()


async def extend(
    connection: Any, conversation_id: UUID, first: int, last: int, repetitions: int
) -> int:
    """Repeat the messages `first` to `last`, which are whole turns; return the new head."""
    columns = (await _tables(connection))["messages"]
    missing = {"seq", "message_id", "turn", "total_tokens"} - set(columns)
    if missing:
        raise RuntimeError(f"messages has no column {', '.join(sorted(missing))}")
    values = ", ".join(_REPEATED.get(name.strip('"'), f"m.{name}") for name in columns)
    async with connection.transaction():
        await connection.execute(
            f"""
            INSERT INTO messages ({", ".join(columns)})
            SELECT {values}
            FROM heads h, ({_RANGE}) b, generate_series(0, $4::bigint - 1) AS n, messages m
            WHERE h.conversation_id = $1 AND m.conversation_id = $1 AND m.seq BETWEEN $2 AND $3
            ORDER BY n, m.seq
            """,
            *(conversation_id, first, last, repetitions),
        )
        return int(await connection.fetchval(_MOVE_HEAD, conversation_id, first, last, repetitions))


async def copy_conversations(connection: Any, source: UUID, count: int) -> list[UUID]:
    """Copy a conversation so many times; return the ids of the copies."""
    tables = await _tables(connection)
    size = await connection.fetchval(
        "SELECT head_seq FROM heads WHERE conversation_id = $1", source
    )
    made = [UUID(str(uuid_utils.uuid7())) for _ in range(count)]
    step = max(1, COPIES_AT_ONCE // max(1, size))
    for start in range(0, count, step):
        async with connection.transaction():
            for name, columns in tables.items():
                if name in _NOT_COPIED:
                    continue
                new = {"conversation_id": "ids.id", "own_id": "NULL"}
                values = ", ".join(new.get(column, f"t.{column}") for column in columns)
                await connection.execute(
                    f"""
                    INSERT INTO {name} ({", ".join(columns)})
                    SELECT {values} FROM unnest($2::uuid[]) AS ids (id), {name} t
                    WHERE t.conversation_id = $1
                    """,
                    *(source, made[start : start + step]),
                )
    return made


async def settle(connection: Any) -> None:
    """Vacuum and analyse the database, as autovacuum does after so many rows."""
    await connection.execute("VACUUM (ANALYZE)")
    await connection.execute("CHECKPOINT")


async def _tables(connection: Any) -> dict[str, list[str]]:
    """Return the columns of each table that has rows of conversations."""
    return {row[0]: list(row[1]) for row in await connection.fetch(_COLUMNS)}
