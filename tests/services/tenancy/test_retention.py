"""Rows that reached their age are deleted, and no others. [operation.retention]"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from app.tenancy.retention import AGES, RetentionService
from tests.conftest import execute
from tests.services.fakes import TENANT, Harness

DAY = timedelta(days=1)


def retention_of(harness: Harness, event_age: timedelta | None = None) -> RetentionService:
    """Return the retention service with the real time, which the rows have from the database."""
    return RetentionService(
        harness.database, event_age, harness.conversations.remove_expired, lambda: datetime.now(UTC)
    )


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
    service = retention_of(harness)
    assert await service.delete_expired_conversations() == 1
    assert await service.delete_expired_conversations() == 0
    assert not await harness.conversations.remove_expired(TENANT, ids[1])
    left = await execute(database_url, "SELECT conversation_id::text FROM conversations")
    assert {row[0] for row in left} == set(ids[1:])
    assert await execute(database_url, "SELECT FROM messages") == []


FILL = {
    "idempotency_keys": "INSERT INTO idempotency_keys"
    " SELECT gen_random_uuid(), 'k', 'h', 'a', t FROM {times} AS t",
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
    service = retention_of(harness, 40 * DAY)
    gone = await service.delete_expired()
    hours = 90 * 24 + 1
    for table, age in AGES.items():
        kept = round((age or 40 * DAY) / timedelta(hours=1))
        unfinished = 10 * 24 if table == "jobs" else 0
        assert abs(gone[table] - (hours - kept - unfinished)) <= 1, table
        ((left,),) = await execute(database_url, f"SELECT count(*) FROM {table}")
        assert left == hours - gone[table]
    assert await service.delete_expired() == {}
