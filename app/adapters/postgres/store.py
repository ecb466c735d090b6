"""The store: one asyncpg pool, statements with named parameters, failures translated once.

Statements are PostgreSQL's own SQL, run on asyncpg: an ORM's engine in between would cost more than
the query itself on the hot paths, and its import a fifth of the process's memory (decision 0001).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from app.domain.errors import ServiceUnavailable

_UNAVAILABLE = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.LockNotAvailableError,
    asyncpg.DeadlockDetectedError,
    asyncpg.InvalidCatalogNameError,  # no such database, or not yet
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.UndefinedTableError,  # not migrated yet
)


# The statements are few and their best plans do not depend on their parameters: planning them
# anew, which Postgres would do for some, costs more than running them.
_SESSION = {
    "application_name": "context-service",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    # Every statement has its index; a plan made while a table was tiny must not outlive that.
    "enable_seqscan": "off",
}


_NAME = re.compile(r"(?<!:):([a-z_]+)")


class Statement:
    """A statement whose parameters have names; they become Postgres's numbers once, here."""

    __slots__ = ("names", "sql")

    def __init__(self, text: str) -> None:
        self.names = tuple(dict.fromkeys(_NAME.findall(text)))
        numbers = {name: str(number) for number, name in enumerate(self.names, start=1)}
        self.sql = _NAME.sub(lambda match: "$" + numbers[match[1]], text)

    def arguments(self, values: dict[str, Any]) -> list[Any]:
        """Return the values in the order of the placeholders."""
        return [values[name] for name in self.names]


class Session:
    """Runs statements on one connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def all(self, statement: Statement, **values: Any) -> Sequence[Any]:
        """Return every row."""
        rows = await self._connection.fetch(statement.sql, *statement.arguments(values))
        return list(rows)

    async def first(self, statement: Statement, **values: Any) -> Any | None:
        """Return the first row, or None."""
        return await self._connection.fetchrow(statement.sql, *statement.arguments(values))

    async def run(self, statement: Statement, **values: Any) -> int:
        """Run it and return the number of rows it touched."""
        status: str = await self._connection.execute(statement.sql, *statement.arguments(values))
        return int(status.rsplit(" ", 1)[-1]) if status[-1].isdigit() else 0


class Store:
    """The database; `session` autocommits each statement, `transaction` spans a block."""

    def __init__(self, url: str, *, min_size: int = 1, max_size: int = 10) -> None:
        self._url = url
        self._sizes = (min_size, max_size)
        self._pool: Any = None
        self._opening = asyncio.Lock()

    async def open(self) -> None:
        """Connect; raises ServiceUnavailable when the database does not answer."""
        async with self._opening:
            if self._pool is not None:
                return
            try:
                self._pool = await asyncpg.create_pool(
                    self._url,
                    min_size=self._sizes[0],
                    max_size=self._sizes[1],
                    # Nothing here leaves session state, so the reset round trip is saved.
                    reset=_keep,
                    command_timeout=60,
                    timeout=5,
                    server_settings=_SESSION,
                )
            except (*_UNAVAILABLE, asyncpg.PostgresError) as error:
                reason = {"reason": type(error).__name__}
                raise ServiceUnavailable("The database does not answer", reason) from error

    async def close(self) -> None:
        """Wait for running statements, then disconnect."""
        if self._pool is not None:
            pool, self._pool = self._pool, None
            try:
                async with asyncio.timeout(5):
                    await pool.close()
            except TimeoutError:
                pool.terminate()

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """Yield a session in which each statement commits by itself."""
        if self._pool is None:
            await self.open()
        try:
            async with self._pool.acquire(timeout=10) as connection:
                yield Session(connection)
        except _UNAVAILABLE as error:
            raise ServiceUnavailable(
                "The database does not answer", {"reason": type(error).__name__, "retry_after": 1}
            ) from error

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Session]:
        """Yield a session whose statements commit together at the end of the block."""
        async with self.session() as session, session._connection.transaction():
            yield session


async def _keep(connection: Any) -> None:
    """Leave a returned connection as it is."""
