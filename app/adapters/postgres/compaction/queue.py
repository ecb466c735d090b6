"""The queue that wakes the workers: PgQueuer, on the service's own database (E6, decision 25).

1. An entry names a conversation, and the job if a caller waits for one. There is one entry for
   each at a time, waiting or worked on; asking for another one changes nothing.
2. A worker that dies stops its heartbeat; after a while another takes its entries.
3. PgQueuer drops an entry whose work is cancelled. Here work that is cancelled comes again.
4. PgQueuer's names are those of the migration, whatever its own variables in the environment say.
5. It takes a third of a second to import. This file, its only importer, is loaded by
   `app.adapters.postgres.compaction.jobs.load_queue`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, cast

import asyncpg
import orjson
from pgqueuer.adapters.drivers.asyncpg import AsyncpgDriver
from pgqueuer.adapters.persistence.qb import (
    QueryBuilderEnvironment,
    QueryQueueBuilder,
    QuerySchedulerBuilder,
)
from pgqueuer.adapters.persistence.queries import Queries
from pgqueuer.core.qm import QueueManager
from pgqueuer.domain.errors import RetryRequested
from pgqueuer.domain.models import Job
from pgqueuer.domain.settings import DBSettings
from pgqueuer.domain.types import Channel
from pgqueuer.ports.driver import Driver

from app.adapters.postgres.common.connections import Session, Statement, Store
from app.adapters.postgres.compaction.jobs import Entry, Pace

ENTRYPOINT = "compact"
ASKED_PRIORITY = 1
"""Of the entries that a caller waits for; all others have 0."""

NAMES = DBSettings(
    prefix="",
    db_schema=None,
    channel=Channel("ch_pgqueuer"),
    function="fn_pgqueuer_changed",
    trigger="tg_pgqueuer_changed",
    queue_table="pgqueuer",
    queue_table_log="pgqueuer_log",
    queue_status_type="pgqueuer_status",
    schedules_table="pgqueuer_schedules",
    statistics_table="pgqueuer_statistics",
)
_BUSY_POLL_SECONDS = 0.5
"""How often a worker that has all it can take looks for more."""
_STATEMENT_SECONDS = 30
"""How long a consumer waits for an answer before it takes its connection for lost."""

Handle = Callable[[Entry], Awaitable[float | None]]
"""Works on an entry; returns the seconds after which it should come again, None when it is done."""


def queries(driver: Driver) -> Queries:
    """Return PgQueuer's statements with the migration's names (rule 4)."""
    return Queries(
        driver,
        QueryBuilderEnvironment(NAMES),
        QueryQueueBuilder(NAMES),
        QuerySchedulerBuilder(NAMES),
    )


async def put(store: Store, entries: Sequence[Entry]) -> int:
    """Put entries into the queue, and return how many were not there yet (rule 1)."""
    async with store.session() as session:
        driver = AsyncpgDriver(cast(Any, _SessionConnection(session)))
        added = await queries(driver).enqueue(
            [ENTRYPOINT] * len(entries),
            [_payload_of(entry) for entry in entries],
            [ASKED_PRIORITY if entry.job_id else 0 for entry in entries],
            dedupe_key=[_key_of(entry) for entry in entries],
            on_conflict="skip",
        )
    return sum(entry_id is not None for entry_id in added)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Any]:
    """Yield a connection of its own for a consumer: listening needs a session that stays."""
    connection = await asyncpg.connect(
        url,
        timeout=5,
        command_timeout=_STATEMENT_SECONDS,
        server_settings={
            "application_name": "context-service-worker",
            "jit": "off",
            "statement_timeout": f"{_STATEMENT_SECONDS}s",
            "idle_in_transaction_session_timeout": f"{_STATEMENT_SECONDS}s",
        },
    )
    try:
        yield connection
    finally:
        # Nothing is left to say: what was taken and not finished is found by its heartbeat.
        connection.terminate()


class Consumer:
    """Takes entries off the queue and has them worked on, a few at once."""

    def __init__(self, connection: Any, handle: Handle, concurrency: int, pace: Pace) -> None:
        self._connection = connection
        self._handle = handle
        self._concurrency = concurrency
        self._pace = pace
        self._places = asyncio.Semaphore(concurrency)
        self._working: set[asyncio.Task[Any]] = set()
        self._manager = QueueManager(queries(AsyncpgDriver(connection)), NAMES.channel)
        self._manager.min_dequeue_poll_interval = timedelta(seconds=_BUSY_POLL_SECONDS)
        self._manager.entrypoint(ENTRYPOINT, accepts_context=False)(self._take)
        connection.add_termination_listener(self._on_termination)

    async def check(self) -> None:
        """Raise RuntimeError unless the database has the queue's tables, as PgQueuer wants them."""
        await self._manager.verify_structure()

    async def run(self) -> None:
        """Consume until stopped or the connection ends, and return when all work has ended."""
        await self._manager.run(
            dequeue_timeout=timedelta(seconds=self._pace.poll_seconds),
            batch_size=1,
            max_concurrent_tasks=max(2, self._concurrency),  # the least that PgQueuer takes
            heartbeat_timeout=timedelta(seconds=self._pace.heartbeat_timeout_seconds),
            log_aggregation_interval=timedelta(0),
        )
        if self._connection.is_closed():
            raise ConnectionResetError("The worker's connection was closed")

    def stop(self) -> None:
        """Take no more entries."""
        self._manager.shutdown.set()

    def give_back(self) -> int:
        """Cancel what is still worked on, so that it comes again; returns how much that is."""
        for task in self._working:
            task.cancel()
        return len(self._working)

    def _on_termination(self, _connection: Any) -> None:
        self._manager.shutdown.set()

    async def _take(self, job: Job) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._working.add(task)
        again: float | None
        try:
            async with self._places:
                again = await self._handle(_entry_from(job))
        except asyncio.CancelledError:
            task.uncancel()
            again = 0.0
        finally:
            self._working.discard(task)
        if again is not None:
            raise RetryRequested(timedelta(seconds=again))


class _SessionConnection:
    """As much of a connection as PgQueuer needs to put entries, over a session of the store."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def fetch(self, query: str, *arguments: object) -> Sequence[Any]:
        return await self._session.all(_Numbered(query, arguments))


class _Numbered(Statement):
    """A statement whose parameters have numbers already."""

    __slots__ = ("_arguments",)

    def __init__(self, sql: str, arguments: Sequence[object]) -> None:
        self.is_long = False
        self.names = ()
        self.sql = sql
        self._arguments = list(arguments)

    def arguments(self, values: dict[str, Any]) -> list[Any]:
        return self._arguments


def _key_of(entry: Entry) -> str:
    return f"job:{entry.job_id}" if entry.job_id else f"compact:{entry.conversation_id}"


def _payload_of(entry: Entry) -> bytes:
    return orjson.dumps(
        {
            "tenant_id": entry.tenant_id,
            "conversation_id": entry.conversation_id,
            "job_id": entry.job_id,
        }
    )


def _entry_from(job: Job) -> Entry:
    return Entry(**orjson.loads(job.payload or b"{}"), attempts=job.attempts)
