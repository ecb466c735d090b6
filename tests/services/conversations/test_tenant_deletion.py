"""Deletion of all data of a tenant. [tenancy.delete]"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import asyncpg

from app.blobs.byte_store import ObjectStore
from app.repositories import Database
from tests.conftest import execute
from tests.services.fakes import TENANT, Harness, WatchedDatabase, asks, result, user


async def test_a_tenant_is_deleted(database: Database, database_url: str) -> None:
    """Every row of the tenant and none of another."""
    harness = Harness(WatchedDatabase(database))
    agent = await harness.agent(None)
    first = await harness.conversation(agent_id=agent)
    await harness.append(first, user("look"), asks("c"), result("c", "line\n" * 20_000))
    await harness.append(await harness.conversation(), user("hi"))
    delete = harness.conversations.remove_tenant
    assert await delete("other") == {}
    counts = await delete(TENANT)
    assert (counts["conversations"], counts["messages"], counts["agents"]) == (2, 4, 1)
    assert await delete(TENANT) == {}
    connection = await asyncpg.connect(database_url)
    for table in ("conversations", "messages", "blobs", "blob_chunks", "states", "agents"):
        assert await connection.fetchval(f"SELECT count(*) FROM {table}") == 0
    await connection.close()


async def test_the_objects_of_a_tenant_are_deleted(database: Database, database_url: str) -> None:
    """A deletion leaves neither rows nor objects, of expired conversations too."""
    objects = ObjectStore("memory:///")
    harness = Harness(WatchedDatabase(database), objects=objects)
    for _ in range(2):
        cid = await harness.conversation()
        await harness.append(cid, user("look"), asks("c"), result("c", "line\n" * 20_000))
    await execute(
        database_url,
        "UPDATE conversations SET expires_at = now() WHERE conversation_id ="
        " (SELECT conversation_id FROM states LIMIT 1)",
    )
    later = datetime.now(UTC) + timedelta(hours=1)
    stored = [key async for key, _, _ in objects.orphans(later)]
    assert len(stored) == 2
    await harness.conversations.remove_tenant(TENANT)
    assert await execute(database_url, "SELECT FROM conversations") == []
    assert [key async for key, _, _ in objects.orphans(later)] == []
