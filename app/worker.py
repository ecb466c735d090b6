"""The worker: takes background work off the queue and does it, in a process of its own or beside
the API (E6, decisions 25, 33).

1. The queue wakes the worker; the due marks and the jobs that have not ended say what is to be
   done. A sweep puts what the queue lost there again, so nothing depends on the queue alone.
2. Work runs at least once. What is interrupted, by an error, a shutdown or a kill, comes again.
3. While the database is away the worker tries to come back, more and more slowly, and says so once.
4. Tool outputs that nothing refers to are collected now and then, and what has had its time is
   forgotten; two workers may do so at once.
5. Told to stop, it takes nothing more, lets running work end within its grace, and gives the rest
   back to the queue.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING

from app import logs
from app.adapters.postgres.compaction.jobs import Entry, Pace, PostgresQueue, load_queue
from app.adapters.postgres.database import PostgresDatabase
from app.composition import Parts, compose
from app.domain.common import json_text
from app.domain.common.errors import ServiceUnavailable
from app.settings import Settings

if TYPE_CHECKING:
    from app.adapters.postgres.compaction.queue import Consumer

GRACE_SECONDS = 3.0
"""How long running work may take to end in a worker's own process."""
GRACE_BESIDE_API_SECONDS = 1.0
"""The same beside the API, whose running requests have had their own grace by then."""
RETURN_SECONDS = 1.0
"""How long it may take to give work back to the queue."""
SWEEP_BATCH = 100
MAX_ATTEMPTS = 10
MAX_DELAY_SECONDS = 60.0
GIVEN_UP_SECONDS = 600.0
"""How long a conversation is left alone whose work was interrupted that often."""

_FIRST_PAUSE_SECONDS = 0.5
_MAX_PAUSE_SECONDS = 10.0
_FORGET_SECONDS = 3600.0

Work = Callable[[str, str, str | None], Awaitable[None]]
"""Looks at a conversation of a tenant, or does the job whose id is given."""

Collect = Callable[[], Awaitable[int]]
"""Collects what may be collected anywhere; returns how much that was."""

Forget = Callable[[], Awaitable[Mapping[str, int]]]
"""Forgets what has had its time; returns how much that was of each kind."""

Watch = Callable[[str, str | None], AbstractContextManager[object]]
"""Takes a conversation and perhaps a job, and watches the work on it."""

Prepare = Callable[[str, str], Awaitable[None]]
"""Takes tenant and conversation, and indexes for searches what is no longer shown (A6)."""

_log = logging.getLogger("app.worker")


