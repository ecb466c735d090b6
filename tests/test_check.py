"""The commands `check` and `usage`: what is damaged by hand is found, what is whole is not.

[operation.check]
"""

from __future__ import annotations

import json
import random
import string
from pathlib import Path

import asyncpg
import httpx
import pytest

from app.adapters.postgres.maintenance.integrity import CHECKS, Checked, check
from app.main import create_app
from app.settings import Settings
from tests.api.http.test_links import Caller, act
from tests.api.talk import append, calling, new_conversation, result, user
from tests.conftest import started
from tests.test_backups import command, succeed

pytestmark = [pytest.mark.one_server, pytest.mark.direct]

DAMAGE = {
    "the seqs of a log are 1 to head_seq": "DELETE FROM messages WHERE seq = 2",
    "the tokens of a log are the sum of its messages": "UPDATE heads SET tokens = tokens + 1",
    "running totals of tokens": "UPDATE messages SET tokens = tokens + 1 WHERE seq = 1",
    "each conversation has a state": "DELETE FROM heads",
    "the active compaction has a receipt": "DELETE FROM compactions",
    "the receipt before a receipt": "UPDATE compactions SET parent_id = gen_random_uuid()",
    "uses of blobs": "DELETE FROM blobs",
    "the bytes of blobs": "DELETE FROM blob_chunks WHERE number = 0",
    "chunks without a blob": "UPDATE blobs SET collected_at = now()",
    "the parts of snapshots": "DELETE FROM snapshots",
    "indexes are valid": "UPDATE pg_index SET indisvalid = false"
    " WHERE indexrelid = 'messages_by_id'::regclass",
    "events are of a conversation": "DELETE FROM conversations",
    "message_words are of a message": "DELETE FROM messages",
}
"""Statements by the check that finds what they do."""


async def wrong(connection: asyncpg.Connection) -> dict[str, Checked]:
    """Return the results that are wrong, by name."""
    return {result.name: result async for result in check(connection) if result.wrong}


async def test_each_damage_is_found(settings: Settings, database_url: str, tmp_path: Path) -> None:
    """A database that was used has no problem; each damage is found by its check."""
    assert set(CHECKS) <= set(DAMAGE)
    settings = settings.model_copy(update={"default_model": "gpt-4o"})
    async with started(create_app(settings)) as client:
        await act(Caller(client))
        path = await new_conversation(client)
        output = result("c", "a line\n" * 50_000)
        await append(client, path, user("Go."), calling("c"), output)
        await client.get("/v1/search", params={"q": "line"})
    done = await succeed("check", url=database_url)
    assert done.stdout.endswith("checks, 0 wrong rows.\n")
    connection = await asyncpg.connect(database_url)
    for name, statement in DAMAGE.items():
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(statement)
        found = await wrong(connection)
        await transaction.rollback()
        assert name in found, (name, list(found))
        assert found[name].examples
    await connection.execute(DAMAGE["the tokens of a log are the sum of its messages"])
    await connection.close()
    failed = await command("check", "--json", url=database_url)
    problems = json.loads(failed.stdout)["problems"]
    assert failed.code == 1
    assert [problem["name"] for problem in problems] == [
        "the tokens of a log are the sum of its messages"
    ]


async def test_missing_objects_are_found(
    settings: Settings, database_url: str, tmp_path: Path
) -> None:
    """With `--objects`, an object that is missing or cut off is named."""
    url = f"file://{tmp_path / 'store'}"
    async with started(create_app(settings.model_copy(update={"blob_store_url": url}))) as client:
        path = await new_conversation(client)
        for name in ("c", "d", "e"):
            output = result(name, f"{name} line\n" * 50_000)
            await append(client, path, user("Go."), calling(name), output)
    arguments = ("check", "--objects", "--blob-store-url", url)
    await succeed(*arguments, url=database_url)
    missing, cut, _ = sorted(file for file in (tmp_path / "store").rglob("*") if file.is_file())
    missing.unlink()
    cut.write_bytes(cut.read_bytes()[:-1])
    failed = await command(*arguments, url=database_url)
    assert failed.code == 1
    shown = [line.strip() for line in failed.stdout.splitlines() if line.startswith(" ")]
    assert shown == [str(file.relative_to(tmp_path / "store")) for file in (missing, cut)]


async def test_usage_names_tables_tenants_and_conversations(
    client: httpx.AsyncClient, database_url: str
) -> None:
    """The largest conversation comes first, and sizes are those of what was stored."""
    for size in (10, 40_000, 1_000):
        path = await new_conversation(client, conversation_id=f"of-{size}")
        text = "".join(random.Random(size).choices(string.ascii_letters, k=size))
        await append(client, path, user(text))
    done = await succeed("usage", "--json", "--largest", 2, url=database_url)
    found = json.loads(done.stdout)
    largest = [row["conversation"] for row in found["conversations"]]
    assert largest == ["of-40000", "of-1000"]
    assert 30_000 < found["conversations"][0]["message_bytes"] < 90_000
    (tenant_row,) = found["tenants"]
    assert (tenant_row["conversations"], tenant_row["messages"]) == (3, 3)
    assert {"messages", "heads"} <= {row["table"] for row in found["tables"]}
    for tenant in ("default", "other"):
        await succeed("keys", "create", "--tenant", tenant, url=database_url)
    await succeed("tenants", "limit", "default", "--storage-bytes", 90_000, url=database_url)
    done = await succeed("tenants", "usage", "default", "--json", url=database_url)
    own = json.loads(done.stdout)
    assert set(own) == {"tenants", "conversations"} and len(own["conversations"]) == 3
    (shown_tenant,) = own["tenants"]
    assert 41_000 < shown_tenant["counted_bytes"] < shown_tenant["storage_bytes"] == 90_000
    assert {name: shown_tenant[name] for name in tenant_row} == tenant_row
    done = await succeed("tenants", "usage", "other", "--json", url=database_url)
    empty = {"tenant": "other", "counted_bytes": 0, "storage_bytes": None}
    assert json.loads(done.stdout) == {"tenants": [empty], "conversations": []}
    unknown = await command("tenants", "usage", "nobody", url=database_url)
    assert unknown.code == 1 and "No tenant nobody" in unknown.stderr
    shown = await succeed("usage", url=database_url)
    assert "of-40000" in shown.stdout and "MESSAGE_BYTES" in shown.stdout
