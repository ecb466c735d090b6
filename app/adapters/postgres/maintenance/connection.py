"""The connection of a command that works on a whole database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from app.adapters.postgres.migrate import DatabaseUnusable

_CONNECT_SECONDS = 10.0
_NO_LIMITS = {"statement_timeout": "0", "idle_in_transaction_session_timeout": "0"}
"""A statement on a large table may take hours."""
_ON_CITUS = """
    SET citus.override_table_visibility = on;
    SET citus.max_adaptive_executor_pool_size = 1
"""
"""On Citus, the catalog has no parts of tables, whatever the setting of the database is; and one
connection to each node reads all its rows, for each connection has a moment of its own. Elsewhere
these names mean nothing.
"""


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    """Yield a connection without limits of time; raises DatabaseUnusable."""
    try:
        connection = await asyncpg.connect(
            url, timeout=_CONNECT_SECONDS, server_settings=_NO_LIMITS
        )
        try:
            await connection.execute(_ON_CITUS)
            yield connection
        finally:
            await connection.close()
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as exc:
        reason = str(exc) or type(exc).__name__
        raise DatabaseUnusable(f"The database does not answer: {reason}") from exc


@asynccontextmanager
async def snapshot(url: str) -> AsyncIterator[asyncpg.Connection]:
    """Yield a connection that reads the rows of one moment, and writes nothing."""
    async with (
        connected(url) as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        yield connection
