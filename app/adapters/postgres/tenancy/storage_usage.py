"""Stored bytes of tenants: each message is measured once, because it never changes."""

from __future__ import annotations

from app.adapters.postgres.common.connections import Session, Statement

MAX_LOGS = 100
"""Maximum number of conversations that one statement measures."""
MAX_ROWS = 5_000
"""Maximum number of messages of a conversation that one statement measures."""

BEHIND = Statement(
    f"""
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
        """,
    is_long=True,
)
# The size is replaced, not added to, so that two processes may measure at the same time.
MEASURE = Statement(
    """
        INSERT INTO log_sizes AS known (conversation_id, through_seq, bytes)
        SELECT m.conversation_id, CAST(:through_seq AS bigint), CAST(:bytes AS bigint)
            + sum(octet_length(m.body) + coalesce(octet_length(m.fragment), 0))
        FROM (
            SELECT conversation_id, body, fragment FROM messages
            WHERE conversation_id = CAST(:conversation_id AS uuid)
                AND seq > CAST(:after_seq AS bigint) AND seq <= CAST(:through_seq AS bigint)
            ORDER BY seq
        ) m
        GROUP BY m.conversation_id
        ON CONFLICT (conversation_id) DO UPDATE
        SET through_seq = excluded.through_seq, bytes = excluded.bytes
        WHERE known.through_seq < excluded.through_seq
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
        behind = await self._session.all(BEHIND, tenant_id=tenant_id)
        for log in behind:
            await self._session.run(MEASURE, **log)
        return bool(behind)

    async def total(self, tenant_id: str) -> int:
        row = await self._session.first(TOTAL, tenant_id=tenant_id)
        return int(row["bytes"]) if row is not None else 0
