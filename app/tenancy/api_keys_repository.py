"""API keys in PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime

from app.database.connections import Statement
from app.database.repository import Repository
from app.database.sql import insert, read
from app.tenancy.api_keys import ApiKey

ADD = Statement(
    insert(
        "api_keys",
        *("key_id", "tenant_id", "name", "secret_hash", "created_at", "expires_at", "read_only"),
    )
)
_KEYS = """
    SELECT k.*, t.disabled_at IS NOT NULL AS is_disabled
    FROM api_keys k LEFT JOIN tenants t ON t.tenant_id = k.tenant_id
"""
FIND = Statement(f"{_KEYS} WHERE k.key_id = :key_id")
LIST = Statement(
    f"""
        {_KEYS} WHERE :tenant_id IS NULL OR k.tenant_id = :tenant_id
        ORDER BY k.tenant_id, k.created_at, k.key_id
        """
)
EXISTS = Statement("SELECT FROM api_keys LIMIT 1")
REVOKE = Statement(
    """
        UPDATE api_keys SET revoked_at = coalesce(revoked_at, :at)
        WHERE key_id = :key_id
        RETURNING *, false AS is_disabled
        """
)
EXPIRE = Statement("UPDATE api_keys SET expires_at = :at WHERE key_id = :key_id")
SET_LAST_USED = Statement(
    """
        UPDATE api_keys k SET last_used_at = greatest(k.last_used_at, used.at)
        FROM unnest(CAST(:key_ids AS text[]), CAST(:times AS timestamptz[])) AS used (key_id, at)
        WHERE k.key_id = used.key_id
        """
)


class ApiKeyRepository(Repository):
    """Stores API keys."""

    async def add(self, key: ApiKey) -> None:
        """Store a new key."""
        await self._session.run(ADD, **asdict(key))

    async def find(self, key_id: str) -> ApiKey | None:
        """Return a key, revoked or not."""
        row = await self._session.first(FIND, key_id=key_id)
        return read(ApiKey, row) if row is not None else None

    async def list_keys(self, tenant_id: str | None) -> list[ApiKey]:
        """Return the keys of a tenant, or all."""
        return [read(ApiKey, row) for row in await self._session.all(LIST, tenant_id=tenant_id)]

    async def any(self) -> bool:
        """Return whether any key exists, revoked or not."""
        return await self._session.first(EXISTS) is not None

    async def revoke(self, key_id: str, at: datetime) -> ApiKey | None:
        """Set the time of revocation unless it is set; returns the key, None if unknown."""
        row = await self._session.first(REVOKE, key_id=key_id, at=at)
        return read(ApiKey, row) if row is not None else None

    async def expire(self, key_id: str, at: datetime | None) -> None:
        """Let a key expire at this time, unless it expires before."""
        await self._session.run(EXPIRE, key_id=key_id, at=at)

    async def set_last_used(self, used: Mapping[str, datetime]) -> None:
        """Set the times of the last uses by key, unless a later one is stored."""
        await self._session.run(SET_LAST_USED, key_ids=list(used), times=list(used.values()))
