"""Records metrics and spans of this process, and reads the backlog when it is scraped.

1. With `PROMETHEUS_MULTIPROC_DIR` the library keeps the numbers in files of that directory, so
   that each of several processes serves all of them. Gauges of dead processes are removed.
2. The backlog is read from the database on each scrape, for at most a second. If the database does
   not answer in time, those metrics are missing.
"""

from __future__ import annotations

import asyncio
import hmac
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from prometheus_client import (
    CONTENT_TYPE_PLAIN_0_0_4,
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from starlette.types import ASGIApp

from app.common.errors import Conflict, NotFound, ServiceUnavailable
from app.conversations.compaction_results import CompactResult
from app.database.connections import PoolState
from app.models.model_calls import Completion, Gateway, ModelCall
from app.operation.metrics import Metrics, ScrapedMetrics
from app.operation.spans import CompletionRecorder, ResultRecorder, Spans
from app.tenancy.api_keys import bearer_of
from app.work.backlog import Waiting

if TYPE_CHECKING:  # OpenTelemetry's SDK is imported only if traces are configured
    from app.operation.tracing import Tracing

DIRECTORY_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
BACKLOG_TIMEOUT_SECONDS = 1.0
"""How long the database may take to return the backlog (rule 2)."""
SAMPLE_SECONDS = 5.0
"""How often each of several processes records the state of its pool."""
OK_OUTCOME = "ok"
"""The outcome of a successful model call; other outcomes are the gateway's reasons."""


@cache
def _process_collector() -> ProcessCollector:
    return ProcessCollector(registry=None)  # reads the boot time: once per process


class Telemetry:
    """Metrics and spans of one app or worker."""

    def __init__(
        self, version: str = "0", token: str | None = None, tracing: Tracing | None = None
    ) -> None:
        self._token = token
        self._tracing = tracing
        self._spans = Spans(tracing.tracer if tracing else None)
        self._registry = CollectorRegistry()
        self._scraped = ScrapedMetrics(version)
        self._directory = os.environ.get(DIRECTORY_VARIABLE)
        if self._directory is None:
            self._registry.register(self._scraped)
            self._registry.register(_process_collector())
        self._metrics = Metrics(self._registry)
        self._request_metrics: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._pool: Callable[[], PoolState] | None = None
        self._read_backlog: Callable[[], Awaitable[Waiting]] | None = None
        self._reading_backlog: asyncio.Task[Waiting | None] | None = None

    @property
    def middleware(self) -> Callable[[ASGIApp], ASGIApp] | None:
        """The ASGI middleware that spans requests; None without traces."""
        return self._tracing.middleware if self._tracing else None

    # --- called by the API ----------------------------------------------------------------

    def answered(self, method: str, route: str, status: int, seconds: float | None) -> None:
        """Count a request, and record its duration unless it was a stream."""
        key = method, route, status
        cached = self._request_metrics.get(key)
        if cached is None:
            metrics = self._metrics
            cached = self._request_metrics[key] = (
                metrics.requests.labels(*key),
                metrics.request_seconds.labels(method, route),
            )
        cached[0].inc()
        if seconds is not None:
            cached[1].observe(seconds)

    def streaming(self, change: int) -> None:
        """Count an event stream that started (1) or ended (-1)."""
        self._metrics.streams.inc(change)

    # --- called by the services -----------------------------------------------------------

    def appended(self, messages: int, tokens: int) -> None:
        """Count an append, its messages and its tokens."""
        self._metrics.appends.inc()
        self._metrics.appended_messages.inc(messages)
        self._metrics.appended_tokens.inc(tokens)

    def built(self, format: str, pressure: str, *, is_delta: bool, is_degraded: bool) -> None:
        """Count a payload."""
        kind = "delta" if is_delta else "full"
        degraded = "yes" if is_degraded else "no"
        self._metrics.builds.labels(format, kind, pressure, degraded).inc()

    @contextmanager
    def compacting(
        self, conversation_id: str, trigger: str, strategy: str
    ) -> Iterator[ResultRecorder]:
        """Count and span a compaction; the block passes its result."""
        metrics, outcome, started = self._metrics, "failed", perf_counter()
        try:
            with self._spans.compacting(conversation_id, trigger, strategy) as record_span:

                def record(result: CompactResult) -> None:
                    nonlocal outcome
                    outcome = "compacted" if result.compacted else "not_needed"
                    if result.compacted:
                        saved = max(0, result.before_tokens - result.after_tokens)
                        metrics.saved_tokens.labels(trigger, strategy).inc(saved)
                    record_span(result)

                yield record
        except (Conflict, NotFound):
            outcome = "superseded"
            raise
        except asyncio.CancelledError:
            outcome = "interrupted"
            raise
        finally:
            metrics.compactions.labels(trigger, strategy, outcome).inc()
            metrics.compaction_seconds.labels(trigger).observe(perf_counter() - started)

    def key_refused(self, reason: str) -> None:
        """Count a refused API key."""
        self._metrics.refused_keys.labels(reason).inc()

    # --- called by the gateway, the worker and the store ----------------------------------

    @contextmanager
    def calling(self, call: ModelCall) -> Iterator[CompletionRecorder]:
        """Count and span a model call; the block passes its completion."""
        metrics, model, started = self._metrics, call.model, perf_counter()
        outcome = "error"
        try:
            with self._spans.calling(call) as record_span:

                def record(answer: Completion) -> None:
                    nonlocal outcome
                    outcome = OK_OUTCOME
                    metrics.call_tokens.labels(model, "input").inc(answer.input_tokens)
                    metrics.call_tokens.labels(model, "output").inc(answer.output_tokens)
                    metrics.call_cost.labels(model).inc(answer.cost(call.info) or 0.0)
                    record_span(answer)

                yield record
        except ServiceUnavailable as error:
            outcome = str(error.facts.get("reason", outcome))
            raise
        except asyncio.CancelledError:
            outcome = "interrupted"
            raise
        finally:
            metrics.calls.labels(model, outcome).inc()
            metrics.call_seconds.labels(model).observe(perf_counter() - started)

    @contextmanager
    def working(self, conversation_id: str, job_id: str | None) -> Iterator[None]:
        """Count and span background work: a due compaction, or a job that a client requested."""
        kind, outcome, started = "due" if job_id is None else "asked", "failed", perf_counter()
        try:
            with self._spans.working(conversation_id, kind):
                yield
            outcome = "done"
        except asyncio.CancelledError:
            outcome = "interrupted"
            raise
        finally:
            self._metrics.jobs.labels(kind, outcome).inc()
            self._metrics.job_seconds.labels(kind).observe(perf_counter() - started)

    def database_failed(self, kind: str) -> None:
        """Count a database session that failed with this kind of error."""
        self._metrics.database_errors.labels(kind).inc()

    # --- scraped --------------------------------------------------------------------------

    def watch(
        self, pool: Callable[[], PoolState], read_backlog: Callable[[], Awaitable[Waiting]]
    ) -> None:
        """Read the pool and the backlog from these functions on each scrape."""
        self._pool, self._read_backlog = pool, read_backlog

    def admits(self, authorization: str) -> bool:
        """Return whether an `Authorization` header permits a scrape, in constant time."""
        if self._token is None:
            return True
        token = bearer_of(authorization) or ""
        return hmac.compare_digest(token.encode(), self._token.encode())

    async def scrape(self) -> tuple[bytes, str]:
        """Return all metrics as text, and its media type."""
        await self.refresh()
        text = await asyncio.to_thread(lambda: generate_latest(self.registry()))
        return text, CONTENT_TYPE_PLAIN_0_0_4

    async def refresh(self) -> None:
        """Update the metrics that are read on demand: the backlog and the pool."""
        self._scraped.waiting = await self._waiting()
        self.sample()

    def registry(self) -> CollectorRegistry:
        """Return the metrics of this process, or of all processes that share a directory."""
        if self._directory is None:
            return self._registry
        _remove_dead_gauges(Path(self._directory))
        registry = CollectorRegistry()
        MultiProcessCollector(registry, self._directory)  # type: ignore[no-untyped-call]
        registry.register(self._scraped)
        return registry

    def sample(self) -> None:
        """Record the state of the pool."""
        if self._pool is not None:
            pool, metrics = self._pool(), self._metrics
            metrics.pool_size.set(pool.size)
            metrics.pool_in_use.set(pool.in_use)
            metrics.pool_waiting.set(pool.waiting)
            metrics.pool_limit.set(pool.limit)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """During the block update the gauges that other processes of the directory serve."""
        sampling = None
        if self._directory is not None:
            sampling = asyncio.create_task(self._sample_periodically())
        try:
            yield
        finally:
            tasks = {task for task in (sampling, self._reading_backlog) if task is not None}
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=BACKLOG_TIMEOUT_SECONDS)
            if self._tracing:
                await self._tracing.close()

    async def _waiting(self) -> Waiting | None:
        """Return the backlog, None if the database does not answer in time (rule 2).

        A new query starts only when the previous one has ended.
        """
        if self._read_backlog is None:
            return None
        if self._reading_backlog is None or self._reading_backlog.done():
            self._reading_backlog = asyncio.create_task(_backlog_or_none(self._read_backlog))
        await asyncio.wait({self._reading_backlog}, timeout=BACKLOG_TIMEOUT_SECONDS)
        if self._reading_backlog.done():
            return None if self._reading_backlog.cancelled() else self._reading_backlog.result()
        self._reading_backlog.cancel()
        return None

    async def _sample_periodically(self) -> None:
        while True:
            self.sample()
            await asyncio.sleep(SAMPLE_SECONDS)


class MeasuredGateway:
    """A gateway that records each call, its tokens and its cost."""

    def __init__(self, gateway: Gateway, telemetry: Telemetry) -> None:
        self._gateway = gateway
        self._telemetry = telemetry

    async def complete(self, call: ModelCall) -> Completion:
        """Return the model's answer; raises ServiceUnavailable as the gateway does."""
        with self._telemetry.calling(call) as record:
            completion = await self._gateway.complete(call)
            record(completion)
        return completion


async def _backlog_or_none(read_backlog: Callable[[], Awaitable[Waiting]]) -> Waiting | None:
    try:
        return await read_backlog()
    except ServiceUnavailable:
        return None


def _remove_dead_gauges(directory: Path) -> None:
    """Remove the gauges of processes that ended (rule 1)."""
    for path in directory.glob("gauge_live*_*.db"):
        pid = int(path.stem.rpartition("_")[2])
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            mark_process_dead(pid, str(directory))  # type: ignore[no-untyped-call]
        except PermissionError:
            pass  # it runs as another user
