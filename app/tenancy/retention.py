"""Deletion of rows and conversations by age, in the background.

1. Messages and everything derived from them are kept for ever unless the operator sets a limit.
2. Rows are deleted in small batches, so that no append waits for a lock. What one run does not
   reach, because the database is unavailable or the process ends, the next run deletes.
3. Several workers may run at the same time: rows that one has locked are skipped by the others.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from app.common.errors import ServiceUnavailable
from app.repositories import Database
from app.tenancy.repository import RetainedKind

_BATCH = 5_000
_CONVERSATION_BATCH = 500
_LOWEST_ID = "00000000-0000-0000-0000-000000000000"
_log = logging.getLogger("app.retention")


@dataclass(frozen=True, slots=True)
class Retention:
    """How long rows are kept; None is for ever.

    The age of a conversation counts from its last append or change. It is deleted with everything
    that belongs to it, unless it is in a snapshot. The age of a job counts from its end.
    """

    conversations: timedelta | None = None
    events: timedelta | None = None
    jobs: timedelta | None = timedelta(days=30)

    @property
    def max_ages(self) -> Mapping[RetainedKind, timedelta]:
        """The age at which rows of each kind are deleted."""
        chosen = {
            RetainedKind.EVENTS: self.events,
            RetainedKind.JOBS: self.jobs,
            # Idempotency keys hold for 24 hours.
            RetainedKind.IDEMPOTENCY_KEYS: timedelta(days=1),
            RetainedKind.CREATIONS: timedelta(days=1),
        }
        return {kind: age for kind, age in chosen.items() if age is not None}


@dataclass(eq=False, repr=False)
class RetentionService:
    """Deletes rows and conversations that reached their age.

    The callables delete a conversation of a tenant if it has been idle since a time, or if its
    expiry has passed, and the imports that a crash has left.
    """

    _database: Database
    _retention: Retention
    _remove_idle: Callable[[str, str, datetime], Awaitable[bool]]
    _remove_expired: Callable[[str, str], Awaitable[bool]]
    _now: Callable[[], datetime]
    _remove_imports: Callable[[], Awaitable[int]] | None = None

    async def delete_expired(self) -> Mapping[str, int]:
        """Delete everything that reached its age; returns the number deleted by kind.

        Raises ServiceUnavailable when conversations cannot be read; the other kinds are done then.
        """
        counts: Counter[str] = Counter()
        for kind, age in self._retention.max_ages.items():
            before, deleted = self._now() - age, _BATCH
            try:
                while deleted == _BATCH:
                    async with self._database.transaction() as session:
                        deleted = await session.tenants.delete_old(kind, before, _BATCH)
                    counts[kind] += deleted
            except ServiceUnavailable as error:
                _log_failure(kind.value, error)
        if self._remove_imports is not None:
            counts["imports"] = await self._remove_imports()
        if self._retention.conversations is not None:
            before = self._now() - self._retention.conversations
            counts["conversations"] = await self._delete_idle(before)
        return +counts

    async def delete_expired_conversations(self) -> int:
        """Delete the conversations whose own expiry has passed; returns their number.

        One that cannot be deleted now is tried again by the next run. [log.expiry]
        """
        deleted = 0
        while True:
            async with self._database.session() as session:
                page = await session.tenants.list_expired(_CONVERSATION_BATCH)
            deleted_before = deleted
            for tenant_id, conversation_id in page:
                deleted += await _unless_unavailable(
                    conversation_id, self._remove_expired(tenant_id, conversation_id)
                )
            if len(page) < _CONVERSATION_BATCH or deleted == deleted_before:
                return deleted

    async def _delete_idle(self, before: datetime) -> int:
        deleted, after = 0, _LOWEST_ID
        while True:
            async with self._database.session() as session:
                page = await session.tenants.list_idle(after, before, _CONVERSATION_BATCH)
            if not page:
                return deleted
            for tenant_id, conversation_id, is_idle in page:
                if is_idle:
                    deleted += await _unless_unavailable(
                        conversation_id, self._remove_idle(tenant_id, conversation_id, before)
                    )
            after = page[-1][1]


async def _unless_unavailable(conversation_id: str, removal: Awaitable[bool]) -> bool:
    """Wait for a removal, and go on with the next conversation where it fails."""
    try:
        return await removal
    except ServiceUnavailable as error:
        _log_failure(conversation_id, error)
        return False


def _log_failure(what: str, error: ServiceUnavailable) -> None:
    data = {"what": what, "reason": error.facts.get("reason")}
    _log.warning("expired_data_not_deleted", extra={"data": data})
