"""Forgetting what has had its time, a batch at a statement (architecture, operation)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

from app.adapters.postgres.common.connections import Session, Statement
from app.domain.tenancy.retention import RetainedKind

_AGED: Mapping[RetainedKind, tuple[str, str, str, str]] = {
    RetainedKind.IDEMPOTENCY_KEYS: (
        "idempotency_keys",
        "conversation_id, key",
        "created_at",
        "true",
    ),
    RetainedKind.CREATIONS: ("creations", "tenant_id, key", "created_at", "true"),
    RetainedKind.EVENTS: ("events", "conversation_id, event_seq", "created_at", "true"),
    RetainedKind.JOBS: (
        "jobs",
        "conversation_id, job_id",
        "created_at",
        "status NOT IN ('queued', 'running') AND updated_at < CAST(:before AS timestamptz)",
    ),
    RetainedKind.KEY_USES: ("key_uses", "key_id, hour, address", "hour", "true"),
    RetainedKind.ALLOWANCES: (
        "allowances",
        "tenant_id, kind, window_start",
        "window_start",
        "true",
    ),
    RetainedKind.SUMMARISER_CALLS: (
        "summariser_calls",
        "tenant_id, window_start",
        "window_start",
        "true",
    ),
}
"""Table, primary key, the column that tells the age, and which rows may go."""

FORGET = {
    kind: Statement(
        f"""
        DELETE FROM {table} WHERE ({key}) IN (
            SELECT {key} FROM {table}
            WHERE {age} < CAST(:before AS timestamptz) AND {may_go}
            LIMIT CAST(:limit AS bigint)
            FOR UPDATE SKIP LOCKED
        )
        """,
        is_long=True,
    )
    for kind, (table, key, age, may_go) in _AGED.items()
}

# OFFSET 0 has each looked for by its index. Without it PostgreSQL may read whole tables first, to
# know them all.
_IS_IDLE = """
    c.updated_at < CAST(:before AS timestamptz)
    AND NOT EXISTS (
        SELECT FROM messages m
        WHERE m.conversation_id = c.conversation_id AND m.seq = h.head_seq
            AND m.created_at >= CAST(:before AS timestamptz)
        OFFSET 0
    )
    AND NOT EXISTS (
        SELECT FROM snapshot_parts p WHERE p.conversation_id = c.conversation_id OFFSET 0
    )
""" + "".join(
    f"""
    AND NOT EXISTS (
        SELECT FROM {table} x
        WHERE x.conversation_id = c.conversation_id
            AND x.{time} >= CAST(:before AS timestamptz)
        OFFSET 0
    )"""
    # Clears, restores, compactions and undos are events.
    for table, time in (
        ("events", "created_at"),
        ("blobs", "created_at"),
        ("blob_uploads", "begun_at"),
        ("jobs", "created_at"),
        ("usage_reports", "created_at"),
        ("pins", "created_at"),
    )
)
# By id, which has an index, and not by age: one that every append moved would cost each of them.
WALK = Statement(
    f"""
        SELECT c.tenant_id, c.conversation_id, {_IS_IDLE} AS is_idle
        FROM conversations c JOIN heads h ON h.conversation_id = c.conversation_id
        WHERE c.conversation_id > CAST(:after AS uuid)
        ORDER BY c.conversation_id
        LIMIT CAST(:limit AS bigint)
        """,
    is_long=True,
)
IS_IDLE = Statement(
    f"""
        SELECT {_IS_IDLE} AS is_idle
        FROM conversations c JOIN heads h ON h.conversation_id = c.conversation_id
        WHERE c.conversation_id = CAST(:conversation_id AS uuid)
        """
)


class RetentionRepository:
    """Sentences about what is old."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def forget(self, kind: RetainedKind, before: datetime, limit: int) -> int:
        """Delete up to `limit` rows from before a time, and return how many that were."""
        return await self._session.run(FORGET[kind], before=before, limit=limit)

    async def walk(self, after: str, before: datetime, limit: int) -> list[tuple[str, str, bool]]:
        """Return tenant and id of the next conversations, and whether they are idle since then.

        Idle is one that nobody has appended to, changed or worked with, and that is in no snapshot.
        """
        rows = await self._session.all(WALK, after=UUID(after), before=before, limit=limit)
        return [(row["tenant_id"], str(row["conversation_id"]), row["is_idle"]) for row in rows]

    async def is_idle(self, conversation_id: str, before: datetime) -> bool:
        """Tell whether a conversation is idle since then; ask it under the head's lock."""
        row = await self._session.first(
            IS_IDLE, conversation_id=UUID(conversation_id), before=before
        )
        return row is not None and row["is_idle"]
