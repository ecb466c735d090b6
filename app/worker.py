"""The worker: does background work, in a process of its own or beside the API.

1. It polls for work: jobs first, then what waits longest, up to `concurrency` at a time.
2. Work runs at least once. Work that is interrupted by an error, a shutdown or a kill is claimed
   again, and given up after `MAX_ATTEMPTS`.
3. While the database is unavailable the worker goes on polling, and logs it once.
4. At intervals it does chores: it indexes messages, and deletes tool outputs that nothing refers to
   and rows older than the retention; two workers may do so at once.
5. When it is stopped, it claims nothing more, lets running work end within its grace period, and
   releases the rest for other workers.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from app.common import logs
from app.common.errors import ServiceUnavailable
from app.composition import Services
from app.conversations.search.index import index_all
from app.jobs.leases import MAX_ATTEMPTS, Leases
from app.jobs.repository import Claim
from app.operation.recorder import serve_metrics
from app.settings import Settings

GRACE_SECONDS = 3.0
"""The grace period of running work in a worker's own process."""
GRACE_BESIDE_API_SECONDS = 1.0
"""The same in the API's process, after the grace period of its requests."""
RELEASE_SECONDS = 1.0
"""How long it may take to release the leases of work that is cancelled."""

Work = Callable[[str, str, str | None], Awaitable[None]]
"""Called with a tenant, a conversation and a job: runs the job; for None the due compaction."""
Chore = Callable[[], Awaitable[object]]
"""Work at an interval; returns what it has deleted, if anything: a number, or numbers by kind."""
_Result = TypeVar("_Result")
_log = logging.getLogger("app.worker")


@dataclass(eq=False)
class Worker:
    """Runs background work, several jobs concurrently, until it is stopped.

    - `chores` are done at intervals, in seconds.
    - `measure` records metrics of the work on a job, or None.
    """

    leases: Leases
    work: Work
    concurrency: int = 4
    poll_seconds: float = 1.0
    chores: Mapping[str, tuple[Chore, float]] = field(default_factory=dict)
    measure: Callable[[str | None], AbstractContextManager[object]] = nullcontext

    def __post_init__(self) -> None:
        self._stopping = asyncio.Event()
        self._wakeup = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._is_disconnected = False

    @asynccontextmanager
    async def running(self, grace_seconds: float = GRACE_BESIDE_API_SECONDS) -> AsyncIterator[None]:
        """Work during the block, and stop at its end (rule 5)."""
        self._stopping.clear()
        tasks = {asyncio.create_task(self._claim_and_run())}
        for name, (chore, seconds) in self.chores.items():
            tasks.add(asyncio.create_task(self._repeat(name, chore, seconds)))
        _log.info("worker_started", extra={"data": {"concurrency": self.concurrency}})
        try:
            yield
        finally:
            self._stopping.set()
            self._wakeup.set()
            _, unfinished = await asyncio.wait(tasks, timeout=grace_seconds)
            if unfinished and self._running:
                _log.info("jobs_released", extra={"data": {"jobs": len(self._running)}})
                for task in self._running:
                    task.cancel()
                _, unfinished = await asyncio.wait(tasks, timeout=RELEASE_SECONDS)
            for task in unfinished:
                task.cancel()
            if unfinished:
                await asyncio.wait(unfinished, timeout=RELEASE_SECONDS)
            _log.info("worker_stopped")

    async def _claim_and_run(self) -> None:
        """Claim and run work until the worker stops, then wait for the running work."""
        while not self._stopping.is_set():
            self._wakeup.clear()
            while len(self._running) < self.concurrency and not self._stopping.is_set():
                claim = await _unless_failed("claim", self._claim())
                if claim is None:
                    break
                task = asyncio.create_task(self._run(claim))
                self._running.add(task)
                task.add_done_callback(self._on_task_done)
            await _is_set_within(self._wakeup, self.poll_seconds)
        if self._running:
            await asyncio.wait(self._running)

    async def _claim(self) -> Claim | None:
        """Claim work; log once that the database does not answer, and when it does again."""
        try:
            claim = await self.leases.claim()
        except ServiceUnavailable as error:
            if not self._is_disconnected:
                data = {"reason": error.facts.get("reason")}
                _log.warning("worker_disconnected", extra={"data": data})
            self._is_disconnected = True
            return None
        if self._is_disconnected:
            _log.info("worker_reconnected")
        self._is_disconnected = False
        return claim

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._wakeup.set()

    async def _run(self, claim: Claim) -> None:
        """Do the work of a claim. After an error it is claimed again, or given up."""
        if claim.attempts > MAX_ATTEMPTS:  # each of these attempts ended with its process
            await self.leases.give_up(claim)
            return
        try:
            async with self.leases.renewed(claim):
                with self.measure(claim.job_id):
                    await self.work(claim.tenant_id, claim.conversation_id, claim.job_id)
        except Exception as error:
            await self.leases.retry_or_give_up(claim, error)

    async def _repeat(self, name: str, chore: Chore, seconds: float) -> None:
        """Do a chore now and then at an interval, also after a failure."""
        while not self._stopping.is_set():
            if deleted := await _unless_failed(name, chore()):
                _log.info("expired_data_deleted", extra={"data": {name: deleted}})
            await _is_set_within(self._stopping, seconds)


async def _unless_failed(chore: str, work: Awaitable[_Result]) -> _Result | None:
    """Return what some work returns, None where it fails, which is logged."""
    try:
        return await work
    except ServiceUnavailable:
        pass  # a claim logs it
    except Exception as error:
        data = {"chore": chore, "error": type(error).__name__}
        _log.error("chore_failed", extra={"data": data})
    return None


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event for at most `seconds`; return whether it is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


def worker_of(settings: Settings, services: Services) -> Worker:
    """Return the worker for these settings, over the services of its process."""
    return Worker(
        services.leases,
        services.compaction.work,
        concurrency=settings.worker_concurrency,
        poll_seconds=settings.poll_seconds,
        chores={
            "index": (partial(index_all, services.database), 10.0),
            "blobs": (services.collection.collect_all, 3600.0),
            "rows": (services.retention.delete_expired, 3600.0),
            "conversations": (services.retention.delete_expired_conversations, 60.0),
        },
        measure=services.telemetry.working,
    )


async def work(settings: Settings) -> None:
    """Work until SIGTERM or SIGINT; what `context-service worker` runs."""
    logs.configure(settings.log_level)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    services = Services(settings)
    async with services.opened(), worker_of(settings, services).running(GRACE_SECONDS):
        if settings.metrics_port is not None:
            serve_metrics(services.telemetry, settings.host, settings.metrics_port)
        await stopped.wait()
