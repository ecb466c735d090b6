"""All rows of a tenant, deleted in batches."""

from __future__ import annotations

from app.database.connections import Statement
from app.database.repository import Repository
from app.database.sql import delete_some, equal

_TENANT = equal("tenant_id")
SOME_CONVERSATIONS = Statement(
    f"SELECT conversation_id FROM conversations WHERE {_TENANT} LIMIT :limit"
)
REVOKE_KEYS = Statement(
    f"UPDATE api_keys SET revoked_at = least(revoked_at, statement_timestamp()) WHERE {_TENANT}"
)
DELETE = {
    table: Statement(delete_some(table, _TENANT), is_long=True)
    for table in (
        *("snapshot_messages", "snapshots", "agent_versions", "agents", "models", "calibrations"),
        *("creations", "tenant_usage", "tenants"),
    )
}


class TenantDataRepository(Repository):
    """Deletes what a tenant has."""

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
