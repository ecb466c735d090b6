"""The worker: does background work, in a process of its own or beside the API.

1. It claims what waits longest, while it has a place free. A notification wakes it; it also polls,
   which finds work whose notification was lost and work whose retry is due.
2. Work runs at least once. What is interrupted by an error, a shutdown or a kill is claimed again,
   and given up after a number of attempts.
3. While the database is away the worker connects again, more and more slowly, and logs it once.
4. At intervals it deletes tool outputs that nothing refers to, and rows older than the retention;
   two workers may do so at once.
5. When it is stopped, it claims nothing more, lets running work end within its grace period, and
   releases the rest for other workers.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass

from app import logs
from app.adapters.postgres.compaction.jobs import listening
from app.adapters.postgres.database import PostgresDatabase
from app.composition import Parts, compose
from app.domain.common import json_text
from app.domain.common.errors import ServiceUnavailable
from app.domain.conversations.job import Claim
from app.services.compaction.leases import Leases
from app.settings import Settings

GRACE_SECONDS = 3.0
"""The grace period of running work in a worker's own process."""
GRACE_BESIDE_API_SECONDS = 1.0
"""The same in the API's process, after the grace period of its requests."""
RELEASE_SECONDS = 1.0
"""How long it may take to release the leases of work that is cancelled."""
MAX_ATTEMPTS = 10
MAX_DELAY_SECONDS = 60.0
GIVEN_UP_SECONDS = 600.0
"""The pause of a conversation whose work failed `MAX_ATTEMPTS` times."""

_CLAIM_AGAIN_SECONDS = 0.5
"""When to claim again after a notification: a claim skips rows that are locked at that moment."""
_FIRST_PAUSE_SECONDS = 0.5
_MAX_PAUSE_SECONDS = 10.0
_DELETE_SECONDS = 3600.0

Work = Callable[[str, str, str | None], Awaitable[None]]
"""Takes tenant, conversation and perhaps a job: runs the job, or the compaction that is due."""

_log = logging.getLogger("app.worker")


async def _prepare_nothing(_tenant_id: str, _conversation_id: str) -> None: ...


async def _collect_nothing() -> int:
    return 0


async def _delete_nothing() -> Mapping[str, int]:
    return {}


def _unwatched(_conversation_id: str, _job_id: str | None) -> AbstractContextManager[object]:
    return nullcontext()


