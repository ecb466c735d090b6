"""Deletion by age in PostgreSQL, one batch a statement."""

from __future__ import annotations

from datetime import datetime

from app.database.connections import Statement
from app.database.repository import Repository
from app.database.sql import delete_some
from app.tenancy.retention_periods import RetainedKind

_OLD = "created_at < CAST(:before AS timestamptz)"
_ENDED = "AND status NOT IN ('queued', 'running') AND updated_at < CAST(:before AS timestamptz)"

DELETE = {
    # The name of the kind is that of its table.
    kind: Statement(
        delete_some(kind, f"{_OLD} {_ENDED if kind is RetainedKind.JOBS else ''}"), is_long=True
    )
    for kind in RetainedKind
}
# Two workers that delete the same rows at once would wait for each other.
TRY_LOCK = Statement(
    """
        SELECT pg_try_advisory_xact_lock(
            hashtextextended('retention:' || :kind, 0)) AS is_locked
        """
)

# OFFSET 0 keeps each subquery a lookup by index. Without it PostgreSQL may scan whole tables.
_IS_IDLE = """
    NOT EXISTS (
        SELECT FROM snapshot_parts p WHERE p.conversation_id = {of} OFFSET 0
    )
    AND c.updated_at < CAST(:before AS timestamptz)
    AND NOT EXISTS (
        SELECT FROM messages m
        WHERE m.conversation_id = {of} AND m.seq = h.head_seq
            AND m.created_at >= CAST(:before AS timestamptz)
        OFFSET 0
    )
""" + "".join(
    f"""
    AND NOT EXISTS (
        SELECT FROM {table} x
        WHERE x.conversation_id = {{of}}
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

# By id, which has an index. An index on the age would have to be updated by every append.
LIST_CONVERSATIONS = Statement(
    f"""
        SELECT c.tenant_id, c.conversation_id,
            {_IS_IDLE.format(of="c.conversation_id")} AS is_idle
        FROM conversations c LEFT JOIN heads h ON h.conversation_id = c.conversation_id
        WHERE c.conversation_id > CAST(:after AS uuid)
        ORDER BY c.conversation_id LIMIT :limit
        """,
    is_long=True,
)
IS_IDLE = Statement(
    f"""
        SELECT {_IS_IDLE.format(of=":conversation_id")} AS is_idle
        FROM conversations c LEFT JOIN heads h ON h.conversation_id = c.conversation_id
        WHERE c.conversation_id = :conversation_id
        """
)
LIST_EXPIRED = Statement(
    """
        SELECT tenant_id, conversation_id FROM conversations
        WHERE expires_at <= now() ORDER BY expires_at LIMIT :limit
        """,
    is_long=True,
)
LOCK_EXPIRED = Statement(
    """
        SELECT h.conversation_id
        FROM conversations c JOIN heads h ON h.conversation_id = c.conversation_id
        WHERE c.conversation_id = :conversation_id AND c.expires_at <= now()
        FOR UPDATE OF h, c
        """
)


class RetentionRepository(Repository):
    """Deletes rows by age."""

    async def delete(self, kind: RetainedKind, before: datetime, limit: int) -> int:
        """Delete up to `limit` rows from before a time; returns the number deleted."""
        row = await self._session.first(TRY_LOCK, kind=kind)
        if row is None or not row["is_locked"]:
            return 0
        return await self._session.run(DELETE[kind], before=before, limit=limit)

    async def list_conversations(
        self, after: str, before: datetime, limit: int
    ) -> list[tuple[str, str, bool]]:
        """Return tenant and id of the next conversations, and whether each is idle since a time.

        A conversation is idle without appends, changes, compactions and other work, and outside
        every snapshot.
        """
        rows = await self._session.all(LIST_CONVERSATIONS, after=after, before=before, limit=limit)
        return [(row["tenant_id"], str(row["conversation_id"]), row["is_idle"]) for row in rows]

    async def list_expired(self, limit: int) -> list[tuple[str, str]]:
        """Return tenant and id of conversations whose expiry has passed, the oldest first."""
        rows = await self._session.all(LIST_EXPIRED, limit=limit)
        return [(row["tenant_id"], str(row["conversation_id"])) for row in rows]

    async def lock_expired(self, conversation_id: str) -> bool:
        """Lock a conversation until the transaction ends; False unless its expiry has passed."""
        row = await self._session.first(LOCK_EXPIRED, conversation_id=conversation_id)
        return row is not None

    async def is_idle(self, conversation_id: str, before: datetime) -> bool:
        """Return whether a conversation is idle since a time; call it with a lock on it."""
        row = await self._session.first(IS_IDLE, conversation_id=conversation_id, before=before)
        return row is not None and row["is_idle"]
