"""Tenants in PostgreSQL: keys, limits, creation keys.

A creation key is the idempotency key of a request that creates a resource outside a conversation.
"""

from __future__ import annotations

from app.database.connections import Statement
from app.database.sql import delete_some, equal, insert
from app.database.tables import CONVERSATION_TABLES, TABLES

_TENANT = equal("tenant_id")

ADD = Statement(f"{insert('tenants', 'tenant_id')} ON CONFLICT (tenant_id) DO NOTHING")
SET_LIMITS = Statement(f"""
    {insert("tenants", "tenant_id", "requests_per_minute", "summarizer_calls_per_hour")}
    ON CONFLICT (tenant_id) DO UPDATE
    SET requests_per_minute = excluded.requests_per_minute,
        summarizer_calls_per_hour = excluded.summarizer_calls_per_hour
""")
FIND_LIMITS = Statement(f"SELECT * FROM tenants WHERE {_TENANT}")
LIST_LIMITS = Statement("SELECT * FROM tenants ORDER BY tenant_id")
ADD_SUMMARISER_CALL = Statement("""
    INSERT INTO tenants AS t (tenant_id, summarizer_hour, summarizer_calls)
    VALUES (:tenant_id, CAST(:hour AS timestamptz), 1)
    ON CONFLICT (tenant_id) DO UPDATE
    SET summarizer_hour = excluded.summarizer_hour,
        summarizer_calls = 1 + CASE
            WHEN t.summarizer_hour = excluded.summarizer_hour THEN t.summarizer_calls ELSE 0
        END
    RETURNING summarizer_calls
""")
SOME_CONVERSATIONS = Statement(
    f"SELECT conversation_id FROM conversations WHERE {_TENANT} LIMIT :limit"
)
REVOKE_KEYS = Statement(
    f"UPDATE api_keys SET revoked_at = least(revoked_at, statement_timestamp()) WHERE {_TENANT}"
)
DELETE = {
    table: Statement(delete_some(table, _TENANT), is_long=True)
    for table in reversed([*TABLES])  # the tenant's own row is the last
    if "tenant_id" in TABLES[table].columns and table not in (*CONVERSATION_TABLES, "api_keys")
}

ADD_KEY = Statement(
    insert(
        "api_keys",
        *("key_id", "tenant_id", "name", "secret_hash", "created_at", "expires_at", "read_only"),
    )
)
FIND_KEY = Statement("SELECT * FROM api_keys WHERE key_id = :key_id")
LIST_KEYS = Statement("""
    SELECT * FROM api_keys WHERE :tenant_id IS NULL OR tenant_id = :tenant_id
    ORDER BY tenant_id, created_at, key_id
""")
ANY_KEY = Statement("SELECT FROM api_keys LIMIT 1")
REVOKE_KEY = Statement("""
    UPDATE api_keys SET revoked_at = coalesce(revoked_at, :at) WHERE key_id = :key_id RETURNING *
""")
EXPIRE_KEY = Statement("""
    UPDATE api_keys SET expires_at = CASE WHEN revoked_at IS NULL THEN :at ELSE expires_at END
    WHERE key_id = :key_id RETURNING *
""")
