"""Rows that reached their age are deleted, and no others. [operation.retention]"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta

import pytest

from app.common.errors import ServiceUnavailable
from app.database.connections import Statement
from app.tenancy.retention import AGES, IS_IDLE, LIST_IDLE, RetentionService
from tests.conftest import execute
from tests.plans import plan_of
from tests.services.fakes import TENANT, Harness, new_id, user

DAY = timedelta(days=1)


def retention_of(
    harness: Harness,
    max_ages: Mapping[str, timedelta],
    remove_idle: Callable[[str, str, datetime], Awaitable[bool]] | None = None,
) -> RetentionService:
    """Return the retention service with the real time, which the rows have from the database."""
    conversations = harness.conversations
    return RetentionService(
        harness.database,
        max_ages,
        remove_idle or conversations.remove_idle,
        conversations.remove_expired,
        lambda: datetime.now(UTC),
    )


async def age(url: str, conversation_id: str, days: int) -> None:
    """Change the times of a conversation to this many days ago."""
    for table, columns in (
        ("conversations", ("created_at", "updated_at")),
        ("messages", ("created_at",)),
        ("events", ("created_at",)),
    ):
        changes = ", ".join(f"{name} = now() - make_interval(days => $2)" for name in columns)
        await execute(
            url,
            f"UPDATE {table} SET {changes} WHERE conversation_id = CAST($1 AS uuid)",
            conversation_id,
            days,
        )


async def test_conversations_are_kept_for_ever_by_default(
    harness: Harness, database_url: str
) -> None:
    """Without a limit no message is deleted. [transcript.visibility, log.durable]"""
    conversation_id = await harness.conversation()
    await harness.talk(conversation_id, 2)
    await age(database_url, conversation_id, 5_000)
    assert await retention_of(harness, {}).delete_expired() == {}
    assert (await harness.stored(conversation_id)).state.head_seq == 4


async def test_idle_conversations_are_deleted_with_all_their_data(
    harness: Harness, database_url: str
) -> None:
    """Operation: conversations with recent appends or changes stay, and those in a snapshot."""
    idle, young, touched, empty, kept = [await harness.conversation() for _ in range(5)]
    for conversation_id in (idle, young, touched, kept):
        await harness.talk(conversation_id, 2)
    await execute(
        database_url,
        "INSERT INTO snapshot_parts (conversation_id, session_id, tenant_id, spans, message_count)"
        " VALUES (CAST($1 AS uuid), gen_random_uuid(), $2, '{1,5}', 4)",
        kept,
        TENANT,
    )
    for conversation_id in (idle, touched, empty, kept):
        await age(database_url, conversation_id, 31)
    await age(database_url, young, 29)
    await harness.append(touched, user("I am back"))
    service = retention_of(harness, {"conversations": 30 * DAY})
    assert await service.delete_expired() == {"conversations": 2}
    left = await execute(database_url, "SELECT conversation_id::text FROM conversations")
    assert {row[0] for row in left} == {young, touched, kept}
    rows = await execute(database_url, "SELECT DISTINCT conversation_id::text FROM messages")
    assert {row[0] for row in rows} == {young, touched, kept}
    assert await service.delete_expired() == {}


async def test_a_conversation_with_recent_work_is_not_idle(
    harness: Harness, database_url: str
) -> None:
    """Operation: compactions, clears, restores, uploads, jobs, usage and pins count as work."""
    rows = {
        "events": "event_seq, type) VALUES ($1, 1, 'cleared'",
        "blobs": "blob_id, content_id, byte_size, line_count, sha256, media_type)"
        " VALUES ($1, 'b', gen_random_uuid(), 1, 1, 'x', 'text/plain'",
        "blob_uploads": "content_id, tenant_id) VALUES ($1, gen_random_uuid(), 'tenant'",
        "jobs": "job_id, tenant_id, kind) VALUES ($1, gen_random_uuid(), 'tenant', 'compact'",
        "pins": "seq) VALUES ($1, 1",
        "usage_reports": "report_id, model, format, input_tokens, output_tokens,"
        " cache_creation_tokens, cache_read_tokens, usage)"
        " VALUES ($1, gen_random_uuid(), 'm', 'openai_chat', 1, 1, 0, 0, '{}'",
    }
    worked = {table: await harness.conversation() for table in rows}
    idle = await harness.conversation()
    for conversation_id in (*worked.values(), idle):
        await age(database_url, conversation_id, 31)
    for table, conversation_id in worked.items():
        insert = f"INSERT INTO {table} (conversation_id, {rows[table]})"
        await execute(database_url, insert, conversation_id)
    service = retention_of(harness, {"conversations": 30 * DAY})
    assert await service.delete_expired() == {"conversations": 1}
    left = await execute(database_url, "SELECT conversation_id::text FROM conversations")
    assert {row[0] for row in left} == set(worked.values())


async def test_a_failed_deletion_does_not_stop_the_others(
    harness: Harness, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Operation: a deletion that takes too long is repeated later, and the others go on."""
    ids = sorted([await harness.conversation() for _ in range(3)])
    for conversation_id in ids:
        await age(database_url, conversation_id, 31)

    async def remove(tenant_id: str, found: str, before: datetime) -> bool:
        if found == ids[0]:
            raise ServiceUnavailable("The database does not answer", {"reason": "QueryCanceled"})
        return await harness.conversations.remove_idle(tenant_id, found, before)

    service = retention_of(harness, {"conversations": 30 * DAY}, remove)
    assert await service.delete_expired() == {"conversations": 2}
    assert "expired_data_not_deleted" in caplog.messages


