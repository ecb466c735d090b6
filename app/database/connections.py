"""One asyncpg pool, statements with named parameters, and the translation of errors.

Statements are SQL on asyncpg: on the hot paths an ORM would cost more than the queries, and its
import a fifth of the process's memory. What they share is in `sql.py` and `tables.py`.

1. PostgreSQL itself ends statements, lock waits and idle transactions that take too long, so that
   no abandoned work continues there.
2. If the database does not answer shortly after such a timeout, the connection is closed and never
   used again.
3. An error that means that the database is unavailable becomes ServiceUnavailable, which clients
   may retry.
4. No statement needs session state. Through a transaction pooler, session settings are not sent,
   and a statement is parsed and executed in one message.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import asyncpg

from app.common.errors import ServiceUnavailable
from app.database.citus import KEY, Calls, NodeLimits, calls_of
from app.database.tables import TYPES

if TYPE_CHECKING:  # of the process
    from app.conversations.from_rows import SettingsCache

_UNDEFINED = (  # the database is not migrated yet
    asyncpg.UndefinedTableError,
    asyncpg.UndefinedColumnError,
    asyncpg.UndefinedFunctionError,
    asyncpg.InvalidSchemaNameError,
)
UNSTORABLE = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
)
"""The errors of the database about values from outside."""
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
    asyncpg.TransactionRollbackError,  # a deadlock, or a query conflict on a standby
    asyncpg.LockNotAvailableError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.InvalidCachedStatementError,  # a migration changed what it returns
    asyncpg.InvalidCatalogNameError,  # the database does not exist (yet)
    asyncpg.InvalidAuthorizationSpecificationError,
    *_UNDEFINED,
)
_RETRY_SECONDS = 1

# The statements are few and their best plans do not depend on parameters. Custom plans, which
# PostgreSQL would make for some, cost more than the execution.
PLANNING = {
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    # Every statement has an index; a plan made for a small table must not stay in use.
    "enable_seqscan": "off",
}
"""Planner settings. With a pooler, the pooler sets them on its servers."""

Pooler = Literal["none", "transaction", "prepared"]
"""What is between the service and PostgreSQL: nothing, or a pooler in transaction mode, without or
with support for prepared statements. A pooler in session mode is nothing."""
_LONG_READS = 1
"""Reads of long values at once: a server process takes several times the memory of each."""
_NAME = re.compile(r"(CAST\()?(?<!:):([a-z_][a-z_0-9]*)")


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts of the database, in seconds.

    `connection` is for a connection from the pool, `statement` for a statement with its lock
    waits, and `long_statement` for a statement whose work grows with a conversation. `grace` is
    added to the latter two, for PostgreSQL to report that it ended a statement (rule 2).
    """

    connection: float = 4.0
    statement: float = 5.0
    long_statement: float = 60.0
    grace: float = 1.0

    @property
    def settings(self) -> dict[str, str]:
        """Return the PostgreSQL settings for them (rule 1)."""
        return {
            "statement_timeout": _milliseconds(self.statement),
            "lock_timeout": _milliseconds(self.statement),
            "idle_in_transaction_session_timeout": _milliseconds(self.long_statement),
        }


@dataclass(frozen=True, slots=True)
class PoolState:
    """The database connections of a process, and the number of sessions that wait for one."""

    size: int
    in_use: int
    waiting: int
    limit: int


class Statement:
    """A statement with named parameters, which become PostgreSQL's numbered ones.

    A parameter that has the name of a column has its type (`TYPES`), unless the text casts it.
    `is_long` marks a statement whose work grows with a conversation: it has a longer timeout.
    `is_read` marks one that writes nothing and locks nothing.
    """

    __slots__ = ("is_long", "is_read", "names", "sql")

    def __init__(self, text: str, *, is_long: bool = False, is_read: bool = False) -> None:
        self.is_long, self.is_read = is_long, is_read
        self.names = tuple(dict.fromkeys(name for _, name in _NAME.findall(text)))
        self.sql = _NAME.sub(self._numbered, text)

    def _numbered(self, match: re.Match[str]) -> str:
        cast, name = match.groups()
        number = f"${self.names.index(name) + 1}"
        if cast or name not in TYPES:
            return f"{cast or ''}{number}"
        return f"CAST({number} AS {TYPES[name]})"

    def arguments(self, values: dict[str, Any]) -> list[Any]:
        """Return the values in the order of the placeholders."""
        return [values[name] for name in self.names]


