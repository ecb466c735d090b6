"""The store: one asyncpg pool, statements with named parameters, failures translated once.

Statements are PostgreSQL's own SQL, run on asyncpg: an ORM's engine in between would cost more than
the query itself on the hot paths, and its import a fifth of the process's memory (decision 0001).

1. PostgreSQL ends what takes too long by itself: a statement, a wait for a lock, a transaction
   that its client has forgotten. So nothing goes on there that nobody waits for any more.
2. Who has no answer a moment after that talks to nobody: the connection is given up at once, and
   never used again.
3. Whatever the database may say when it cannot work is ServiceUnavailable, and worth another try;
   where its disk is full it is InsufficientStorage.
4. Nothing needs a session. Through a pooler whose servers change with every transaction, session
   settings are not sent, and a statement is parsed and run in one message (decision 35).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, assert_never

import asyncpg

from app.domain.common.errors import InsufficientStorage, ServiceUnavailable

_UNAVAILABLE = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.PostgresSystemError,  # its files cannot be read or written
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.TransactionRollbackError,  # a deadlock, or a standby that must go on
    asyncpg.LockNotAvailableError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.InvalidCachedStatementError,  # a migration changed what it returns
    asyncpg.InvalidCatalogNameError,  # no such database, or not yet
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.UndefinedTableError,  # not migrated yet
    asyncpg.UndefinedColumnError,  # the same
)
_RETRY_SECONDS = 1
_FULL_SECONDS = 30

# The statements are few and their best plans do not depend on their parameters: planning them
# anew, which Postgres would do for some, costs more than running them.
PLANNING = {
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    # Every statement has its index; a plan made while a table was tiny must not outlive that.
    "enable_seqscan": "off",
}
"""How the statements want to be planned. A pooler's servers have it from the pooler."""

_NAME = re.compile(r"(?<!:):([a-z_]+)")


class Pooler(StrEnum):
    """What stands between the service and PostgreSQL, if anything does."""

    NONE = "none"
    """Nothing, or a pooler in session mode."""
    TRANSACTION = "transaction"
    """A pooler that changes servers between transactions and knows no prepared statements."""
    PREPARED = "prepared"
    """One that changes servers, and prepares a client's statements on each that it gives him."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long the database is waited for, in seconds.

    For a connection, new or in use by others; for a statement, waits for locks included; for one
    of the few statements whose work grows with a conversation; and, on top of the latter two, for
    PostgreSQL to say that it has ended one (rule 2).
    """

    connection: float = 4.0
    statement: float = 5.0
    long_statement: float = 60.0
    grace: float = 1.0

    @property
    def settings(self) -> dict[str, str]:
        """Return the settings by which PostgreSQL keeps to them by itself (rule 1)."""
        return {
            "statement_timeout": _milliseconds(self.statement),
            "lock_timeout": _milliseconds(self.statement),
            "idle_in_transaction_session_timeout": _milliseconds(self.long_statement),
        }


@dataclass(frozen=True, slots=True)
class PoolState:
    """The database connections of a process, and how many sessions wait for one."""

    size: int
    in_use: int
    waiting: int
    limit: int


class Statement:
    """A statement whose parameters have names; they become Postgres's numbers once, here.

    `is_long` is for those whose work grows with a conversation: they may take longer.
    """

    __slots__ = ("is_long", "names", "sql")

    def __init__(self, text: str, *, is_long: bool = False) -> None:
        self.is_long = is_long
        self.names = tuple(dict.fromkeys(_NAME.findall(text)))
        numbers = {name: str(number) for number, name in enumerate(self.names, start=1)}
        self.sql = _NAME.sub(lambda match: "$" + numbers[match[1]], text)

    def arguments(self, values: dict[str, Any]) -> list[Any]:
        """Return the values in the order of the placeholders."""
        return [values[name] for name in self.names]


