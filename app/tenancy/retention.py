"""Deletion of rows and conversations by age, in the background.

1. Messages and everything derived from them are kept for ever unless the operator sets a limit. The
   age of a conversation counts from its last append or change; one in a snapshot stays.
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
from app.database.connections import Session, Statement
from app.database.sql import delete_some
from app.repositories import Database

AGES = {
    "events": None,
    "jobs": timedelta(days=30),
    "idempotency_keys": timedelta(days=1),  # they hold for 24 hours
    "creations": timedelta(days=1),
}
"""When rows of a table are deleted, None for what the settings say. Jobs count from their end."""
_BATCH = 5_000
_CONVERSATION_BATCH = 500
_LOWEST_ID = "00000000-0000-0000-0000-000000000000"
_ENDED = "AND status NOT IN ('queued', 'running') AND updated_at < CAST(:before AS timestamptz)"
_log = logging.getLogger("app.retention")

DELETE_OLD = {
    table: Statement(
        delete_some(
            table,
            f"created_at < CAST(:before AS timestamptz) {_ENDED if table == 'jobs' else ''}",
        ),
        is_long=True,
    )
    for table in AGES
}
# Two workers that delete the same rows at once would wait for each other.
TRY_LOCK = Statement("""
    SELECT pg_try_advisory_xact_lock(hashtextextended('retention:' || :kind, 0)) AS is_locked
""")
# OFFSET 0 keeps each subquery a lookup by index. Without it PostgreSQL may scan whole tables.
_IS_IDLE = """
    NOT EXISTS (
        SELECT FROM snapshot_parts p WHERE p.conversation_id = {of} OFFSET 0
    )
    AND c.updated_at < CAST(:before AS timestamptz)
    AND NOT EXISTS (
        SELECT FROM messages m
        WHERE m.conversation_id = {of} AND m.seq = h.head_seq
            AND m.created_at >= CAST(:before AS timestamptz)
        OFFSET 0
    )
""" + "".join(
    f"""
    AND NOT EXISTS (
        SELECT FROM {table} x
        WHERE x.conversation_id = {{of}}
            AND x.{time} >= CAST(:before AS timestamptz)
        OFFSET 0
    )"""
    # Clears, restores, compactions and undos are events.
    for table, time in (
        ("events", "created_at"),
        ("blobs", "created_at"),
        ("blob_uploads", "begun_at"),
        ("jobs", "created_at"),
        ("usage_reports", "created_at"),
        ("pins", "created_at"),
    )
)
_OF_HEADS = "FROM conversations c LEFT JOIN heads h ON h.conversation_id = c.conversation_id"
# By id, which has an index. An index on the age would have to be updated by every append.
LIST_IDLE = Statement(
    f"""
    SELECT c.tenant_id, c.conversation_id,
        {_IS_IDLE.format(of="c.conversation_id")} AS is_idle
    {_OF_HEADS}
    WHERE c.conversation_id > CAST(:after AS uuid)
    ORDER BY c.conversation_id LIMIT :limit
    """,
    is_long=True,
)
IS_IDLE = Statement(f"""
    SELECT {_IS_IDLE.format(of=":conversation_id")} AS is_idle
    {_OF_HEADS}
    WHERE c.conversation_id = :conversation_id
""")
LIST_EXPIRED = Statement(
    """
    SELECT tenant_id, conversation_id FROM conversations
    WHERE expires_at <= now() ORDER BY expires_at LIMIT :limit
    """,
    is_long=True,
)
LOCK_EXPIRED = Statement("""
    SELECT h.conversation_id
    FROM conversations c JOIN heads h ON h.conversation_id = c.conversation_id
    WHERE c.conversation_id = :conversation_id AND c.expires_at <= now()
    FOR UPDATE OF h, c
""")


async def is_idle(session: Session, conversation_id: str, before: datetime) -> bool:
    """Return whether a conversation is idle since a time; call it with a lock on it.

    An idle one has no appends, changes, compactions and other work, and is in no snapshot.
    """
    return bool(await session.value(IS_IDLE, conversation_id=conversation_id, before=before))


async def lock_expired(session: Session, conversation_id: str) -> bool:
    """Lock a conversation until the transaction ends; False unless its expiry has passed."""
    return await session.first(LOCK_EXPIRED, conversation_id=conversation_id) is not None


@dataclass(eq=False, repr=False)
class RetentionService:
    """Deletes rows and conversations that reached their age.

    `max_ages` are those of the settings, by table; None is for ever. The callables delete a
    conversation of a tenant if it has been idle since a time, or if its expiry has passed, and the
    imports that a crash has left.
    """

    _database: Database
    _max_ages: Mapping[str, timedelta | None]
    _remove_idle: Callable[[str, str, datetime], Awaitable[bool]]
    _remove_expired: Callable[[str, str], Awaitable[bool]]
    _now: Callable[[], datetime]
    _remove_imports: Callable[[], Awaitable[int]] | None = None

    async def delete_expired(self) -> Mapping[str, int]:
        """Delete everything that reached its age; returns the number deleted by kind.

        Raises ServiceUnavailable when conversations cannot be read; the other kinds are done then.
        """
        counts: Counter[str] = Counter()
        for table, usual in AGES.items():
            age = self._max_ages.get(table, usual)
            if age is not None:
                counts[table] = await self._delete_old(table, self._now() - age)
        if self._remove_imports is not None:
            counts["imports"] = await self._remove_imports()
        if (age := self._max_ages.get("conversations")) is not None:
            counts["conversations"] = await self._delete_idle(self._now() - age)
        return +counts

    async def _delete_old(self, table: str, before: datetime) -> int:
        count, deleted = 0, _BATCH
        try:
            while deleted == _BATCH:
                async with self._database.transaction() as repositories:
                    session = repositories.session
                    if not await session.value(TRY_LOCK, kind=table):
                        break
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
                deleted += await _done(str(key), self._remove_expired(tenant_id, str(key)))
            count += deleted
            if len(page) < _CONVERSATION_BATCH or not deleted:
                return count

    async def _delete_idle(self, before: datetime) -> int:
        count, after = 0, _LOWEST_ID
        while True:
            async with self._database.session() as repositories:
                page = await repositories.session.all(
                    LIST_IDLE, after=after, before=before, limit=_CONVERSATION_BATCH
                )
            if not page:
                return count
            for tenant_id, key, is_due in page:
                if is_due:
                    count += await _done(str(key), self._remove_idle(tenant_id, str(key), before))
            after = str(page[-1]["conversation_id"])


async def _done(conversation_id: str, removal: Awaitable[bool]) -> bool:
    """Wait for a removal, and go on with the next conversation where it fails."""
    try:
        return await removal
    except ServiceUnavailable as error:
        _log_failure(conversation_id, error)
        return False


def _log_failure(what: str, error: ServiceUnavailable) -> None:
    data = {"what": what, "reason": error.facts.get("reason")}
    _log.warning("expired_data_not_deleted", extra={"data": data})
