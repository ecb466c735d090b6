"""Bringing a database to the schema that this version of the service works with.

1. A revision is a number, the one its file in `migrations/versions/` begins with: `0001_….py`.
2. A schema newer than this version counts as current: migrations stay safe beside the previous
   release, which may restart while the next one rolls out. So they only add, and what they add
   to a table that is there has a default or may be null.
3. One process migrates at a time; the others wait for its advisory lock and find nothing to do.
   They ask for it again and again: a session that waits inside a statement would in turn be
   waited for by an index that is built concurrently.
4. No statement waits longer than 4 s for a lock or runs longer than 5 s, so a migration can
   never stop the service. One that must, raises the limit for itself with `SET LOCAL`. One that
   waited in vain is rolled back and tried again a little later.
5. The URL must reach PostgreSQL itself or a pooler in session mode (decision 35).
6. Alembic and SQLAlchemy cost half a second to import, so only a database that needs them does.
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

if TYPE_CHECKING:
    from sqlalchemy import Connection

MIGRATIONS = Path(__file__).resolve().parents[3] / "migrations"
LIMITS = {"lock_timeout": "4s", "statement_timeout": "5s"}
ATTEMPTS = 6
"""How often a migration is tried that waits for a lock in vain (rule 4)."""

_LOCK = 0x636F_6E74_6578_7400  # "context": one number for all processes of this service
_PAUSE_SECONDS = 0.2
_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 10.0
_LOCK_NOT_AVAILABLE = "55P03"

_log = logging.getLogger("app.adapters.postgres.migrate")


class MigrationError(Exception):
    """The schema cannot be read or brought up to date; the text says why in one sentence."""


class DatabaseUnusable(MigrationError):
    """The database that the settings name does not answer, or not to this user."""


def head(migrations: Path = MIGRATIONS) -> int:
    """Return the newest revision that ships with this version; 0 when there is none."""
    names = (file.name for file in (migrations / "versions").glob("[0-9]*_*.py"))
    return max((int(name.partition("_")[0]) for name in names), default=0)


def is_current(url: str, migrations: Path = MIGRATIONS) -> bool:
    """Tell with one query whether the database has this version's schema, or a newer one.

    Raises DatabaseUnusable when the database does not answer.
    """
    with _told():
        return asyncio.run(_revision(url)) >= head(migrations)


def migrate(url: str, migrations: Path = MIGRATIONS) -> None:
    """Run the migrations that the database lacks, alone among all processes (rule 3).

    Raises MigrationError, with the failed migration rolled back and those before it kept.
    """
    with _told():
        asyncio.run(_migrate(url, migrations))


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as exc:
        reason = str(exc) or type(exc).__name__
        raise DatabaseUnusable(f"The database does not answer: {reason}") from exc


@asynccontextmanager
async def alone(url: str) -> AsyncIterator[None]:
    """Keep every other process from migrating meanwhile (rule 3)."""
    holder = await _connect(url)
    try:
        while not await holder.fetchval("SELECT pg_try_advisory_lock($1)", _LOCK):
            await asyncio.sleep(_PAUSE_SECONDS)
        yield
    finally:
        await holder.close(timeout=_ANSWER_SECONDS)


async def _connect(url: str) -> asyncpg.Connection:
    # No statement is kept under a name: the revision may be asked for through a pooler.
    try:
        return await asyncpg.connect(
            url, timeout=_CONNECT_SECONDS, command_timeout=_ANSWER_SECONDS, statement_cache_size=0
        )
    except (ValueError, OverflowError) as exc:
        raise DatabaseUnusable(f"The database's URL cannot be used: {exc}") from exc


async def _revision(url: str) -> int:
    connection = await _connect(url)
    try:
        if not await connection.fetchval("SELECT to_regclass('alembic_version') IS NOT NULL"):
            return 0
        return int(await connection.fetchval("SELECT max(version_num) FROM alembic_version") or 0)
    finally:
        await connection.close(timeout=_ANSWER_SECONDS)


async def _migrate(url: str, migrations: Path) -> None:
    async with alone(url):
        if await _revision(url) < head(migrations):
            await _upgrade(url, migrations)


async def _upgrade(url: str, migrations: Path) -> None:
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.ext.asyncio import create_async_engine
    from sqlalchemy.pool import NullPool

    # asyncpg reads the URL itself here, so that every form and option it knows is allowed.
    connect = partial(asyncpg.connect, url, timeout=_CONNECT_SECONDS, server_settings=LIMITS)
    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect, poolclass=NullPool)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            async with engine.connect() as connection:
                return await connection.run_sync(_run_alembic, migrations)
        except DBAPIError as exc:
            is_locked = getattr(exc.orig, "sqlstate", None) == _LOCK_NOT_AVAILABLE
            if not is_locked or attempt == ATTEMPTS:
                raise MigrationError(f"A migration failed and was rolled back: {exc.orig}") from exc
            _log.warning("migration_waits_for_a_lock", extra={"data": {"attempt": attempt}})
            await asyncio.sleep(_PAUSE_SECONDS * 2**attempt)


def _run_alembic(connection: Connection, migrations: Path) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(migrations).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    command.upgrade(config, "head")