@dataclass(eq=False)
class Worker:
    """Does background work, a few pieces at once, until it is stopped.

    - `prepare` indexes for searches what `work` on a conversation of a tenant has hidden.
    - `collect` deletes blobs that nothing refers to, and returns how many.
    - `delete_expired` deletes what is older than retention allows, and returns how much by kind.
    - `watch` measures the work on a conversation and perhaps a job.
    """

    database: PostgresDatabase
    leases: Leases
    url: str
    work: Work
    concurrency: int = 4
    poll_seconds: float = 5.0
    prepare: Callable[[str, str], Awaitable[None]] = _prepare_nothing
    collect: Callable[[], Awaitable[int]] = _collect_nothing
    collect_seconds: float = 3600.0
    delete_expired: Callable[[], Awaitable[Mapping[str, int]]] = _delete_nothing
    watch: Callable[[str, str | None], AbstractContextManager[object]] = _unwatched

    def __post_init__(self) -> None:
        self._stopping = asyncio.Event()
        self._woken = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self, grace_seconds: float = GRACE_BESIDE_API_SECONDS) -> AsyncIterator[None]:
        """Work during the block, and stop at its end (rule 5)."""
        self._stopping.clear()
        listener = asyncio.create_task(self._listen())
        tasks = {
            asyncio.create_task(task)
            for task in (
                self._claim_and_run(),
                self._repeat("collect", self._collect, self.collect_seconds),
                self._repeat("delete_expired", self._delete_expired, _DELETE_SECONDS),
            )
        }
        _log.info("worker_started", extra={"data": {"concurrency": self.concurrency}})
        try:
            yield
        finally:
            listener.cancel()
            await self._stop(tasks, grace_seconds)
            await asyncio.wait({listener})
            _log.info("worker_stopped")

    async def _stop(self, tasks: set[asyncio.Task[None]], grace_seconds: float) -> None:
        self._stopping.set()
        self._woken.set()
        _, left = await asyncio.wait(tasks, timeout=grace_seconds)
        if left and self._running:
            _log.info("jobs_given_back", extra={"data": {"jobs": len(self._running)}})
            for task in self._running:
                task.cancel()
            _, left = await asyncio.wait(tasks, timeout=RELEASE_SECONDS)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=RELEASE_SECONDS)

    async def _listen(self) -> None:
        """Listen for notifications while there is a database (rule 3)."""
        pause, is_away = _FIRST_PAUSE_SECONDS, False
        while True:
            closed = asyncio.Event()
            try:
                async with listening(self.url, self._woken.set, closed.set):
                    if is_away:
                        _log.info("worker_reconnected")
                    pause, is_away = _FIRST_PAUSE_SECONDS, False
                    self._woken.set()  # notifications may have been missed
                    await closed.wait()
                    raise ConnectionResetError("The worker's connection was closed")
            except Exception as error:  # a worker survives any error
                if not is_away:
                    data = {"reason": type(error).__name__}
                    _log.warning("worker_disconnected", extra={"data": data})
                is_away = True
                await asyncio.sleep(pause)
                pause = min(pause * 2, _MAX_PAUSE_SECONDS)

    async def _claim_and_run(self) -> None:
        """Claim work while a place is free, else wait; at the end wait for what runs."""
        is_woken = False
        while not self._stopping.is_set():
            self._woken.clear()
            while len(self._running) < self.concurrency and not self._stopping.is_set():
                claim = await self._claim()
                if claim is None:
                    break
                task = asyncio.create_task(self._run(claim))
                self._running.add(task)
                task.add_done_callback(self._ended)
            seconds = _CLAIM_AGAIN_SECONDS if is_woken else self.poll_seconds
            is_woken = await _is_set_within(self._woken, min(seconds, self.poll_seconds))
        if self._running:
            await asyncio.wait(self._running)

    async def _claim(self) -> Claim | None:
        try:
            return await self.leases.claim()
        except ServiceUnavailable:
            pass  # the listener logs it
        except Exception as error:
            _log_failed("claim", error)
        return None

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._woken.set()

    async def _run(self, claim: Claim) -> None:
        """Do the work of a claim. After an error it is claimed again, or given up."""
        if claim.attempts > MAX_ATTEMPTS:  # its processes died
            await self._give_up(claim)
            return
        try:
            async with self.leases.renewed(claim):
                with self.watch(claim.conversation_id, claim.job_id):
                    await self.work(claim.tenant_id, claim.conversation_id, claim.job_id)
        except Exception as error:
            await self._interrupted(claim, error)
        else:
            await self._prepare_search(claim)

    async def _interrupted(self, claim: Claim, error: Exception) -> None:
        data = {
            "conversation_id": claim.conversation_id,
            "job_id": claim.job_id,
            "attempts": claim.attempts,
            "error": type(error).__name__,
            "places": logs.places(error),
        }
        if claim.attempts < MAX_ATTEMPTS:
            _log.warning("job_interrupted", extra={"data": data})
            delay = min(2.0 ** (claim.attempts - 1), MAX_DELAY_SECONDS)
            await self.leases.retry_later(claim, delay)
        else:
            _log.error("job_given_up", extra={"data": data})
            await self._give_up(claim)

    async def _prepare_search(self, claim: Claim) -> None:
        """Index what the work has hidden; where this fails, the next search does it."""
        try:
            await self.prepare(claim.tenant_id, claim.conversation_id)
        except Exception as error:  # the work itself is done
            data = {"conversation_id": claim.conversation_id, "error": type(error).__name__}
            _log.warning("search_not_prepared", extra={"data": data})

    async def _give_up(self, claim: Claim) -> None:
        with suppress(ServiceUnavailable):  # then the next worker does so
            async with self.database.session() as session:
                if claim.job_id is None:
                    await session.jobs.postpone(claim.conversation_id, GIVEN_UP_SECONDS)
                else:
                    detail = "The job was interrupted too many times"
                    error = json_text.dumps({"code": ServiceUnavailable.code, "detail": detail})
                    await session.jobs.change(
                        claim.conversation_id, claim.job_id, "failed", error=error
                    )
                await session.jobs.release_lease(claim.conversation_id, claim.holder)

    async def _repeat(
        self, name: str, chore: Callable[[], Awaitable[None]], seconds: float
    ) -> None:
        """Run a chore now and at an interval; it is repeated after a failure as well."""
        while not self._stopping.is_set():
            try:
                await chore()
            except ServiceUnavailable:
                pass  # the listener logs it
            except Exception as error:
                _log_failed(name, error)
            await _is_set_within(self._stopping, seconds)

    async def _collect(self) -> None:
        if blobs := await self.collect():
            _log.info("blobs_collected", extra={"data": {"blobs": blobs}})

    async def _delete_expired(self) -> None:
        if deleted := await self.delete_expired():
            _log.info("expired_data_deleted", extra={"data": dict(deleted)})


def _log_failed(chore: str, error: Exception) -> None:
    _log.error("chore_failed", extra={"data": {"chore": chore, "error": type(error).__name__}})


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event for at most `seconds`; return whether it is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


def worker_of(settings: Settings, parts: Parts) -> Worker:
    """Return the worker for these settings, over the parts of its process."""
    return Worker(
        parts.database,
        parts.leases,
        settings.direct_database_url or settings.database_url or "",
        parts.background.work,
        concurrency=settings.worker_concurrency,
        poll_seconds=settings.sweep_seconds,
        prepare=parts.search.index_hidden,
        collect=parts.blob_collector.collect_due,
        collect_seconds=settings.blob_gc_seconds,
        delete_expired=parts.retention.delete_expired,
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
