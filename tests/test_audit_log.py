"""The log lines of the audit: one for each change of a key or a tenant, and for each deletion.

[tenancy.audit]
"""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from click.testing import CliRunner

from app.cli import cli
from app.main import create_app
from app.settings import Settings
from tests import keys
from tests.api.talk import append, new_conversation, user
from tests.conftest import started


@pytest.fixture(autouse=True)
def shown(caplog: pytest.LogCaptureFixture) -> None:
    """Record the lines at their level."""
    caplog.set_level(logging.INFO, "app.audit")


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, Any]]]:
    """Return the events of the audit with their data."""
    return [
        (record.message, getattr(record, "data", {}))
        for record in caplog.records
        if record.name == "app.audit"
    ]


def test_commands_are_logged(database_url: str) -> None:
    """Each change of a key or a tenant is a line with the account; a refused one is none."""
    told: list[dict[str, Any]] = []

    def run(*command: str, code: int = 0) -> str:
        done = CliRunner().invoke(cli, [*command, "--database-url", database_url])
        assert done.exit_code == code, done.output
        told.extend(json.loads(line) for line in done.stderr.splitlines() if line[0] == "{")
        return done.stdout.strip().rpartition("\n")[2]

    first, second = (run("keys", "create", "--tenant", "acme").split("_")[1] for _ in range(2))
    run("keys", "expire", second, "--in-days", "30")
    run("keys", "revoke", first)
    run("keys", "revoke", first)
    for limit in ("--requests-per-minute=9", "--summarizer-calls-per-hour=5", "--reset"):
        run("tenants", "limit", "acme", limit)
    run("tenants", "delete", "acme", "--yes")
    run("keys", "expire", first, "--never", code=1)
    run("keys", "revoke", "nobody", code=1)
    found = [line for line in told if line["logger"] == "app.audit"]
    assert [(line["event"], line.get("key")) for line in found] == [
        ("key_created", first),
        ("key_created", second),
        ("key_expiry_changed", second),
        ("key_revoked", first),
        *[("tenant_limited", None)] * 3,
        ("tenant_deletion_begun", None),
        ("tenant_deleted", None),
    ]
    assert {line["tenant_id"] for line in found} == {"acme"}
    assert all(line["account"] for line in found)
    names = ("requests_per_minute", "summarizer_calls_per_hour")
    assert [tuple(line[name] for name in names) for line in found[4:7]] == [
        (9, None),
        (9, 5),
        (None, None),
    ]
    assert found[-1]["rows"] == {"revoked_keys": 2, "tenants": 1}


async def test_deletions_are_logged_with_their_key(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """What a caller deletes or redacts is a line with the key, and no content.

    A repeated or refused request adds none.
    """
    key = await keys.create("acme", "backend", None, settings)
    caplog.clear()
    async with started(create_app(settings)) as opened:
        opened.headers["Authorization"] = f"Bearer {key}"
        await opened.post("/v1/agents", json={"agent_id": "a", "name": "A"})
        path = await new_conversation(opened, conversation_id="customer-7", agent_id="a")
        await append(opened, path, user("secret", id="m-1"), user("more"))
        assert (await opened.post(f"{path}/fork", json={})).status_code == 201
        saved = (await opened.post(f"{path}/snapshots", json={})).json()["snapshot_id"]
        for _ in range(2):
            done = await opened.post(f"{path}/messages/m-1/redact", json={"reason": "gdpr"})
            assert done.status_code == 200
        for gone in (f"/v1/snapshots/{saved}", path, "/v1/agents/a"):
            statuses = [(await opened.delete(gone)).status_code for _ in range(2)]
            assert statuses == [200, 404]
    redacted, snapshot, conversation, agent = lines(caplog)
    for _, data in (redacted, snapshot, conversation, agent):
        assert (data["tenant_id"], data["key_id"]) == ("acme", key.split("_")[1])
        assert "secret" not in str(data) and "gdpr" not in str(data)
    assert redacted[0] == "message_redacted"
    assert (redacted[1]["seq"], redacted[1]["conversation_count"]) == (1, 2)
    assert snapshot[0] == "snapshot_deleted" and snapshot[1]["snapshot_id"] == saved
    assert conversation[0] == "conversation_deleted"
    assert conversation[1]["conversation_id"] == redacted[1]["conversation_id"]
    assert conversation[1]["rows"]["messages"] == 2
    assert agent[0] == "agent_deleted" and agent[1]["agent_id"] == "a"
    assert agent[1]["rows"]["conversations"] == 1