class Session:
    """Runs statements on one connection."""

    def __init__(self, connection: Any, timeouts: Timeouts) -> None:
        self._connection = connection
        self._timeouts = timeouts
        self._is_patient = False

    async def all(self, statement: Statement, **values: Any) -> Sequence[Any]:
        """Return every row."""
        return list(await self._answer(self._connection.fetch, statement, values))

    async def first(self, statement: Statement, **values: Any) -> Any | None:
        """Return the first row, or None."""
        return await self._answer(self._connection.fetchrow, statement, values)

    async def run(self, statement: Statement, **values: Any) -> int:
        """Run it and return the number of rows it touched."""
        status: str = await self._answer(self._connection.execute, statement, values)
        return int(status.rsplit(" ", 1)[-1]) if status[-1].isdigit() else 0

    async def _answer(self, ask: Any, statement: Statement, values: dict[str, Any]) -> Any:
        arguments = statement.arguments(values)
        try:
            if not statement.is_long:
                limit = self._timeouts.statement + self._timeouts.grace
                return await ask(statement.sql, *arguments, timeout=limit)
            return await self._answer_long(ask, statement.sql, arguments)
        except (TimeoutError, asyncpg.InternalClientError):
            self._connection.terminate()  # or a rollback would wait for it as well
            raise

    async def _answer_long(self, ask: Any, sql: str, arguments: Sequence[Any]) -> Any:
        """Ask with the longer limit, which holds for the rest of the transaction."""
        limit = self._timeouts.long_statement
        if not self._connection.is_in_transaction():
            async with self._connection.transaction():
                await self._be_patient(limit)
                return await ask(sql, *arguments, timeout=limit + self._timeouts.grace)
        if not self._is_patient:
            await self._be_patient(limit)
            self._is_patient = True
        return await ask(sql, *arguments, timeout=limit + self._timeouts.grace)

    async def _be_patient(self, seconds: float) -> None:
        await self._connection.execute(f"SET LOCAL statement_timeout = {_milliseconds(seconds)}")


class PooledConnection(asyncpg.Connection):
    """A connection to a pooler that changes servers between transactions (rule 4).

    asyncpg asks for a statement's types before each run and parses it twice. Asked once, they hold
    for every server, and parsing goes with running: one round trip instead of two.
    """

    __slots__ = ("_described",)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._described: dict[str, Any] = {}

    async def _get_statement(self, query: str, timeout: float | None, **options: Any) -> Any:
        if any(options.values()):
            return await super()._get_statement(query, timeout, **options)  # type: ignore[misc]
        described = self._described.get(query)
        if described is None:
            described = await super()._get_statement(query, timeout, **options)  # type: ignore[misc]
            self._described[query] = described
        return described

    def _drop_local_statement_cache(self) -> None:
        self._described.clear()
        super()._drop_local_statement_cache()  # type: ignore[misc]


