"""Stored bytes of tenants: each message is measured once, because it never changes."""

from __future__ import annotations

from app.adapters.postgres.common.connections import Session, Statement

MAX_LOGS = 100
"""Maximum number of conversations that one statement measures."""
MAX_ROWS = 5_000
"""Maximum number of messages of a conversation that one statement measures."""

# The size is replaced, not added to, so that two processes may measure at the same time.
MEASURE = Statement(
    f"""
        WITH behind AS (
            SELECT h.conversation_id, coalesce(s.through_seq, 0) AS after_seq,
                least(h.head_seq, coalesce(s.through_seq, 0) + {MAX_ROWS}) AS through_seq,
                coalesce(s.bytes, 0) AS bytes
            FROM conversations c
            JOIN heads h ON h.conversation_id = c.conversation_id
            LEFT JOIN log_sizes s ON s.conversation_id = c.conversation_id
            WHERE c.tenant_id = CAST(:tenant_id AS text)
                AND h.head_seq > coalesce(s.through_seq, 0)
            ORDER BY h.conversation_id
            LIMIT {MAX_LOGS}
        ), measured AS (
            INSERT INTO log_sizes AS known (conversation_id, through_seq, bytes)
            SELECT b.conversation_id, b.through_seq, b.bytes + coalesce((
                SELECT sum(octet_length(m.body) + coalesce(octet_length(m.fragment), 0))
                FROM messages m
                WHERE m.conversation_id = b.conversation_id
                    AND m.seq > b.after_seq AND m.seq <= b.through_seq
            ), 0)
            FROM behind b
            ON CONFLICT (conversation_id) DO UPDATE
            SET through_seq = excluded.through_seq, bytes = excluded.bytes
            WHERE known.through_seq < excluded.through_seq
        )
        SELECT count(*) AS logs FROM behind
        """,
    is_long=True,
)

TOTAL = Statement(
    """
        SELECT coalesce((
            SELECT sum(s.bytes) FROM conversations c
            JOIN log_sizes s ON s.conversation_id = c.conversation_id
            WHERE c.tenant_id = CAST(:tenant_id AS text)
        ), 0) + coalesce((
            SELECT sum(b.byte_size) FROM conversations c
            JOIN blobs b ON b.conversation_id = c.conversation_id
            WHERE c.tenant_id = CAST(:tenant_id AS text) AND b.collected_at IS NULL
        ), 0) + coalesce((
            SELECT sum(octet_length(m.body)) FROM snapshot_messages m
            WHERE m.tenant_id = CAST(:tenant_id AS text)
        ), 0) AS bytes
        """,
    is_long=True,
)


class StorageRepository:
    """Measures the stored bytes of tenants."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def measure(self, tenant_id: str) -> bool:
        row = await self._session.first(MEASURE, tenant_id=tenant_id)
        return row is not None and row["logs"] > 0

    async def total(self, tenant_id: str) -> int:
        row = await self._session.first(TOTAL, tenant_id=tenant_id)
        return int(row["bytes"]) if row is not None else 0