async def test_an_append_during_the_walk_keeps_the_conversation(
    harness: Harness, database_url: str
) -> None:
    """An append between the listing and the deletion keeps its conversation. [log.durable]"""
    conversation_id = await harness.conversation()
    await harness.talk(conversation_id, 1)
    await age(database_url, conversation_id, 31)

    async def appended_first(tenant_id: str, found: str, before: datetime) -> bool:
        await harness.append(found, user("wait"))
        return await harness.conversations.remove_idle(tenant_id, found, before)

    service = retention_of(harness, {"conversations": 30 * DAY}, appended_first)
    assert await service.delete_expired() == {}
    assert (await harness.stored(conversation_id)).state.head_seq == 3
    assert not await harness.conversations.remove_idle(TENANT, new_id(), datetime.now(UTC))


async def test_expired_conversations_are_deleted(harness: Harness, database_url: str) -> None:
    """Those whose own expiry has passed are deleted; no others. [log.expiry]"""
    ids = [await harness.conversation() for _ in range(3)]
    await harness.talk(ids[0], 2)
    for conversation_id, seconds in zip(ids, (-1, 60, None), strict=True):
        await execute(
            database_url,
            "UPDATE conversations SET expires_at = now() + make_interval(secs => $2)"
            " WHERE conversation_id = CAST($1 AS uuid)",
            conversation_id,
            seconds,
        )
    service = retention_of(harness, {})
    assert await service.delete_expired_conversations() == 1
    assert await service.delete_expired_conversations() == 0
    assert not await harness.conversations.remove_expired(TENANT, ids[1])
    left = await execute(database_url, "SELECT conversation_id::text FROM conversations")
    assert {row[0] for row in left} == set(ids[1:])
    assert await execute(database_url, "SELECT FROM messages") == []


FILL = {
    "idempotency_keys": "INSERT INTO idempotency_keys"
    " SELECT gen_random_uuid(), 'k', 'h', 'a', t FROM {times} AS t",
    "creations": "INSERT INTO creations SELECT 'x', t::text, 'h', 'r', t FROM {times} AS t",
    "events": "INSERT INTO events SELECT gen_random_uuid(), 1, 'due', '{{}}', t FROM {times} AS t",
    "jobs": "INSERT INTO jobs"
    " (conversation_id, job_id, tenant_id, kind, status, created_at, updated_at)"
    " SELECT gen_random_uuid(), gen_random_uuid(), 'x', 'compact', 'done',"
    " t - interval '1 hour', t FROM {times} AS t",
}
TIMES = "generate_series(now() - interval '90 days', now(), interval '1 hour')"


async def test_rows_are_deleted_by_age(harness: Harness, database_url: str) -> None:
    """Operation: older rows of every kind are deleted, newer ones stay, also in batches."""
    assert set(FILL) == set(AGES)
    for statement in FILL.values():
        await execute(database_url, statement.format(times=TIMES))
    await execute(
        database_url, "UPDATE jobs SET status = 'queued' WHERE updated_at < now() - interval '80d'"
    )
    service = retention_of(harness, {"events": 40 * DAY})
    gone = await service.delete_expired()
    hours = 90 * 24 + 1
    for table, age in AGES.items():
        kept = round((age or 40 * DAY) / timedelta(hours=1))
        unfinished = 10 * 24 if table == "jobs" else 0
        assert abs(gone[table] - (hours - kept - unfinished)) <= 1, table
        ((left,),) = await execute(database_url, f"SELECT count(*) FROM {table}")
        assert left == hours - gone[table]
    assert await service.delete_expired() == {}


@pytest.mark.one_server  # it reads the plans of one server
@pytest.mark.parametrize("statement", [LIST_IDLE, IS_IDLE])
async def test_the_walk_uses_indexes(database_url: str, statement: Statement) -> None:
    """Performance: the walk reads by indexes, and scans no table."""
    plan = await plan_of(database_url, statement)
    assert "Seq Scan" not in plan
    assert "hashed" not in plan
