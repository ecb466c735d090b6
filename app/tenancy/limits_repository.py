"""Limits of tenants and the calls of their summarisers in PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime

from app.database.connections import Statement
from app.database.repository import Repository
from app.database.sql import insert, read
from app.tenancy.tenant_limits import TenantLimits

SET = Statement(
    f"""
        {insert("tenants", "tenant_id", "requests_per_minute", "summarizer_calls_per_hour")}
        ON CONFLICT (tenant_id) DO UPDATE
        SET requests_per_minute = excluded.requests_per_minute,
            summarizer_calls_per_hour = excluded.summarizer_calls_per_hour
        """
)
FIND = Statement("SELECT * FROM tenants WHERE tenant_id = :tenant_id")
LIST = Statement("SELECT * FROM tenants ORDER BY tenant_id")
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


class LimitRepository(Repository):
    """Stores the limits of tenants and the calls of their summarisers."""

    async def set(self, tenant_id: str, limits: TenantLimits) -> None:
        """Store limits for a tenant, which is added if it does not exist."""
        await self._session.run(SET, tenant_id=tenant_id, **asdict(limits))

    async def find(self, tenant_id: str) -> TenantLimits | None:
        """Return the stored limits of a tenant, None for an unknown tenant."""
        row = await self._session.first(FIND, tenant_id=tenant_id)
        return read(TenantLimits, row) if row is not None else None

    async def all(self) -> Mapping[str, TenantLimits]:
        """Return the stored limits by tenant."""
        rows = await self._session.all(LIST)
        return {row["tenant_id"]: read(TenantLimits, row) for row in rows}

    async def add_summarizer_call(self, tenant_id: str, hour: datetime) -> int:
        """Count a call of the summariser; returns the calls of this hour."""
        return int(await self._session.value(ADD_SUMMARIZER_CALL, tenant_id=tenant_id, hour=hour))
