"""Tenants in PostgreSQL: their limits, model entries and creation keys, and their deletion.

A creation key is the idempotency key of a request that creates a resource outside a conversation.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from app.database.connections import Statement
from app.database.conversation_tables import CONVERSATION_TABLES
from app.database.repository import Repository
from app.database.sql import delete_some, equal, fields_of, insert, read
from app.database.tables import TABLES
from app.tenancy.tenant_limits import TenantLimits

ADD = Statement(f"{insert('tenants', 'tenant_id')} ON CONFLICT (tenant_id) DO NOTHING")
DISABLE = Statement("UPDATE tenants SET disabled_at = :at WHERE tenant_id = :tenant_id")
LIST_DISABLED = Statement("SELECT tenant_id FROM tenants WHERE disabled_at IS NOT NULL")
FIND_CREATION = Statement(
    """
        SELECT request_hash, resource_id FROM creations
        WHERE tenant_id = :tenant_id AND key = :key AND created_at > now() - interval '24 hours'
        """
)
# The key's row is inserted before the resource, so that of two equal concurrent requests the second
# waits for the first and then finds its resource.
ADD_CREATION = Statement(
    f"""
        {insert("creations", "tenant_id", "key", "request_hash", "resource_id", created_at="now()")}
        ON CONFLICT (tenant_id, key) DO UPDATE
        SET request_hash = excluded.request_hash, resource_id = excluded.resource_id,
            created_at = excluded.created_at
        WHERE excluded.created_at - creations.created_at >= interval '24 hours'
        """
)
ADD_MODEL = Statement(
    f"""
        {insert("models", "tenant_id", "model", "entry", updated_at="statement_timestamp()")}
        ON CONFLICT (tenant_id, model) DO UPDATE
        SET entry = excluded.entry, updated_at = excluded.updated_at
        """
)
LIST_MODELS = Statement(
    "SELECT model, entry FROM models WHERE tenant_id = :tenant_id ORDER BY model"
)
_IS_MODEL = equal("tenant_id", "model")
FIND_MODEL = Statement(f"SELECT entry FROM models WHERE {_IS_MODEL}")
REMOVE_MODEL = Statement(f"DELETE FROM models WHERE {_IS_MODEL}")

SET_LIMITS = Statement(
    f"""
        {insert("tenants", "tenant_id", "requests_per_minute", "summarizer_calls_per_hour")}
        ON CONFLICT (tenant_id) DO UPDATE
        SET requests_per_minute = excluded.requests_per_minute,
            summarizer_calls_per_hour = excluded.summarizer_calls_per_hour
        """
)
FIND_LIMITS = Statement("SELECT * FROM tenants WHERE tenant_id = :tenant_id")
LIST_LIMITS = Statement("SELECT * FROM tenants ORDER BY tenant_id")
ADD_SUMMARIZER_CALL = Statement(
    """
        INSERT INTO tenants AS t (tenant_id, summarizer_hour, summarizer_calls)
        VALUES (:tenant_id, CAST(:hour AS timestamptz), 1)
        ON CONFLICT (tenant_id) DO UPDATE
        SET summarizer_hour = excluded.summarizer_hour,
            summarizer_calls = 1 + CASE
                WHEN t.summarizer_hour = excluded.summarizer_hour THEN t.summarizer_calls ELSE 0
            END
        RETURNING summarizer_calls
        """
)
_TENANT = equal("tenant_id")
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


class TenantRepository(Repository):
    """Stores tenants and what belongs to them alone."""

    async def add(self, tenant_id: str) -> None:
        """Add a tenant with default limits, unless it exists."""
        await self._session.run(ADD, tenant_id=tenant_id)

    async def set_disabled(self, tenant_id: str, at: datetime | None) -> bool:
        """Set since when the keys of a tenant are refused, None for no more; False if unknown."""
        return await self._session.run(DISABLE, tenant_id=tenant_id, at=at) == 1

    async def list_disabled(self) -> frozenset[str]:
        """Return the disabled tenants."""
        rows = await self._session.all(LIST_DISABLED)
        return frozenset(row["tenant_id"] for row in rows)

    async def find_creation(self, tenant_id: str, key: str) -> tuple[str, str] | None:
        """Return the request hash and the resource id stored for an idempotency key."""
        row = await self._session.first(FIND_CREATION, tenant_id=tenant_id, key=key)
        return tuple(row) if row is not None else None

    async def add_creation(
        self, tenant_id: str, key: str, request_hash: str, resource_id: str
    ) -> bool:
        """Store a key for 24 hours; False when an equal request stored it first."""
        values = {"request_hash": request_hash, "resource_id": resource_id}
        return await self._session.run(ADD_CREATION, tenant_id=tenant_id, key=key, **values) == 1

    async def set_model(self, tenant_id: str, model: str, entry: str) -> None:
        """Add or replace the tenant's entry for a model."""
        await self._session.run(ADD_MODEL, tenant_id=tenant_id, model=model, entry=entry)

    async def find_model(self, tenant_id: str, model: str) -> str | None:
        """Return the tenant's own entry for a model, or None."""
        entry: str | None = await self._session.value(FIND_MODEL, tenant_id=tenant_id, model=model)
        return entry

    async def list_models(self, tenant_id: str) -> list[tuple[str, str]]:
        """Return the tenant's own entries, by model name."""
        rows = await self._session.all(LIST_MODELS, tenant_id=tenant_id)
        return list(map(tuple, rows))

    async def remove_model(self, tenant_id: str, model: str) -> bool:
        """Delete the tenant's own entry; False when there was none."""
        return await self._session.run(REMOVE_MODEL, tenant_id=tenant_id, model=model) == 1

    async def set_limits(self, tenant_id: str, limits: TenantLimits) -> None:
        """Store limits for a tenant, which is added if it does not exist."""
        await self._session.run(SET_LIMITS, tenant_id=tenant_id, **fields_of(limits))

    async def find_limits(self, tenant_id: str) -> TenantLimits | None:
        """Return the stored limits of a tenant, None for an unknown tenant."""
        row = await self._session.first(FIND_LIMITS, tenant_id=tenant_id)
        return read(TenantLimits, row) if row is not None else None

    async def list_limits(self) -> Mapping[str, TenantLimits]:
        """Return the stored limits by tenant."""
        rows = await self._session.all(LIST_LIMITS)
        return {row["tenant_id"]: read(TenantLimits, row) for row in rows}

    async def add_summarizer_call(self, tenant_id: str, hour: datetime) -> int:
        """Count a call of the summariser; returns the calls of this hour."""
        return int(await self._session.value(ADD_SUMMARIZER_CALL, tenant_id=tenant_id, hour=hour))

    async def conversations(self, tenant_id: str, limit: int) -> list[str]:
        """Return ids of some conversations."""
        rows = await self._session.all(SOME_CONVERSATIONS, tenant_id=tenant_id, limit=limit)
        return [str(row["conversation_id"]) for row in rows]

    async def revoke_keys(self, tenant_id: str) -> int:
        """Revoke the keys of a tenant; return their number, with those revoked before."""
        return await self._session.run(REVOKE_KEYS, tenant_id=tenant_id)

    async def delete(self, table: str, tenant_id: str, limit: int) -> int:
        """Delete some of a tenant's rows of a table; return their number."""
        return await self._session.run(DELETE[table], tenant_id=tenant_id, limit=limit)
