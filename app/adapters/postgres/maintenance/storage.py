"""How many bytes the rows take: by table, by tenant, and of the largest conversations."""

from __future__ import annotations

from typing import Any

from app.adapters.postgres.maintenance.connection import snapshot

_TABLES = """
    SELECT c.relname AS "table", nullif(c.reltuples, -1)::bigint AS rows,
        pg_table_size(c.oid) AS table_bytes, pg_indexes_size(c.oid) AS index_bytes
    FROM pg_class c
    WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p')
       
    ORDER BY pg_total_relation_size(c.oid) DESC
"""
_CONVERSATIONS = """
    WITH logs AS (
        SELECT conversation_id, sum(pg_column_size(m.*))::bigint AS message_bytes
        FROM messages m GROUP BY 1
    ), outputs AS (
        SELECT conversation_id, sum(byte_size)::bigint AS output_bytes
        FROM blobs WHERE collected_at IS NULL GROUP BY 1
    ), receipts AS (
        SELECT conversation_id, sum(pg_column_size(k.*))::bigint AS receipt_bytes
        FROM compactions k GROUP BY 1
    )
    SELECT c.tenant_id, c.conversation_id, c.own_id, h.head_seq, h.tokens,
        coalesce(message_bytes, 0) AS message_bytes, coalesce(output_bytes, 0) AS output_bytes,
        coalesce(receipt_bytes, 0) AS receipt_bytes
    FROM conversations c JOIN heads h USING (conversation_id)
    LEFT JOIN logs USING (conversation_id) LEFT JOIN outputs USING (conversation_id)
    LEFT JOIN receipts USING (conversation_id)
"""
_BY_TENANT = f"""
    SELECT tenant_id AS tenant, count(*) AS conversations, sum(head_seq)::bigint AS messages,
        sum(tokens)::bigint AS tokens, sum(message_bytes)::bigint AS message_bytes,
        sum(output_bytes)::bigint AS output_bytes, sum(receipt_bytes)::bigint AS receipt_bytes
    FROM ({_CONVERSATIONS}) c WHERE $1::text IS NULL OR tenant_id = $1
    GROUP BY 1 ORDER BY 5 DESC, 1
"""
_LARGEST = f"""
    SELECT coalesce(own_id, conversation_id::text) AS conversation, tenant_id AS tenant,
        head_seq AS messages, tokens, message_bytes, output_bytes, receipt_bytes
    FROM ({_CONVERSATIONS}) c WHERE $1::text IS NULL OR tenant_id = $1
    ORDER BY message_bytes + output_bytes + receipt_bytes DESC, conversation_id LIMIT $2
"""

Usage = dict[str, list[dict[str, Any]]]
"""Rows by what they are of: `tables`, `tenants` and `conversations`."""


async def usage_of(url: str, largest: int, tenant_id: str | None = None) -> Usage:
    """Return the sizes in bytes, largest first, perhaps of a tenant alone.

    Raises DatabaseUnusable.

    The bytes of a table are those on disk, with the space that updates have left. Those of messages
    and receipts are as PostgreSQL stores them (compressed, without indexes), those of outputs
    before compression. The number of rows of a table is PostgreSQL's estimate.
    """
    async with snapshot(url) as connection:
        of_tenants = {
            "tenants": await connection.fetch(_BY_TENANT, tenant_id),
            "conversations": await connection.fetch(_LARGEST, tenant_id, largest),
        }
        found = (
            of_tenants if tenant_id else {"tables": await connection.fetch(_TABLES)} | of_tenants
        )
        return {name: [dict(row) for row in rows] for name, rows in found.items()}
