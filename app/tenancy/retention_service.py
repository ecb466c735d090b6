"""Deletion of rows and conversations by age, in the background.

1. Rows are deleted in small batches, so that no append waits for a lock. What one run does not
   reach, because the database is unavailable or the process ends, the next run deletes.
2. Several workers may run at the same time: rows that one has locked are skipped by the others.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from app.common.errors import ServiceUnavailable
from app.repositories import Database
from app.tenancy.retention_periods import RetainedKind, Retention

_BATCH = 5_000
_CONVERSATION_BATCH = 500
_LOWEST_ID = "00000000-0000-0000-0000-000000000000"

RemoveIdle = Callable[[str, str, datetime], Awaitable[bool]]
"""Deletes a conversation of a tenant if it has been idle since a time."""
RemoveExpired = Callable[[str, str], Awaitable[bool]]
"""Deletes a conversation of a tenant if its expiry has passed."""
RemoveImports = Callable[[], Awaitable[int]]
"""Deletes imports that a crash has left, and returns their number."""

_log = logging.getLogger("app.retention")


@dataclass(eq=False, repr=False)
class RetentionService:
    """Deletes rows and conversations that reached their age."""

    _database: Database
    _retention: Retention
    _remove_idle: RemoveIdle
    _remove_expired: RemoveExpired
    _now: Callable[[], datetime]
    _remove_imports: RemoveImports | None = None

    async def delete_expired(self) -> Mapping[str, int]:
        """Delete everything that reached its age; returns the number deleted by kind.

        Raises ServiceUnavailable when conversations cannot be read; the other kinds are done then.
        """
        counts: Counter[str] = Counter()
        for kind, age in self._retention.max_ages.items():
            try:
                counts[kind] = await self._delete(kind, self._now() - age)
            except ServiceUnavailable as error:
                _log_failure(kind.value, error)
        if self._remove_imports is not None:
            counts["imports"] = await self._remove_imports()
        if self._retention.conversations is not None:
            before = self._now() - self._retention.conversations
            counts["conversations"] = await self._delete_conversations(before)
        return +counts

    async def delete_expired_conversations(self) -> int:
        """Delete the conversations whose own expiry has passed; returns their number.

        One that cannot be deleted now is tried again by the next run. [log.expiry]
        """
        deleted = 0
        while True:
            async with self._database.session() as session:
                page = await session.retention.list_expired(_CONVERSATION_BATCH)
            deleted_before = deleted
            for tenant_id, conversation_id in page:
                try:
                    deleted += await self._remove_expired(tenant_id, conversation_id)
                except ServiceUnavailable as error:
                    _log_failure(conversation_id, error)
            if len(page) < _CONVERSATION_BATCH or deleted == deleted_before:
                return deleted

    async def _delete(self, kind: RetainedKind, before: datetime) -> int:
        total, deleted = 0, _BATCH
        while deleted == _BATCH:
            async with self._database.transaction() as session:
                deleted = await session.retention.delete(kind, before, _BATCH)
            total += deleted
        return total

    async def _delete_conversations(self, before: datetime) -> int:
        deleted, after = 0, _LOWEST_ID
        while True:
            async with self._database.session() as session:
                page = await session.retention.list_conversations(
                    after, before, _CONVERSATION_BATCH
                )
            if not page:
                return deleted
            for tenant_id, conversation_id, is_idle in page:
                if not is_idle:
                    continue
                try:
                    deleted += await self._remove_idle(tenant_id, conversation_id, before)
                except ServiceUnavailable as error:  # continue with the next conversation
                    _log_failure(conversation_id, error)
            after = page[-1][1]


def _log_failure(what: str, error: ServiceUnavailable) -> None:
    data = {"what": what, "reason": error.facts.get("reason")}
    _log.warning("expired_data_not_deleted", extra={"data": data})
