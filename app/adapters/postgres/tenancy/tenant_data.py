"""All rows of a tenant, listed for an export and deleted in batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from app.adapters.postgres.common.connections import Session, Statement
from app.adapters.postgres.common.rows import plain
from app.domain.conversations.active_window import EARLIEST_TIME

# Oldest first: what is created meanwhile is listed at the end.
LIST_CONVERSATIONS = Statement(
    """
        SELECT conversation_id, created_at FROM conversations
        WHERE tenant_id = CAST(:tenant_id AS text)
            AND (created_at, conversation_id)
                > (CAST(:after_time AS timestamptz), CAST(:after_id AS uuid))
        ORDER BY created_at, conversation_id
        LIMIT CAST(:limit AS bigint)
        """
)
_TENANT = "tenant_id = CAST(:tenant_id AS text)"
_ROWS: Mapping[str, tuple[str, tuple[str, ...], int]] = {
    "agents": ("agents", ("agent_id",), 20),
    "agent_versions": ("agent_versions", ("agent_id", "kind", "version"), 20),
    "models": ("models", ("model",), 100),
    "snapshots": ("snapshots", ("session_id",), 20),
    "snapshot_parts": ("snapshot_parts", ("session_id", "conversation_id"), 100),
    "snapshot_messages": ("snapshot_messages", ("session_id", "position"), 20),
}
_TYPES = {"version": "bigint", "position": "bigint", "conversation_id": "uuid"}
_LOWEST: Mapping[str, Any] = {"version": -1, "position": -1, "conversation_id": UUID(int=0)}


def _page(table: str, keys: Sequence[str]) -> Statement:
    after = ", ".join(f"CAST(:after_{key} AS {_TYPES.get(key, 'text')})" for key in keys)
    return Statement(
        f"""
        SELECT * FROM {table}
        WHERE {_TENANT} AND ({", ".join(keys)}) > ({after})
        ORDER BY {", ".join(keys)} LIMIT CAST(:limit AS bigint)
        """,
        is_long=True,
    )


PAGES = {name: _page(table, keys) for name, (table, keys, _) in _ROWS.items()}
REVOKE_KEYS = Statement(
    f"""
        UPDATE api_keys SET revoked_at = least(revoked_at, statement_timestamp())
        WHERE {_TENANT}
        """
)
_DELETED: Mapping[str, str] = {
    "snapshot_messages": "tenant_id, session_id, position",
    "snapshots": "tenant_id, session_id",
    "agent_versions": "tenant_id, agent_id, kind, version",
    "agents": "tenant_id, agent_id",
    "models": "tenant_id, model",
    "calibrations": "tenant_id, model, counter",
    "creations": "tenant_id, key",
    "allowances": "tenant_id, kind, window_start",
    "tenant_usage": "tenant_id, agent_id, day, model, purpose",
    "settings_versions": "tenant_id",
    "tenants": "tenant_id",
}
DELETE = {
    table: Statement(
        f"""
        DELETE FROM {table} WHERE ({key}) IN (
            SELECT {key} FROM {table} WHERE {_TENANT} LIMIT CAST(:limit AS bigint)
        )
        """,
        is_long=True,
    )
    for table, key in _DELETED.items()
}


class TenantDataRepository:
    """Lists and deletes what a tenant has."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def conversations(
        self, tenant_id: str, after: tuple[datetime, str] | None, limit: int
    ) -> list[tuple[datetime, str]]:
        time, conversation_id = after or (EARLIEST_TIME, str(UUID(int=0)))
        rows = await self._session.all(
            LIST_CONVERSATIONS,
            tenant_id=tenant_id,
            after_time=time,
            after_id=UUID(conversation_id),
            limit=limit,
        )
        return [(row["created_at"], str(row["conversation_id"])) for row in rows]

    async def page(
        self, table: str, tenant_id: str, after: Mapping[str, Any] | None
    ) -> list[Mapping[str, Any]]:
        _, keys, limit = _ROWS[table]
        start = after or {key: _LOWEST.get(key, "") for key in keys}
        rows = await self._session.all(
            PAGES[table],
            tenant_id=tenant_id,
            limit=limit,
            **{f"after_{key}": start[key] for key in keys},
        )
        return [{name: plain(value) for name, value in row.items()} for row in rows]

    async def revoke_keys(self, tenant_id: str) -> int:
        return await self._session.run(REVOKE_KEYS, tenant_id=tenant_id)

    async def delete(self, table: str, tenant_id: str, limit: int) -> int:
        return await self._session.run(DELETE[table], tenant_id=tenant_id, limit=limit)
