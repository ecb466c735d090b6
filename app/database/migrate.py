"""Migration of a database to the schema of this version.

1. A revision is the number at the start of its file name in `migrations/versions/`: `0001_….py`.
2. A schema newer than this version is accepted: the previous release may restart during a rollout.
   Migrations only add, and new columns have a default or are nullable.
3. One process migrates at a time, under an advisory lock that the others poll: a session that waits
   inside a statement would block CREATE INDEX CONCURRENTLY.
4. A statement waits at most 4 s for a lock and runs at most 5 s, so that a migration never stops
   the service; a longer one raises its limit with `SET LOCAL`. After a lock timeout the migration
   is rolled back and tried again.
5. The URL must reach PostgreSQL itself or a pooler in session mode [operation.pooler].
6. Alembic and SQLAlchemy take half a second to import, so they are imported for a migration only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg

from app.common.errors import ServiceUnavailable
from app.database.connections import Statement, Store

if TYPE_CHECKING:
    from sqlalchemy import Connection

MIGRATIONS = Path(__file__).resolve().parents[2] / "migrations"
TIMEOUTS = {"lock_timeout": "4s", "statement_timeout": "5s"}
ATTEMPTS = 6
"""The maximum number of attempts, when each ends in a lock timeout (rule 4)."""

READY_SECONDS = 1.0
"""The timeout of a connection, and of its queries, for the check of readiness."""

_STATUS = Statement("""
    SELECT to_regclass('alembic_version') IS NOT NULL AS is_migrated,
        pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean AS is_read_only
""")
_VERSION = Statement("SELECT max(version_num) AS revision FROM alembic_version")
_LOCK = 0x636F_6E74_6578_7400  # "context" in ASCII
_PAUSE_SECONDS = 0.2
_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 10.0
_LOCK_NOT_AVAILABLE = "55P03"

_log = logging.getLogger("app.database.migrate")


class MigrationError(Exception):
    """The schema cannot be read or migrated, for the reason in the text."""


class DatabaseUnusable(MigrationError):
    """The configured database does not answer, or refuses the user."""


def newest_revision(migrations: Path = MIGRATIONS) -> int:
    """Return the newest revision of this version; 0 if there is none."""
    names = (file.name for file in (migrations / "versions").glob("[0-9]*_*.py"))
    return max((int(name.partition("_")[0]) for name in names), default=0)


def is_current(url: str, migrations: Path = MIGRATIONS) -> bool:
    """Return whether the database has this version's schema or a newer one.

    Raises DatabaseUnusable.
    """
    with _translated_errors():
        return asyncio.run(_revision(url)) >= newest_revision(migrations)


def migrate(url: str, migrations: Path = MIGRATIONS) -> None:
    """Run the missing migrations in one process at a time (rule 3).

    Raises MigrationError. A failed migration is rolled back; the migrations before it stay.
    """
    with _translated_errors():
        asyncio.run(_migrate(url, migrations, newest_revision(migrations)))


@contextmanager
def _translated_errors() -> Iterator[None]:
    try:
        yield
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as exc:
        reason = str(exc) or type(exc).__name__
        raise DatabaseUnusable(f"The database does not answer: {reason}") from exc


async def _connect(url: str) -> asyncpg.Connection:
    # No prepared statements: the revision may be read through a pooler.
    try:
        return await asyncpg.connect(
            url, timeout=_CONNECT_SECONDS, command_timeout=_ANSWER_SECONDS, statement_cache_size=0
        )
    except (ValueError, OverflowError) as exc:
        raise DatabaseUnusable(f"The URL of the database is invalid: {exc}") from exc


async def _revision(url: str) -> int:
    """Return the revision of a database's schema; 0 if it has none."""
    connection = await _connect(url)
    try:
        if not await connection.fetchval("SELECT to_regclass('alembic_version') IS NOT NULL"):
            return 0
        return int(await connection.fetchval("SELECT max(version_num) FROM alembic_version") or 0)
    finally:
        await connection.close(timeout=_ANSWER_SECONDS)


async def _migrate(url: str, migrations: Path, target: int) -> None:
    async with migration_lock(url):
        if await _revision(url) < target:
            await _upgrade(url, migrations, target)


@asynccontextmanager
async def migration_lock(url: str) -> AsyncIterator[asyncpg.Connection]:
    """Hold the lock of migrations (rule 3), and yield its connection."""
    connection = await _connect(url)
    try:
        while not await connection.fetchval("SELECT pg_try_advisory_lock($1)", _LOCK):
            await asyncio.sleep(_PAUSE_SECONDS)
        yield connection
    finally:
        await connection.close(timeout=_ANSWER_SECONDS)


async def _upgrade(url: str, migrations: Path, target: int) -> None:
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.ext.asyncio import create_async_engine
    from sqlalchemy.pool import NullPool

    # asyncpg parses the URL, so that all of its forms and options are accepted.
    connect = partial(asyncpg.connect, url, timeout=_CONNECT_SECONDS, server_settings=TIMEOUTS)
    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect, poolclass=NullPool)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            async with engine.connect() as connection:
                return await connection.run_sync(_run_alembic, migrations, target)
        except DBAPIError as exc:
            is_locked = getattr(exc.orig, "sqlstate", None) == _LOCK_NOT_AVAILABLE
            if not is_locked or attempt == ATTEMPTS:
                raise MigrationError(f"A migration failed and was rolled back: {exc.orig}") from exc
            _log.warning("migration_waits_for_a_lock", extra={"data": {"attempt": attempt}})
            await asyncio.sleep(_PAUSE_SECONDS * 2**attempt)


def _run_alembic(connection: Connection, migrations: Path, target: int) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(migrations).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    command.upgrade(config, f"{target:04d}")


async def is_ready(store: Store) -> bool:
    """Return whether the database has the schema of this version, or a newer one.

    Raises ServiceUnavailable within twice READY_SECONDS if the database does not answer, and if it
    is read-only.
    """
    async with store.session(READY_SECONDS) as session:
        state = await session.first(_STATUS)
        if state is None or not state["is_migrated"]:
            return False
        if state["is_read_only"]:
            facts = {"reason": "read_only", "retry_after": 1}
            raise ServiceUnavailable("The database is read-only", facts)
        return int(await session.value(_VERSION) or 0) >= newest_revision()
