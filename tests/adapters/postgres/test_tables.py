"""The schema that migrations make equals the described one."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import asyncpg
import pytest

from app.conversations.statuses import Activity
from app.database.connections import Statement
from app.database.sql import read
from app.database.tables import APPEND, SCHEMA, TABLES

pytestmark = pytest.mark.one_server

NEWEST = datetime(2026, 1, 1, tzinfo=UTC)

COLUMNS = """
    SELECT a.attrelid::regclass::text, a.attname, format_type(a.atttypid, a.atttypmod),
        a.attnotnull, a.attstorage, pg_get_expr(d.adbin, d.adrelid), c.reloptions
    FROM pg_attribute a
    JOIN pg_class c ON c.oid = a.attrelid AND c.relkind = 'r'
    LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
    WHERE c.relnamespace = current_schema()::regnamespace AND a.attnum > 0
        AND c.relname <> 'alembic_version'
    ORDER BY c.relname, a.attnum
"""
INDEXES = """
    SELECT replace(indexdef, current_schema() || '.', '') FROM pg_indexes
    WHERE schemaname = current_schema() AND tablename <> 'alembic_version' ORDER BY indexname
"""
FUNCTIONS = """
    SELECT proname, prosrc, provolatile, proparallel FROM pg_proc
    WHERE pronamespace = current_schema()::regnamespace
        AND NOT EXISTS (SELECT FROM pg_depend WHERE objid = pg_proc.oid AND deptype = 'e')
    ORDER BY proname
"""


async def test_migrations_create_the_described_tables(database_url: str) -> None:
    """A migrated database differs in nothing from the text of the schema [storage.json-text]."""
    connection = await asyncpg.connect(database_url)
    try:
        queries = (COLUMNS, INDEXES, FUNCTIONS)
        migrated = [await connection.fetch(query) for query in queries]
        await connection.execute("CREATE SCHEMA described; SET search_path = described, public")
        await connection.execute("SET check_function_bodies = on")
        await connection.execute(SCHEMA + APPEND)
        await connection.execute("SET search_path = described")
        described = [await connection.fetch(query) for query in queries]
    finally:
        await connection.execute("DROP SCHEMA IF EXISTS described CASCADE")
        await connection.close()
    assert migrated == described and all(migrated)


async def test_the_columns_are_read_from_the_text(database_url: str) -> None:
    """The service knows each column with its type, and whether it may be null."""
    connection = await asyncpg.connect(database_url)
    try:
        rows = await connection.fetch(COLUMNS)
    finally:
        await connection.close()
    known = [
        (
            table,
            name,
            kind.replace("timestamptz", "timestamp with time zone"),
            name not in found.nullable,
        )
        for table, found in sorted(TABLES.items())
        for name, kind in found.columns.items()
    ]
    assert [tuple(row)[:4] for row in rows] == known


def test_a_parameter_has_the_type_of_the_column_of_its_name() -> None:
    """Unless the statement casts it, or columns of that name have several types."""
    statement = Statement("SELECT :seq, CAST(:seq AS text), :kept, :tokens, :other")
    assert statement.names == ("seq", "kept", "tokens", "other")
    typed = "SELECT CAST($1 AS bigint), CAST($1 AS text), CAST($2 AS bigint[]), $3, $4"
    assert statement.sql == typed


def test_rows_are_read_by_the_names_of_fields() -> None:
    """Ids become text and arrays tuples; values that are given are not read."""
    row = {"conversation_id": UUID(int=1), "metadata": "{}", "newest_at": NEWEST, "own_id": None}
    found = read(Activity, row, waits_for=("a",))
    assert found == Activity(str(UUID(int=1)), "{}", NEWEST, ("a",))
    with pytest.raises(KeyError):
        read(Activity, row)
