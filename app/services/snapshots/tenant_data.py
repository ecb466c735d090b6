"""Export and deletion of all data of a tenant [tenancy.export, tenancy.delete].

1. An export has a line for each row of an agent, a model and a snapshot, then the export of each
   conversation, and a last line with the counts. The lines of a conversation, from the type
   `export` to the type `end`, can be imported alone.
2. A deletion revokes the keys first, then deletes conversation by conversation and the other rows
   in batches. The tenant's own row is the last, so that an interrupted deletion is repeated.
   Revoked keys, their uses and the audit stay, as they do for every tenant: a service that had keys
   never accepts requests without one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from datetime import datetime
from types import MappingProxyType

from app.domain.common import json_text
from app.domain.common.errors import NotFound
from app.domain.snapshots.exports import VERSION
from app.domain.tenancy.audit import NO_ACTOR, Actor, AuditAction
from app.services.conversations.conversations import ConversationService
from app.services.ports import Database
from app.services.snapshots.exports import ExportService

_TENANT_FORMAT = "context-service.tenant"
_EXPORTED = (
    *("agents", "agent_versions", "models"),
    *("snapshots", "snapshot_parts", "snapshot_messages"),
)
_DELETED = (
    *("snapshot_messages", "snapshots", "agent_versions", "agents", "models", "calibrations"),
    *("creations", "allowances", "tenant_usage", "events"),
    # Deleting agents and models counts a version.
    *("settings_versions", "tenants"),
)
_CONVERSATIONS_PER_PAGE = 100
_ROWS_PER_DELETION = 1_000


class TenantDataService:
    """Exports and deletes what a tenant has."""

    def __init__(
        self,
        database: Database,
        conversations: ConversationService,
        exports: ExportService,
        actor: Actor = NO_ACTOR,
    ) -> None:
        self._database = database
        self._conversations = conversations
        self._exports = exports
        self._actor = actor

    async def export(self, tenant_id: str) -> AsyncGenerator[bytes]:
        """Yield the lines of an export of a tenant (rule 1)."""
        counts: Counter[str] = Counter()
        await self._record(tenant_id, AuditAction.TENANT_EXPORTED)
        first = {"type": "tenant", "format": _TENANT_FORMAT, "version": VERSION}
        yield json_text.dump_stored({**first, "tenant_id": tenant_id}) + b"\n"
        for table in _EXPORTED:
            after = None
            while True:
                async with self._database.session() as session:
                    page = await session.tenant_data.page(table, tenant_id, after)
                if not page:
                    break
                after = page[-1]
                counts[table] += len(page)
                for row in page:
                    own = {name: value for name, value in row.items() if name != "tenant_id"}
                    yield json_text.dump_stored({"type": table, **own}) + b"\n"
        last: tuple[datetime, str] | None = None
        while conversations := await self._page(tenant_id, last):
            last = conversations[-1]
            for _, conversation_id in conversations:
                async with aclosing(self._exports.export(tenant_id, conversation_id)) as lines:
                    try:
                        async for piece in lines:
                            yield piece
                    except NotFound:  # deleted meanwhile, before its first line
                        continue
                counts["conversations"] += 1
        yield json_text.dump_stored({"type": "tenant_end", "counts": dict(counts)}) + b"\n"

    async def delete(self, tenant_id: str) -> Mapping[str, int]:
        """Delete everything of a tenant; return the numbers of rows by table (rule 2)."""
        counts: Counter[str] = Counter()
        async with self._database.transaction() as session:
            counts["revoked_keys"] = await session.tenant_data.revoke_keys(tenant_id)
            await session.audit.add(
                tenant_id, AuditAction.TENANT_DELETION_BEGUN, tenant_id, self._actor, {}
            )
        while conversations := await self._page(tenant_id, None):
            for _, conversation_id in conversations:
                try:
                    counts.update(await self._conversations.remove(tenant_id, conversation_id))
                except NotFound:  # expired, or deleted meanwhile
                    await self._conversations.remove_expired(tenant_id, conversation_id)
        for table in _DELETED:
            deleted = _ROWS_PER_DELETION
            while deleted == _ROWS_PER_DELETION:
                async with self._database.session() as session:
                    deleted = await session.tenant_data.delete(table, tenant_id, _ROWS_PER_DELETION)
                counts[table] += deleted
        await self._record(tenant_id, AuditAction.TENANT_DELETED, +counts)
        return +counts

    async def _record(
        self, tenant_id: str, action: AuditAction, details: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        async with self._database.session() as session:
            await session.audit.add(tenant_id, action, tenant_id, self._actor, dict(details))

    async def _page(
        self, tenant_id: str, after: tuple[datetime, str] | None
    ) -> list[tuple[datetime, str]]:
        async with self._database.session() as session:
            return await session.tenant_data.conversations(
                tenant_id, after, _CONVERSATIONS_PER_PAGE
            )
