"""Archived conversations return as they were, whatever happens on the way. [operation.archive]"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from app.adapters.blobs.object_store import ObjectStore
from app.adapters.postgres.common.conversation_tables import ARCHIVED_TABLES, CONVERSATION_TABLES
from app.adapters.postgres.database import PostgresDatabase
from tests.conftest import execute
from tests.services.fakes import TENANT, Harness, WatchedDatabase, asks, result, user

OWN_TABLES = ("archives", "archived_heads", "log_sizes")
"""The tables that an archive itself changes."""


@pytest.fixture
def objects() -> ObjectStore:
    """The object store that the processes of a test share."""
    return ObjectStore("memory:///")


@pytest.fixture
def harness(database: PostgresDatabase, objects: ObjectStore) -> Harness:
    """The services of one process."""
    return Harness(WatchedDatabase(database), objects=objects)


async def rows_of(url: str, conversation_id: str) -> Mapping[str, list[str]]:
    """Return all rows of a conversation by table, as text."""
    found = {}
    for table in CONVERSATION_TABLES:
        if table not in OWN_TABLES:
            rows = await execute(
                url,
                f"SELECT CAST(t AS text) AS text FROM {table} t"
                " WHERE conversation_id = CAST($1 AS uuid) ORDER BY 1",
                conversation_id,
            )
            found[table] = [row["text"] for row in rows]
    return found


async def test_an_archived_conversation_returns_as_it_was(
    harness: Harness, database_url: str
) -> None:
    """Every row of every table is the same after it was archived and restored."""
    cid = await harness.conversation()
    await harness.append(cid, user("look"), asks("c1"), result("c1", "line\n" * 20_000))
    await harness.talk(cid, 6)
    before = await rows_of(database_url, cid)
    assert await harness.archives.archive_all() == 1
    archived = await rows_of(database_url, cid)
    assert not any(archived[table] for table in ARCHIVED_TABLES)
    assert not archived["heads"]
    assert await harness.archives.restore(TENANT, cid)
    assert await rows_of(database_url, cid) == before
