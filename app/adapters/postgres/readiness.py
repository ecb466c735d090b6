"""Whether the database answers and has the schema of this version."""

from __future__ import annotations

from app.adapters.postgres.migrate import head
from app.adapters.postgres.store import Statement, Store

_HAS_VERSION = Statement("SELECT to_regclass('alembic_version') IS NOT NULL AS found")
_VERSION = Statement("SELECT max(version_num) AS revision FROM alembic_version")


class Readiness:
    """Asks the database; a schema newer than this version's counts as current."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._head = head()

    async def is_ready(self) -> bool:
        """Tell whether the schema is current; raises ServiceUnavailable without a database."""
        async with self._store.session() as session:
            there = await session.first(_HAS_VERSION)
            if there is None or not there["found"]:
                return False
            row = await session.first(_VERSION)
            return row is not None and int(row["revision"] or 0) >= self._head