class Worker:
    """Does background work, a few pieces at once, until it is told to stop."""

    def __init__(
        self,
        database: PostgresDatabase,
        queue: PostgresQueue,
        url: str,
        work: Work,
        *,
        concurrency: int = 4,
        sweep_seconds: float = 5.0,
        pace: Pace | None = None,
        prepare: Prepare | None = None,
        collect: Collect | None = None,
        collect_seconds: float = 3600.0,
        forget: Forget | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._database = database
        self._queue = queue
        self._url = url
        self._work = work
        self._concurrency = concurrency
        self._sweep_seconds = sweep_seconds
        self._pace = pace or Pace()
        self._prepare = prepare
        self._collect = collect
        self._collect_seconds = collect_seconds
        self._forget = forget
        self._watch = watch or (lambda _conversation_id, _job_id: nullcontext())
        self._stopping = asyncio.Event()
        self._consumer: Consumer | None = None

    @asynccontextmanager
    async def running(self, grace_seconds: float = GRACE_BESIDE_API_SECONDS) -> AsyncIterator[None]:
        """Work beside the block, and stop at its end (rule 5)."""
        self._stopping = asyncio.Event()
        chores = [
            self._again_and_again("sweep", self.sweep, self._sweep_seconds),
            self._again_and_again("forget_ended", self._queue.forget_ended, _FORGET_SECONDS),
        ]
        if self._collect is not None:
            collect = partial(self._collect_due, self._collect)
            chores.append(self._again_and_again("collect", collect, self._collect_seconds))
        if self._forget is not None:
            forget = partial(self._delete_expired, self._forget)
            chores.append(self._again_and_again("forget", forget, _FORGET_SECONDS))
        tasks = {asyncio.create_task(task) for task in (self._consume(), *chores)}
        _log.info("worker_started", extra={"data": {"concurrency": self._concurrency}})
        try:
            yield
        finally:
            await self._stop(tasks, grace_seconds)
            _log.info("worker_stopped")

    async def sweep(self) -> int:
        """Put what is due and what has not ended into the queue; returns how much was missing."""
        async with self._database.session() as records:
            due = await records.jobs.list_due(SWEEP_BATCH)
            jobs = await records.jobs.list_open(SWEEP_BATCH)
        entries = [Entry(tenant, conversation, job) for tenant, conversation, job in jobs]
        entries += [Entry(tenant, conversation) for tenant, conversation in due]
        return await self._queue.enqueue_all(entries) if entries else 0

    async def _stop(self, tasks: set[asyncio.Task[None]], grace_seconds: float) -> None:
        self._stopping.set()
        if self._consumer is not None:
            self._consumer.stop()
        _, left = await asyncio.wait(tasks, timeout=grace_seconds)
        if left and self._consumer is not None:
            data = {"jobs": self._consumer.give_back()}
            _log.info("jobs_given_back", extra={"data": data})
            _, left = await asyncio.wait(tasks, timeout=RETURN_SECONDS)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=RETURN_SECONDS)

    async def _consume(self) -> None:
        """Consume while there is a database, and come back when there is one again (rule 3)."""
        await load_queue()
        pause, is_away = _FIRST_PAUSE_SECONDS, False
        while not self._stopping.is_set():
            try:
                async with self._connected() as consumer:
                    if is_away:
                        _log.info("worker_reconnected")
                    pause, is_away = _FIRST_PAUSE_SECONDS, False
                    await consumer.run()
            except Exception as error:  # whatever ends it, a worker goes on
                if not is_away:
                    data = {"reason": type(error).__name__}
                    _log.warning("worker_disconnected", extra={"data": data})
                is_away = True
                await self._pause(pause)
                pause = min(pause * 2, _MAX_PAUSE_SECONDS)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Consumer]:
        from app.adapters.postgres.compaction.queue import Consumer, connected

        async with connected(self._url) as connection:
            consumer = Consumer(connection, self._handle, self._concurrency, self._pace)
            await consumer.check()
            self._consumer = consumer
            if self._stopping.is_set():
                consumer.stop()
            try:
                yield consumer
            finally:
                self._consumer = None

    async def _handle(self, entry: Entry) -> float | None:
        """Work on an entry; returns the seconds after which it should come again, if it should."""
        try:
            with self._watch(entry.conversation_id, entry.job_id):
                await self._work(entry.tenant_id, entry.conversation_id, entry.job_id)
        except Exception as error:  # whatever it was, what is to be done must not be lost
            data = {
                "conversation_id": entry.conversation_id,
                "job_id": entry.job_id,
                "attempts": entry.attempts,
                "error": type(error).__name__,
                "places": logs.places(error),
            }
            if entry.attempts < MAX_ATTEMPTS:
                _log.warning("job_interrupted", extra={"data": data})
                return min(2.0**entry.attempts, MAX_DELAY_SECONDS)
            _log.error("job_given_up", extra={"data": data})
            await self._give_up(entry)
        else:
            await self._prepare_search(entry)
        return None

    async def _prepare_search(self, entry: Entry) -> None:
        """Index what the work has hidden; a search does it where this fails."""
        if self._prepare is None:
            return
        try:
            await self._prepare(entry.tenant_id, entry.conversation_id)
        except Exception as error:  # the work itself is done
            data = {"conversation_id": entry.conversation_id, "error": type(error).__name__}
            _log.warning("search_not_prepared", extra={"data": data})

    async def _give_up(self, entry: Entry) -> None:
        async with self._database.session() as records:
            if entry.job_id is None:
                await records.jobs.postpone(entry.conversation_id, GIVEN_UP_SECONDS)
                return
            detail = "The job was interrupted again and again"
            told = json_text.dumps({"code": ServiceUnavailable.code, "detail": detail})
            await records.jobs.change(entry.conversation_id, entry.job_id, "failed", error=told)

    async def _again_and_again(
        self, name: str, chore: Callable[[], Awaitable[object]], seconds: float
    ) -> None:
        """Do a chore now and every so many seconds; one time may fail, the next must come."""
        while not self._stopping.is_set():
            try:
                await chore()
            except ServiceUnavailable:
                pass  # the consumer says so
            except Exception as error:
                data = {"chore": name, "error": type(error).__name__}
                _log.error("chore_failed", extra={"data": data})
            await self._pause(seconds)

    async def _collect_due(self, collect: Collect) -> None:
        """Collect what nothing refers to (F7)."""
        taken = await collect()
        if taken:
            _log.info("blobs_collected", extra={"data": {"blobs": taken}})

    async def _delete_expired(self, forget: Forget) -> None:
        """Forget what has had its time."""
        gone = await forget()
        if gone:
            _log.info("forgotten", extra={"data": dict(gone)})

    async def _pause(self, seconds: float) -> None:
        """Wait so long, or until told to stop."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()


def worker_of(settings: Settings, parts: Parts) -> Worker:
    """Return the worker for these settings, over the parts of its process."""
    return Worker(
        parts.database,
        parts.queue,
        settings.direct_database_url or settings.database_url or "",
        parts.compaction.work,
        concurrency=settings.worker_concurrency,
        sweep_seconds=settings.sweep_seconds,
        prepare=parts.search.prepare,
        collect=parts.blobs.collect_due,
        collect_seconds=settings.blob_gc_seconds,
        forget=parts.retention.delete_expired,
        watch=parts.telemetry.working,
    )


async def work(settings: Settings) -> None:
    """Work until SIGTERM or SIGINT; what `context-service worker` runs."""
    logs.configure(settings.log_level)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    parts = compose(settings)
    async with parts.opened(), worker_of(settings, parts).running(GRACE_SECONDS):
        with _metrics_of(settings, parts):
            await stopped.wait()


def _metrics_of(settings: Settings, parts: Parts) -> AbstractContextManager[object]:
    """Serve `/metrics` if the settings have a port for it."""
    if settings.metrics_port is None:
        return nullcontext()
    from app.adapters.telemetry.metrics_server import serving_metrics

    return serving_metrics(parts.telemetry, settings.host, settings.metrics_port)
