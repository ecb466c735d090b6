"""The audit: an entry for each administrative action, and none for what did not happen.

[tenancy.audit]
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from app import keys, tenant_deletion
from app.adapters.postgres.database import PostgresDatabase
from app.domain.common.errors import Conflict, NotFound
from app.domain.tenancy.audit import Actor, AuditAction, AuditEntry
from app.domain.tenancy.quotas import TenantLimits
from app.main import create_app
from app.services.tenancy import audit
from app.services.tenancy.audit import AuditService
from app.settings import Settings
from tests.api.talk import append, new_conversation, user
from tests.conftest import execute, started
from tests.services.fakes import WatchedDatabase

EVER = datetime(2000, 1, 1, tzinfo=UTC), datetime(3000, 1, 1, tzinfo=UTC)


async def entries(
    database: PostgresDatabase,
    since: datetime = EVER[0],
    until: datetime = EVER[1],
    tenant_id: str | None = None,
) -> list[AuditEntry]:
    """Return the entries of a time range."""
    service = AuditService(WatchedDatabase(database))
    return [entry async for entry in service.entries(since, until, tenant_id)]


def told(found: Sequence[AuditEntry]) -> list[tuple[str, str]]:
    """Return what was done, and to what."""
    return [(entry.action, entry.subject) for entry in found]


async def test_commands_are_recorded(settings: Settings, database: PostgresDatabase) -> None:
    """Each change of a key or a tenant has one entry with the account; a refused one has none."""
    first = (await keys.create("acme", "backend", None, settings)).split("_")[1]
    second = (await keys.rotate(first, 1, settings))[0].split("_")[1]
    await keys.expire(second, 30, settings)
    await keys.revoke(first, settings)
    await keys.revoke(first, settings)
    await keys.set_limits("acme", TenantLimits(storage_bytes=9), False, settings)
    await keys.set_disabled("acme", True, settings)
    await keys.set_disabled("acme", False, settings)
    await tenant_deletion.delete("acme", settings)
    with pytest.raises(Conflict):
        await keys.rotate(first, 1, settings)
    with pytest.raises(NotFound):
        await keys.set_disabled("nobody", True, settings)
    found = await entries(database)
    assert told(found) == [
        (AuditAction.KEY_CREATED, first),
        (AuditAction.KEY_ROTATED, first),
        (AuditAction.KEY_EXPIRY_CHANGED, second),
        (AuditAction.KEY_REVOKED, first),
        (AuditAction.TENANT_LIMITED, "acme"),
        (AuditAction.TENANT_DISABLED, "acme"),
        (AuditAction.TENANT_ENABLED, "acme"),
        (AuditAction.TENANT_DELETION_BEGUN, "acme"),
        (AuditAction.TENANT_DELETED, "acme"),
    ]
    assert {(entry.tenant_id, entry.key_id, entry.account) for entry in found} == {
        ("acme", None, keys.actor().account)
    }
    assert found[0].details == {"name": "backend", "expires_at": None, "read_only": False}
    assert found[1].details["new_key_id"] == second
    assert found[4].details["storage_bytes"] == 9
    assert set(AuditAction) == {
        *(entry.action for entry in found),
        *("message_redacted", "conversation_deleted", "agent_deleted", "snapshot_deleted"),
    }


async def test_deletions_are_recorded_with_their_key(
    settings: Settings, database: PostgresDatabase
) -> None:
    """What a caller deletes or redacts has the key; a repeated or refused request adds nothing."""
    key = await keys.create("acme", "backend", None, settings)
    headers = {"Authorization": f"Bearer {key}"}
    async with started(create_app(settings)) as opened:
        opened.headers.update(headers)
        await opened.post("/v1/agents", json={"agent_id": "a", "name": "A"})
        path = await new_conversation(opened, conversation_id="customer-7:ticket-1", agent_id="a")
        await append(opened, path, user("secret", id="m-1"), user("more"))
        fork = await opened.post(f"{path}/fork", json={"conversation_id": "copy"})
        assert fork.status_code == 201
        saved = (await opened.post(f"{path}/snapshots", json={})).json()["session_id"]
        for _ in range(2):
            done = await opened.post(f"{path}/messages/m-1/redact", json={"reason": "gdpr"})
            assert done.status_code == 200
        for gone in (f"/v1/snapshots/{saved}", path, "/v1/agents/a"):
            statuses = [(await opened.delete(gone)).status_code for _ in range(2)]
            assert statuses == [200, 404]
    created, *found = await entries(database)
    assert told(found) == [
        (AuditAction.MESSAGE_REDACTED, "m-1"),
        (AuditAction.MESSAGE_REDACTED, "m-1"),
        (AuditAction.SNAPSHOT_DELETED, saved),
        (AuditAction.CONVERSATION_DELETED, "customer-7:ticket-1"),
        (AuditAction.AGENT_DELETED, "a"),
    ]
    assert {entry.key_id for entry in found} == {created.subject} == {key.split("_")[1]}
    redacted = {entry.details["conversation_id"] for entry in found[:2]}
    assert redacted == {"customer-7:ticket-1", "copy"}
    assert found[0].details["reason"] == "gdpr"
    assert found[-1].details == {"conversations": 1}


async def test_an_entry_and_its_action_are_one_transaction(
    database_url: str, database: PostgresDatabase, client: httpx.AsyncClient
) -> None:
    """Where the entry cannot be written, nothing is deleted."""
    path = await new_conversation(client)
    name = "CONSTRAINT nothing_is_deleted"
    await execute(
        database_url, f"ALTER TABLE audit ADD {name} CHECK (action <> 'conversation_deleted')"
    )
    try:
        assert (await client.delete(path)).status_code >= 500
    finally:
        await execute(database_url, f"ALTER TABLE audit DROP {name}")
    assert (await client.get(path)).status_code == 200
    assert await entries(database) == []


async def test_a_time_range_is_read_in_pages(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages have every entry once, in order; a range has its first time and not its last."""
    monkeypatch.setattr(audit, "_ENTRIES_PER_PAGE", 3)
    for number in range(10):
        async with database.session() as session:
            tenant = "acme" if number % 2 else "other"
            action = AuditAction.KEY_CREATED
            await session.audit.add(tenant, action, str(number), Actor(account="me"), {})
    every = await entries(database)
    assert [entry.subject for entry in every] == [str(number) for number in range(10)]
    assert await entries(database, every[2].at, every[7].at) == every[2:7]
    assert await entries(database, tenant_id="acme") == every[1::2]
    assert await entries(database, every[-1].at + timedelta(microseconds=1)) == []
