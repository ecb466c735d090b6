"""The statements of an archive: of one conversation, and exact whatever a session is set to.

[operation.archive, storage.conversation-key]
"""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from app.adapters.postgres.common.conversation_tables import ARCHIVED_TABLES, CONVERSATION_TABLES
from app.adapters.postgres.conversations import archives
from app.adapters.postgres.conversations.archives import CANDIDATES, COLUMNS
from app.adapters.postgres.tables import archived_heads, heads, metadata
from tests.adapters.postgres.test_sharding import plan_of, planner, shards_of
from tests.plans import plan_of as text_plan_of

__all__ = ["planner"]

pytestmark = pytest.mark.one_server

SETTINGS = (
    "SET timezone = 'Asia/Kolkata'",
    "SET datestyle = 'SQL, DMY'",
    "SET extra_float_digits = -5",
    "SET bytea_output = 'escape'",
    "SET intervalstyle = 'iso_8601'",
)
ROWS = (
    "INSERT INTO compactions (conversation_id, compaction_id, trigger, strategy, span_start,"
    " span_end, summary, summary_tokens, before_tokens, after_tokens, before_msg_count,"
    " after_msg_count, cost_usd, duration_ms) VALUES ($1, gen_random_uuid(), 't', 's', 1, 2, '',"
    " 1, 1, 1, 1, 1, 0.30000000000000004, 1)",
    "INSERT INTO blob_chunks (conversation_id, content_id, number, start, newlines, size, data)"
    " VALUES ($1, gen_random_uuid(), 0, 0, 0, 3, '\\x00ff5c')",
    "INSERT INTO message_words VALUES ($1, 1, 'a:1 b:2,3')",
)
KEY = "0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b"


async def made(connection: Any) -> dict[str, dict[str, str]]:
    """Return the columns of the archived tables, by the statement that archives read them with."""
    columns: dict[str, dict[str, str]] = {table: {} for table in (*ARCHIVED_TABLES, "heads")}
    for row in await connection.fetch(COLUMNS.sql, list(columns)):
        columns[row["table_name"]][row["column_name"]] = row["type_name"]
    return columns


async def test_statements_made_from_the_catalog_touch_one_shard(planner: Any) -> None:
    """Checksums and the move of the state name one conversation, as all other statements do."""
    columns = await made(planner)
    statements = [archives._sum(table, columns[table]) for table in ARCHIVED_TABLES]
    statements += [
        archives._moved_state(*names, columns["heads"])
        for names in (("heads", "archived_heads"), ("archived_heads", "heads"))
    ]
    for statement in statements:
        assert shards_of(await plan_of(planner, statement)) == {"$1"}, statement.sql


async def test_a_checksum_depends_on_values_only(database_url: str) -> None:
    """Settings of a session, which differ from server to server, do not change a checksum."""
    connection = await asyncpg.connect(database_url)
    for row in ROWS:
        await connection.execute(row, KEY)
    columns = await made(connection)

    async def sums() -> list[tuple[int, str]]:
        return [
            (row["rows"], row["checksum"])
            for table in ARCHIVED_TABLES
            for row in await connection.fetch(archives._sum(table, columns[table]).sql, KEY)
        ]

    before = await sums()
    assert sum(rows for rows, _ in before) == len(ROWS)
    for setting in SETTINGS:
        await connection.execute(setting)
    assert await sums() == before
    await connection.execute("UPDATE compactions SET cost_usd = 0.3")
    assert await sums() != before
    await connection.close()


def test_an_archived_state_has_the_columns_of_a_state() -> None:
    """A migration that changes `heads` changes `archived_heads` as well."""
    kinds = [
        [(item.name, str(item.type)) for item in table.columns] for table in (heads, archived_heads)
    ]
    assert kinds[0] == kinds[1]


def test_archived_tables_are_ordered_by_their_keys() -> None:
    """Each is a table of conversations, and read by its primary key."""
    assert set(ARCHIVED_TABLES) < set(CONVERSATION_TABLES)
    for table, order in ARCHIVED_TABLES.items():
        key = [column.name for column in metadata.tables[table].primary_key.columns]
        assert key == ["conversation_id", *order.split(", ")]


async def test_candidates_are_found_by_index(database_url: str) -> None:
    """A batch reads the states of its conversations, not whole tables."""
    plan = await text_plan_of(database_url, CANDIDATES)
    assert "Seq Scan" not in plan