class Store:
    """The database; `session` autocommits each statement, `transaction` spans a block.

    `failed` is told the kind of error whenever the database fails a session. `is_full` tells
    whether that is for want of disk: a server that cannot write its log ends without saying so.
    """

    def __init__(
        self,
        url: str,
        *,
        min_size: int = 1,
        max_size: int = 10,
        timeouts: Timeouts | None = None,
        pooler: Pooler = Pooler.NONE,
        failed: Callable[[str], None] = lambda _kind: None,
        is_full: Callable[[], bool] = lambda: False,
    ) -> None:
        self._url = url
        self._sizes = (min_size, max_size)
        self._timeouts = timeouts or Timeouts()
        self._pooler = pooler
        self._failed = failed
        self._is_full = is_full
        self._waiting = 0
        self._pool: Any = None
        self._making: asyncio.Task[Any] | None = None

    async def open(self) -> None:
        """Connect; raises ServiceUnavailable when the database does not answer."""
        async with self.session():
            pass

    async def close(self) -> None:
        """Wait for running statements, then disconnect."""
        if self._making is not None:
            self._making.cancel()
        if self._pool is not None:
            pool, self._pool = self._pool, None
            try:
                async with asyncio.timeout(5):
                    await pool.close()
            except TimeoutError:
                pool.terminate()

    @asynccontextmanager
    async def session(self, seconds: float | None = None) -> AsyncIterator[Session]:
        """Yield a session in which each statement commits by itself.

        With `seconds`, the connection is waited for so long at most, and so is each statement.
        """
        timeouts = self._timeouts
        if seconds is not None:
            timeouts = replace(timeouts, connection=seconds, statement=seconds, grace=0)
        pool, connection = await self._acquire(timeouts.connection)
        try:
            yield Session(connection, timeouts)
        except _UNAVAILABLE as error:
            await self._forsake(connection, error)
            raise self._unavailable(error) from error
        finally:
            # Where a cancelled statement is not acknowledged, the pool ends the connection.
            with suppress(*_UNAVAILABLE):
                await pool.release(connection)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Session]:
        """Yield a session whose statements commit together at the end of the block."""
        async with self.session() as session, session._connection.transaction():
            yield session

    def pool_state(self) -> PoolState:
        """Return what the pool is like now."""
        size = self._pool.get_size() if self._pool is not None else 0
        idle = self._pool.get_idle_size() if self._pool is not None else 0
        return PoolState(size, size - idle, self._waiting, self._sizes[1])

    async def _acquire(self, seconds: float) -> tuple[Any, Any]:
        """Return the pool and a connection of it, each within so many seconds."""
        self._waiting += 1
        try:
            pool = self._pool
            if pool is None:
                async with asyncio.timeout(seconds):
                    pool = await self._first_pool()
            return pool, await pool.acquire(timeout=seconds)
        except (*_UNAVAILABLE, asyncpg.PostgresError) as error:
            raise self._unavailable(error) from error
        finally:
            self._waiting -= 1

    async def _first_pool(self) -> Any:
        """Return the pool once it is made; all who wait for that share one attempt."""
        if self._making is None:
            self._making = asyncio.create_task(self._make_pool())
            self._making.add_done_callback(self._made)
        return await asyncio.shield(self._making)

    async def _make_pool(self) -> Any:
        return await asyncpg.create_pool(
            self._url,
            min_size=self._sizes[0],
            max_size=self._sizes[1],
            # Nothing here leaves session state, so the reset round trip is saved.
            reset=_keep,
            command_timeout=self._timeouts.statement + self._timeouts.grace,
            timeout=self._timeouts.connection,
            **self._manner,
        )

    def _made(self, making: asyncio.Task[Any]) -> None:
        self._making = None
        if not making.cancelled() and making.exception() is None:
            self._pool = making.result()

    @property
    def _manner(self) -> dict[str, Any]:
        """Return how to connect: what may be asked of a session, and where statements are kept."""
        match self._pooler:
            case Pooler.NONE:
                named = {"application_name": "context-service"}
                return {"server_settings": named | PLANNING | self._timeouts.settings}
            case Pooler.TRANSACTION:
                return {"statement_cache_size": 0, "connection_class": PooledConnection}
            case Pooler.PREPARED:
                return {}
            case other:
                assert_never(other)

    async def _forsake(self, connection: Any, error: Exception) -> None:
        """Let go of connections that are of no more use after this error."""
        if isinstance(error, TimeoutError | asyncpg.InternalClientError):
            with suppress(asyncpg.InterfaceError):  # the session has done so already
                connection.terminate()
        if isinstance(error, asyncpg.ReadOnlySQLTransactionError) and self._pool is not None:
            # The database that can be written may be another one by now, under the same name.
            await self._pool.expire_connections()

    def _unavailable(self, error: Exception) -> ServiceUnavailable:
        """Return the error for callers; a rollback that fails as well is not its reason."""
        is_of_rollback = isinstance(error, asyncpg.InterfaceError)
        if is_of_rollback and isinstance(error.__context__, _UNAVAILABLE):
            error = error.__context__
        reason = type(error).__name__
        self._failed(reason)
        if isinstance(error, asyncpg.DiskFullError) or self._is_full():
            facts = {"reason": reason, "retry_after": _FULL_SECONDS}
            return InsufficientStorage("The disk of the database is full", facts)
        facts = {"reason": reason, "retry_after": _RETRY_SECONDS}
        return ServiceUnavailable("The database does not answer", facts)


def _milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))


async def _keep(connection: Any) -> None:
    """Leave a returned connection as it is."""
