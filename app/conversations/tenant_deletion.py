"""Deletion of all data of a tenant [tenancy.delete].

It revokes the keys first, then deletes conversation by conversation and the other rows in batches.
The tenant's own row is the last, so that an interrupted deletion is repeated. Revoked keys stay, as
they do for every tenant: a service that had keys never accepts requests without one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from app.common.errors import NotFound
from app.conversations.service import ConversationService
from app.repositories import Database
from app.tenancy.repository import DELETE, REVOKE_KEYS, SOME_CONVERSATIONS

_CONVERSATIONS_AT_ONCE = 100
_ROWS_PER_DELETION = 1_000


class TenantDeletion:
    """Deletes what a tenant has."""

    def __init__(self, database: Database, conversations: ConversationService) -> None:
        self._database = database
        self._conversations = conversations

    async def delete(self, tenant_id: str) -> Mapping[str, int]:
        """Delete everything of a tenant; return the numbers of rows by table."""
        counts: Counter[str] = Counter()
        async with self._database.session() as session:
            counts["revoked_keys"] = await session.session.run(REVOKE_KEYS, tenant_id=tenant_id)
        while conversation_ids := await self._some_conversations(tenant_id):
            for conversation_id in conversation_ids:
                try:
                    counts.update(await self._conversations.remove(tenant_id, conversation_id))
                except NotFound:  # expired, or deleted meanwhile
                    await self._conversations.remove_expired(tenant_id, conversation_id)
        for table in DELETE:
            deleted = _ROWS_PER_DELETION
            while deleted == _ROWS_PER_DELETION:
                async with self._database.session() as session:
                    deleted = await session.session.run(
                        DELETE[table], tenant_id=tenant_id, limit=_ROWS_PER_DELETION
                    )
                counts[table] += deleted
        return +counts

    async def _some_conversations(self, tenant_id: str) -> list[str]:
        async with self._database.session() as session:
            rows = await session.session.all(
                SOME_CONVERSATIONS, tenant_id=tenant_id, limit=_CONVERSATIONS_AT_ONCE
            )
        return [str(row["conversation_id"]) for row in rows]
