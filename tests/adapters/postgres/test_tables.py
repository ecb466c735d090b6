"""The schema that migrations make equals the described one."""

from __future__ import annotations

import asyncpg
import pytest

from app.database.tables import APPEND, SCHEMA

pytestmark = pytest.mark.one_server


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
