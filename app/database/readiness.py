"""Readiness: the database answers, is writable, and has the schema of this version."""

from __future__ import annotations

from app.common.errors import ServiceUnavailable
from app.database.connections import Statement, Store
from app.database.migrate import newest_revision

READY_SECONDS = 1.0
"""The timeout of a connection, and of its queries."""

_DATABASE_STATUS = Statement(
    """
        SELECT to_regclass('alembic_version') IS NOT NULL AS is_migrated,
            pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean AS is_read_only
        """
)
_VERSION = Statement("SELECT max(version_num) AS revision FROM alembic_version")


class Readiness:
    """Checks the database; a schema newer than this version's is accepted."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._newest_revision = newest_revision()

    async def is_ready(self) -> bool:
        """Return whether the database has the schema of this version.

        Raises ServiceUnavailable within twice READY_SECONDS if the database does not answer, and
        if it is read-only.
        """
        async with self._store.session(READY_SECONDS) as session:
            state = await session.first(_DATABASE_STATUS)
            if state is None or not state["is_migrated"]:
                return False
            if state["is_read_only"]:
                facts = {"reason": "read_only", "retry_after": 1}
                raise ServiceUnavailable("The database is read-only", facts)
            row = await session.first(_VERSION)
            return row is not None and int(row["revision"] or 0) >= self._newest_revision
