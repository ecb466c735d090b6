"""The schema that migrations make equals the described tables."""

from __future__ import annotations

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from app.database.conversation_tables import CONVERSATION_TABLES
from app.database.tables import metadata

pytestmark = pytest.mark.one_server


async def test_migrations_create_the_described_tables(database_url: str) -> None:
    """A migrated database differs in nothing from the Core tables (architecture, storage)."""
    url = database_url.replace("postgresql://", "postgresql+asyncpg://", 1)
    engine = create_async_engine(url, poolclass=NullPool)

    def differences(connection: Connection) -> list[object]:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return list(compare_metadata(context, metadata))

    async with engine.connect() as connection:
        found = await connection.run_sync(differences)
    await engine.dispose()
    assert [change for change in found if "alembic_version" not in str(change)] == []


def test_deleting_a_conversation_covers_all_of_its_tables() -> None:
    """Deleting a conversation reaches each table whose rows belong to one."""
    belonging = {
        table.name for table in metadata.tables.values() if "conversation_id" in table.columns
    }
    assert set(CONVERSATION_TABLES) == belonging


def test_keys_of_conversation_tables_start_with_its_id() -> None:
    """Per-conversation tables can be distributed by `conversation_id`."""
    for name in CONVERSATION_TABLES:
        first = next(iter(metadata.tables[name].primary_key.columns))
        assert first.name == "conversation_id"
