"""Limits and used quotas of tenants in PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any

from app.adapters.postgres.common.connections import Session, Statement
from app.domain.tenancy.quotas import QuotaKind, TenantLimits

SET_LIMITS = Statement(
    """
        INSERT INTO tenants (
            tenant_id, requests_per_minute, bytes_per_day, summarizer_calls_per_hour,
            storage_bytes
        )
        VALUES (CAST(:tenant_id AS text), CAST(:requests_per_minute AS bigint),
            CAST(:bytes_per_day AS bigint), CAST(:summarizer_calls_per_hour AS bigint),
            CAST(:storage_bytes AS bigint))
        ON CONFLICT (tenant_id) DO UPDATE
        SET requests_per_minute = excluded.requests_per_minute,
            bytes_per_day = excluded.bytes_per_day,
            summarizer_calls_per_hour = excluded.summarizer_calls_per_hour,
            storage_bytes = excluded.storage_bytes
        """
)
FIND_LIMITS = Statement("SELECT * FROM tenants WHERE tenant_id = CAST(:tenant_id AS text)")
LIST_LIMITS = Statement("SELECT * FROM tenants ORDER BY tenant_id")
ADD_USE = Statement(
    """
        INSERT INTO allowances AS a (tenant_id, kind, window_start, taken)
        VALUES (CAST(:tenant_id AS text), CAST(:kind AS text),
            CAST(:window_start AS timestamptz), CAST(:amount AS bigint))
        ON CONFLICT (tenant_id, kind, window_start) DO UPDATE SET taken = a.taken + excluded.taken
        RETURNING taken
        """
)


class QuotaRepository:
    """Stores the limits of tenants and what is used of their quotas."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def set_limits(self, tenant_id: str, limits: TenantLimits) -> None:
        await self._session.run(
            SET_LIMITS,
            tenant_id=tenant_id,
            **asdict(limits),
        )

    async def find_limits(self, tenant_id: str) -> TenantLimits | None:
        row = await self._session.first(FIND_LIMITS, tenant_id=tenant_id)
        return _limits_from(row) if row is not None else None

    async def list_limits(self) -> Mapping[str, TenantLimits]:
        return {row["tenant_id"]: _limits_from(row) for row in await self._session.all(LIST_LIMITS)}

    async def add_use(
        self, tenant_id: str, kind: QuotaKind, window_start: datetime, amount: int
    ) -> int:
        row = await self._session.first(
            ADD_USE, tenant_id=tenant_id, kind=kind.value, window_start=window_start, amount=amount
        )
        assert row is not None
        return int(row["taken"])


def _limits_from(row: Any) -> TenantLimits:
    return TenantLimits(**{field.name: row[field.name] for field in fields(TenantLimits)})
