"""Deleting leaves nothing behind, whatever was made of a conversation. [log.delete-everything]"""

from __future__ import annotations

import asyncpg
import httpx

from app.database.tables import TABLES
from tests.api.conversations.builders import full_conversation, post

KEPT = {
    # What is the tenant's own, not an agent's or a conversation's.
    "models",
    "calibrations",
    "tenants",
    "api_keys",
    "tenant_usage",
}


async def rows(url: str) -> dict[str, int]:
    """Return the number of rows in each table with data of agents."""
    connection = await asyncpg.connect(url)
    try:
        return {
            name: await connection.fetchval(f"SELECT count(*) FROM {name}")
            for name in sorted(TABLES)
            if name not in KEPT
        }
    finally:
        await connection.close()


async def test_deleting_an_agent_leaves_no_row(
    client: httpx.AsyncClient, database_url: str
) -> None:
    """Every table is counted before and after; the answer has the number of rows."""
    agent_id = (await post(client, "/v1/agents", {"name": "Agent", "tools": [TOOL]}))["agent_id"]
    await full_conversation(client, agent_id)
    before = await rows(database_url)
    empty = {name for name, count in before.items() if not count}
    assert empty <= {"blob_uploads", "compaction_leases", "message_words"}
    answer = await client.delete(f"/v1/agents/{agent_id}")
    assert answer.status_code == 200, answer.text
    after = await rows(database_url)
    assert {name: count for name, count in after.items() if count} == {}
    deleted = answer.json()["deleted"]
    assert {name: count for name, count in deleted.items() if count} == {
        name: count for name, count in before.items() if count
    }


TOOL = {
    "type": "function",
    "function": {"name": "shell", "description": "Run.", "parameters": {"type": "object"}},
}
