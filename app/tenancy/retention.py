"""Deletion of rows by age and of conversations by their expiry, in the background.

1. Messages and everything derived from them are kept until their conversation is deleted.
2. Rows are deleted in small batches, so that no append waits for a lock. What one run does not
   reach, because the database is unavailable or the process ends, the next run deletes.
3. Several workers may run at the same time: what one deletes, the others do not find.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from app.common.errors import ServiceUnavailable
from app.database.connections import Session, Statement
from app.database.sql import delete_some
from app.repositories import Database

AGES = {
    "events": None,
    "jobs": timedelta(days=30),
    "idempotency_keys": timedelta(days=1),  # they hold for 24 hours
}
"""When rows of a table are deleted, None for what the settings say. Jobs count from their end."""
_BATCH = 5_000
_CONVERSATION_BATCH = 500
_ENDED = "AND status NOT IN ('queued', 'running') AND updated_at < CAST(:before AS timestamptz)"
_log = logging.getLogger("app.retention")

DELETE_OLD = {
    table: Statement(
        delete_some(
            table, f"created_at < CAST(:before AS timestamptz) {_ENDED if table == 'jobs' else ''}"
        ),
        is_long=True,
    )
    for table in AGES
}
LIST_EXPIRED = Statement(
    """
    SELECT tenant_id, conversation_id FROM conversations
    WHERE expires_at <= now() ORDER BY expires_at LIMIT :limit
    """,
    is_long=True,
)
LOCK_EXPIRED = Statement("""
    SELECT h.conversation_id
    FROM conversations c JOIN states h ON h.conversation_id = c.conversation_id
    WHERE c.conversation_id = :conversation_id AND c.expires_at <= now()
    FOR UPDATE OF h, c
""")


async def lock_expired(session: Session, conversation_id: str) -> bool:
    """Lock a conversation until the transaction ends; False unless its expiry has passed."""
    return await session.first(LOCK_EXPIRED, conversation_id=conversation_id) is not None


@dataclass(eq=False, repr=False)
class RetentionService:
    """Deletes rows that reached their age, and conversations whose expiry has passed.

    `event_age` is that of the settings; None is for ever. The callable deletes a conversation of a
    tenant if its expiry has passed.
    """

    _database: Database
    _event_age: timedelta | None
    _remove_expired: Callable[[str, str], Awaitable[bool]]
    _now: Callable[[], datetime]

    async def delete_expired(self) -> Mapping[str, int]:
        """Delete everything that reached its age; returns the number deleted by kind."""
        counts: Counter[str] = Counter()
        for table, usual in AGES.items():
            if (age := usual or self._event_age) is not None:
                counts[table] = await self._delete_old(table, self._now() - age)
        return +counts

    async def _delete_old(self, table: str, before: datetime) -> int:
        count, deleted = 0, _BATCH
        try:
            while deleted == _BATCH:
                async with self._database.session() as repositories:
                    session = repositories.session
                    deleted = await session.run(DELETE_OLD[table], before=before, limit=_BATCH)
                count += deleted
        except ServiceUnavailable as error:
            _log_failure(table, error)
        return count

    async def delete_expired_conversations(self) -> int:
        """Delete the conversations whose own expiry has passed; returns their number.

        One that cannot be deleted now is tried again by the next run. [log.expiry]
        """
        count = 0
        while True:
            async with self._database.session() as repositories:
                page = await repositories.session.all(LIST_EXPIRED, limit=_CONVERSATION_BATCH)
            deleted = 0
            for tenant_id, key in page:
                try:
                    deleted += await self._remove_expired(tenant_id, str(key))
                except ServiceUnavailable as error:
                    _log_failure(str(key), error)
            count += deleted
            if len(page) < _CONVERSATION_BATCH or not deleted:
                return count


def _log_failure(what: str, error: ServiceUnavailable) -> None:
    data = {"what": what, "reason": error.facts.get("reason")}
    _log.warning("expired_data_not_deleted", extra={"data": data})
