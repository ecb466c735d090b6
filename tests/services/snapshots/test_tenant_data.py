"""Export and deletion of all data of a tenant. [tenancy.export, tenancy.delete]"""

from __future__ import annotations

import json

import asyncpg
from click.testing import CliRunner

from app.adapters.postgres.database import PostgresDatabase
from app.cli import cli
from app.domain.conversations.settings import SettingsList
from app.services.snapshots.exports import ExportService
from app.services.snapshots.tenant_data import TenantDataService
from tests.services.fakes import TENANT, Harness, WatchedDatabase, asks, result, user
from tests.services.snapshots.test_exports import after_first, bring_in, export


async def test_a_tenant_is_exported_and_deleted(
    database: PostgresDatabase, database_url: str
) -> None:
    """Every row of the tenant and none of another; a conversation's lines are an export."""
    harness = Harness(WatchedDatabase(database))
    agent = await harness.agent(None)
    first = await harness.conversation(agent_id=agent)
    await harness.append(first, user("look"), asks("c"), result("c", "line\n" * 20_000))
    second = await harness.conversation()
    await harness.append(second, user("hi"))
    await harness.conversations.set_list(
        TENANT, second, SettingsList.SECTIONS, [{"name": "base", "content": "Else."}]
    )
    exports = ExportService(harness.database, harness.outputs, harness.clock.utc)
    service = TenantDataService(harness.database, harness.conversations, exports)
    body = b"".join([lines async for lines in service.export(TENANT)])
    lines = [json.loads(line) for line in body.splitlines()]
    assert lines[0]["tenant_id"] == TENANT
    assert lines[-1] == {"type": "tenant_end", "counts": {"agents": 1, "conversations": 2}}
    starts = [index for index, line in enumerate(lines) if line["type"] == "export"]
    assert [lines[index]["conversation_id"] for index in starts] == [first, second]
    own = b"".join(body.splitlines(keepends=True)[starts[1] : -1])
    assert after_first(own) == after_first(await export(harness, second))
    assert await service.delete("other") == {}
    counts = await service.delete(TENANT)
    assert (counts["conversations"], counts["messages"], counts["agents"]) == (2, 4, 1)
    assert await service.delete(TENANT) == {}
    connection = await asyncpg.connect(database_url)
    for table in ("conversations", "messages", "blobs", "blob_chunks", "heads", "agents"):
        assert await connection.fetchval(f"SELECT count(*) FROM {table}") == 0
    await connection.close()
    copy = await bring_in(harness, own)
    assert (await harness.stored(copy)).state.head_seq == 1


def test_a_deletion_needs_yes(database_url: str) -> None:
    """Without it nothing is done."""
    said = CliRunner().invoke(cli, ["tenants", "delete", "x", "--database-url", database_url])
    assert said.exit_code == 1 and "--yes" in said.output