class Session:
    """Runs statements on one connection; `reading_long` bounds reads of long values."""

    def __init__(
        self,
        connection: Any,
        timeouts: Timeouts,
        reading_long: asyncio.Semaphore,
        calls: Mapping[Statement, str],
    ) -> None:
        self._connection = connection
        self._calls = calls
        self._timeouts = timeouts
        self.reading_long = reading_long
        self._has_long_timeout = False

    async def all(self, statement: Statement, **values: Any) -> Sequence[Any]:
        """Return every row."""
        return list(await self._execute(self._connection.fetch, statement, values))

    async def first(self, statement: Statement, **values: Any) -> Any | None:
        """Return the first row, or None."""
        return await self._execute(self._connection.fetchrow, statement, values)

    async def value(self, statement: Statement, **values: Any) -> Any:
        """Return the first value of the first row, None without a row."""
        row = await self.first(statement, **values)
        return row[0] if row is not None else None

    async def run(self, statement: Statement, **values: Any) -> int:
        """Run it and return the number of affected rows."""
        status: str = await self._execute(self._connection.execute, statement, values)
        return int(status.rsplit(" ", 1)[-1]) if status[-1].isdigit() else 0

    async def _execute(self, execute: Any, statement: Statement, values: dict[str, Any]) -> Any:
        arguments, timeouts = statement.arguments(values), self._timeouts
        seconds = timeouts.long_statement if statement.is_long else timeouts.statement
        limit, sql = seconds + timeouts.grace, statement.sql
        if values.get(KEY) is not None:  # without it a call of Citus ends the server
            sql = self._calls.get(statement, sql)
        try:
            if statement.is_long and not self._connection.is_in_transaction():
                async with self._connection.transaction():
                    await self._set_timeout(seconds)
                    return await execute(sql, *arguments, timeout=limit)
            if statement.is_long and not self._has_long_timeout:
                await self._set_timeout(seconds)  # for the rest of the transaction
                self._has_long_timeout = True
            return await execute(sql, *arguments, timeout=limit)
        except (TimeoutError, asyncpg.InternalClientError):
            self._connection.terminate()  # otherwise a rollback would wait for the answer as well
            raise

    async def _set_timeout(self, seconds: float) -> None:
        await self._connection.execute(f"SET LOCAL statement_timeout = {_milliseconds(seconds)}")


class Repository:
    """Statements of one kind, over one session; the cache is that of the process."""

    def __init__(self, session: Session, settings_cache: SettingsCache) -> None:
        self._session = session
        self._settings_cache = settings_cache


