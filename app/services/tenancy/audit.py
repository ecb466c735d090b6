"""Reads the audit."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import datetime

from app.domain.tenancy.audit import AuditEntry
from app.services.ports import Database

_ENTRIES_PER_PAGE = 500


class AuditService:
    """Reads the audit of a tenant, or of all."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def entries(
        self, since: datetime, until: datetime, tenant_id: str | None = None
    ) -> AsyncGenerator[AuditEntry]:
        """Yield the entries from a time up to another one, oldest first, a page in memory."""
        last: AuditEntry | None = None
        while True:
            async with self._database.session() as session:
                page = await session.audit.page(tenant_id, since, until, last, _ENTRIES_PER_PAGE)
            for entry in page:
                yield entry
            if len(page) < _ENTRIES_PER_PAGE:
                return
            last = page[-1]
