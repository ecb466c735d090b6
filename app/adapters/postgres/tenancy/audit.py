"""The audit in PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from app.adapters.postgres.common.connections import Session, Statement
from app.domain.common import json_text
from app.domain.tenancy.audit import Actor, AuditAction, AuditEntry

ADD = Statement(
    """
        INSERT INTO audit (tenant_id, audit_id, at, action, subject, key_id, account, details)
        VALUES (CAST(:tenant_id AS text), gen_random_uuid(), clock_timestamp(),
            CAST(:action AS text), CAST(:subject AS text), CAST(:key_id AS text),
            CAST(:account AS text), CAST(:details AS text))
        """
)
PAGE = Statement(
    """
        SELECT * FROM audit
        WHERE at >= CAST(:since AS timestamptz) AND at < CAST(:until AS timestamptz)
            AND (at, audit_id) > (CAST(:after_at AS timestamptz), CAST(:after_id AS uuid))
            AND (CAST(:tenant_id AS text) IS NULL OR tenant_id = CAST(:tenant_id AS text))
        ORDER BY at, audit_id LIMIT CAST(:limit AS bigint)
        """,
    is_long=True,
)


class AuditRepository:
    """Stores entries of the audit."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def add(
        self,
        tenant_id: str,
        action: AuditAction,
        subject: str,
        actor: Actor,
        details: Mapping[str, Any],
    ) -> None:
        await self._session.run(
            ADD,
            tenant_id=tenant_id,
            action=action,
            subject=subject,
            key_id=actor.key_id,
            account=actor.account,
            details=json_text.dumps(details),
        )

    async def page(
        self,
        tenant_id: str | None,
        since: datetime,
        until: datetime,
        after: AuditEntry | None,
        limit: int,
    ) -> list[AuditEntry]:
        rows = await self._session.all(
            PAGE,
            tenant_id=tenant_id,
            since=since,
            until=until,
            after_at=after.at if after is not None else since,
            after_id=UUID(after.audit_id) if after is not None else UUID(int=0),
            limit=limit,
        )
        return [_entry_from(row) for row in rows]


def _entry_from(row: Any) -> AuditEntry:
    own = {"audit_id": str(row["audit_id"]), "details": json_text.loads(row["details"])}
    return AuditEntry(**{**row, **own})