class PooledConnection(asyncpg.Connection):
    """A connection to a pooler that changes servers between transactions (rule 4).

    asyncpg reads a statement's types before each run and parses it twice. The types are the same on
    every server, so they are read once; then parsing and execution are one round trip.
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

    `failed` is called with the class name of the error when a session fails.
    """

    def __init__(
        self,
        url: str,
        *,
        max_size: int = 10,
        timeouts: Timeouts | None = None,
        pooler: Pooler = "none",
        failed: Callable[[str], None] = lambda _kind: None,
    ) -> None:
        self._url = url
        self._max_size = max_size
        self._timeouts = timeouts or Timeouts()
        self._pooler = pooler
        self._failed = failed
        self._waiting = 0
        self._reading_long = asyncio.Semaphore(_LONG_READS)
        self._nodes = NodeLimits(max_size)
        self._on_citus: Calls | None = None
        self._calls: Mapping[Statement, str] = {}
        self._pool: Any = None
        self._is_closed = False

    async def open(self, statements: Sequence[Statement] = ()) -> None:
        """Connect; raises ServiceUnavailable when the database does not answer.

        The first run of a statement on a connection takes ten times as long as the next ones. So
        that no request waits for it, `statements` run on the first connection without values, with
        which they must do nothing.
        """
        self._is_closed = False
        self._on_citus = calls_of(statements)
        async with self.session() as session:
            with suppress(asyncpg.PostgresError):  # of an older schema: it is not ready then
                for statement in statements:
                    await session.all(statement, **dict.fromkeys(statement.names))

    async def close(self) -> None:
        """Wait for running statements, then disconnect; later sessions are refused."""
        self._is_closed = True
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

        `seconds` is the timeout of the connection and of each statement.
        """
        timeouts = self._timeouts
        if seconds is not None:
            timeouts = replace(timeouts, connection=seconds, statement=seconds, grace=0)
        slot = self._nodes.slot()
        pool, connection = await self._acquire(timeouts.connection, slot)
        try:
            yield Session(connection, timeouts, self._reading_long, self._calls)
        except _UNAVAILABLE as error:
            await self._discard(connection, error)
            raise self._unavailable(error) from error
        finally:
            # If a cancelled statement is not acknowledged, the pool closes the connection.
            try:
                with suppress(*_UNAVAILABLE):
                    await pool.release(connection)
            finally:
                if slot is not None:
                    slot.release()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Session]:
        """Yield a session whose statements commit together at the end of the block."""
        async with self.session() as session, session._connection.transaction():
            yield session

    def pool_state(self) -> PoolState:
        """Return the current state of the pool."""
        size = self._pool.get_size() if self._pool is not None else 0
        idle = self._pool.get_idle_size() if self._pool is not None else 0
        return PoolState(size, size - idle, self._waiting, self._max_size)

    async def _acquire(self, seconds: float, slot: asyncio.Semaphore | None) -> tuple[Any, Any]:
        """Return the pool and one of its connections, within the timeout, and hold the slot."""
        if slot is None:
            return await self._pooled(seconds)
        try:
            await asyncio.wait_for(slot.acquire(), seconds)
        except TimeoutError as error:
            raise self._unavailable(error) from error
        try:
            return await self._pooled(seconds)
        except BaseException:
            slot.release()
            raise

    async def _pooled(self, seconds: float) -> tuple[Any, Any]:
        self._waiting += 1
        try:
            if self._is_closed:  # a new pool would never be closed
                raise asyncpg.InterfaceError("The connections are closed")
            if self._pool is None:  # this connects nothing, and so does not wait
                self._pool = await asyncpg.create_pool(
                    self._url,
                    min_size=0,
                    max_size=self._max_size,
                    reset=_skip_reset,
                    init=self._plan_for_citus if self._pooler == "none" else None,
                    command_timeout=self._timeouts.statement + self._timeouts.grace,
                    timeout=self._timeouts.connection,
                    **self._options,
                )
            return self._pool, await self._pool.acquire(timeout=seconds)
        except (*_UNAVAILABLE, asyncpg.PostgresError) as error:
            raise self._unavailable(error) from error
        finally:
            self._waiting -= 1

    @property
    def _options(self) -> dict[str, Any]:
        """Return the connection options for the pooler."""
        if self._pooler == "none":
            name = {"application_name": "context-service"}
            return {"server_settings": name | PLANNING | self._timeouts.settings}
        if self._pooler == "transaction":
            return {"statement_cache_size": 0, "connection_class": PooledConnection}
        return {}

    async def _plan_for_citus(self, connection: Any) -> None:
        """Let Citus plan with parameters, by which it finds the shards of a statement.

        Where the frequent statements are functions of the shards, those are called.
        """
        on_citus = self._on_citus
        is_citus, has_calls = await connection.fetchrow(
            "SELECT to_regnamespace('citus') IS NOT NULL, to_regnamespace($1) IS NOT NULL",
            on_citus.schema if on_citus is not None else None,
        )
        if is_citus:
            await connection.execute("SET plan_cache_mode = auto")
            await self._nodes.load(connection)
        if has_calls and on_citus is not None:
            self._calls = on_citus.texts

    async def _discard(self, connection: Any, error: Exception) -> None:
        """Close connections that are unusable after this error."""
        if isinstance(
            error, _UNDEFINED
        ):  # the functions are of other shards, or of another version
            self._calls, self._on_citus = {}, None
        if isinstance(error, TimeoutError | asyncpg.InternalClientError):
            with suppress(asyncpg.InterfaceError):  # the session has already closed it
                connection.terminate()
        if isinstance(error, asyncpg.ReadOnlySQLTransactionError) and self._pool is not None:
            # The writable server may be another one now, under the same name.
            await self._pool.expire_connections()

    def _unavailable(self, error: Exception) -> ServiceUnavailable:
        """Return the error for callers; the error of a failed rollback is not the reason."""
        is_of_rollback = isinstance(error, asyncpg.InterfaceError)
        if is_of_rollback and isinstance(error.__context__, _UNAVAILABLE):
            error = error.__context__
        reason = type(error).__name__
        self._failed(reason)
        facts = {"reason": reason, "retry_after": _RETRY_SECONDS}
        return ServiceUnavailable("The database does not answer", facts)


def _milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))


async def _skip_reset(connection: Any) -> None:
    """Replace asyncpg's reset of a returned connection: no statement leaves session state."""
