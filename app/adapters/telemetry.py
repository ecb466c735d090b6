"""Metrics in the words of Prometheus: what happened in this process, and what waits now.

1. Labels are of small, closed sets: never a tenant, a conversation, or a model that only a caller
   named. Models are those the service calls itself, which its settings list.
2. With `PROMETHEUS_MULTIPROC_DIR` the library keeps the numbers in files of that directory, so
   that each of several processes answers for all. What a dead one had open counts no more.
3. What waits in the database is asked for when somebody looks, for at most a second. Nobody who
   looks waits for a database that does not answer: those metrics are missing then.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import platform
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Protocol

import asyncpg
from prometheus_client import (
    CONTENT_TYPE_PLAIN_0_0_4,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector
from starlette.types import ASGIApp

from app.adapters.postgres.backlog import Waiting
from app.adapters.postgres.store import Pooler, Session, Store, Timeouts
from app.domain.compaction import CompactResult
from app.domain.errors import Conflict, NotFound, ServiceUnavailable
from app.domain.keys import bearer_of
from app.domain.summaries import Completion, ModelCall
from app.services.ports import Gateway, Models

DIRECTORY_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
LOOK_SECONDS = 1.0
"""How long the database may take to tell what waits (rule 3)."""
SAMPLE_SECONDS = 5.0
"""How often one of several processes notes what its pool is like."""

REQUEST_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
WORK_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)

ANSWERED = "ok"
"""The outcome of a model call that was answered; any other is the gateway's reason."""

_OF_THE_DATABASE = (
    OSError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
"""What the store translates; a block may raise such an error for other reasons as well."""

TellResult = Callable[[CompactResult], None]
TellCompletion = Callable[[Completion], None]

disable_created_metrics()  # type: ignore[no-untyped-call]


class Spans(Protocol):
    """Times the same as metrics count, each piece of work by itself (see `tracing`)."""

    def compacting(
        self, conversation_id: str, trigger: str, strategy: str
    ) -> AbstractContextManager[TellResult]:
        """Span a compaction."""
        ...

    def calling(self, call: ModelCall) -> AbstractContextManager[TellCompletion]:
        """Span a model call."""
        ...

    def working(self, conversation_id: str, kind: str) -> AbstractContextManager[object]:
        """Span a piece of a worker's work."""
        ...

    @property
    def middleware(self) -> Callable[[ASGIApp], ASGIApp] | None:
        """What spans requests."""
        ...

    async def close(self) -> None:
        """Send what is left."""
        ...


class NoSpans:
    """Spans nothing, as long as nobody has asked for traces."""

    def compacting(
        self, conversation_id: str, trigger: str, strategy: str
    ) -> AbstractContextManager[TellResult]:
        """Do nothing."""
        return nullcontext(lambda _result: None)

    def calling(self, call: ModelCall) -> AbstractContextManager[TellCompletion]:
        """Do nothing."""
        return nullcontext(lambda _completion: None)

    def working(self, conversation_id: str, kind: str) -> AbstractContextManager[object]:
        """Do nothing."""
        return nullcontext()

    @property
    def middleware(self) -> Callable[[ASGIApp], ASGIApp] | None:
        """Nothing."""
        return None

    async def close(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The database connections of a process, and how many sessions wait for one."""

    size: int
    in_use: int
    waiting: int
    limit: int


class Metrics:
    """All metrics that are kept, on a registry of their own."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"context_{name}", about, labels, registry=registry)

        def gauge(name: str, about: str) -> Gauge:
            return Gauge(f"context_{name}", about, registry=registry, multiprocess_mode="livesum")

        def histogram(
            name: str, about: str, *labels: str, buckets: tuple[float, ...] = WORK_BUCKETS
        ) -> Histogram:
            return Histogram(f"context_{name}", about, labels, registry=registry, buckets=buckets)

        self.requests = counter(
            "http_requests", "Requests answered, by route template", "method", "route", "status"
        )
        self.request_seconds = histogram(
            "http_request_duration_seconds",
            "How long requests took, streams of events apart",
            *("method", "route"),
            buckets=REQUEST_BUCKETS,
        )
        self.streams = gauge("event_streams", "Streams of events that are open")
        self.appends = counter("appends", "Appends that stored something")
        self.appended_messages = counter("appended_messages", "Messages stored by appends")
        self.appended_tokens = counter("appended_tokens", "Tokens of the messages stored")
        self.builds = counter("builds", "Payloads built", "format", "kind", "pressure", "degraded")
        self.compactions = counter(
            "compactions", "Compactions by what became of them", "trigger", "strategy", "outcome"
        )
        self.compaction_seconds = histogram(
            "compaction_duration_seconds", "How long compactions took", "trigger"
        )
        self.saved_tokens = counter(
            "compaction_saved_tokens",
            "Tokens that compactions took off payloads",
            *("trigger", "strategy"),
        )
        self.calls = counter("llm_calls", "Calls of models, by outcome", "model", "outcome")
        self.call_seconds = histogram(
            "llm_call_duration_seconds", "How long calls of models took", "model"
        )
        self.call_tokens = counter(
            "llm_tokens", "Tokens of answered calls, input and output", "model", "direction"
        )
        self.call_cost = counter(
            "llm_cost_usd", "Cost of answered calls whose price is known, in USD", "model"
        )
        self.jobs = counter(
            "jobs", "Pieces of background work, by what became of them", "kind", "outcome"
        )
        self.job_seconds = histogram(
            "job_duration_seconds", "How long pieces of background work took", "kind"
        )
        self.pool_size = gauge("pool_size", "Database connections that are open")
        self.pool_in_use = gauge("pool_in_use", "Database connections in use")
        self.pool_waiting = gauge("pool_waiting", "Sessions that wait for a connection")
        self.pool_limit = gauge("pool_limit", "Database connections that may be open")
        self.database_errors = counter(
            "database_errors", "Sessions that the database failed, by kind of error", "kind"
        )


class Now(Collector):
    """What is not kept but told as it is: the version, and what waits (rule 3)."""

    def __init__(self, version: str) -> None:
        self._version = version
        self.waiting: Waiting | None = None

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; those of the database are missing while it is away."""
        about = "The version that answers"
        info = GaugeMetricFamily("context_service_info", about, labels=("version", "python"))
        info.add_metric((self._version, platform.python_version()), 1)
        yield info
        waiting = self.waiting
        if waiting is None:
            return
        yield GaugeMetricFamily(
            "context_due_conversations", "Conversations whose compaction waits", waiting.due
        )
        yield GaugeMetricFamily(
            "context_open_jobs", "Jobs that callers wait for, running ones too", waiting.asked
        )
        yield GaugeMetricFamily(
            "context_queue_age_seconds",
            "For how long the oldest of both has waited",
            waiting.oldest_seconds,
        )


class Telemetry:
    """Is told what happens, counts it and times it; one for each app or worker."""

    def __init__(
        self, version: str = "0", token: str | None = None, spans: Spans | None = None
    ) -> None:
        self._token = token
        self._spans = spans or NoSpans()
        self._kept = CollectorRegistry()
        self._now = Now(version)
        self._directory = os.environ.get(DIRECTORY_VARIABLE)
        if self._directory is None:
            self._kept.register(self._now)
            ProcessCollector(registry=self._kept)
        self._metrics = Metrics(self._kept)
        self._answers: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._pool: Callable[[], Pool] | None = None
        self._look: Callable[[], Awaitable[Waiting]] | None = None
        self._looking: asyncio.Task[Waiting | None] | None = None

    @property
    def middleware(self) -> Callable[[ASGIApp], ASGIApp] | None:
        """What spans requests, around everything; None without traces."""
        return self._spans.middleware

    # --- told by the API ------------------------------------------------------------------

    def answered(self, method: str, route: str, status: int, seconds: float | None) -> None:
        """Count a request, and how long it took unless it was a stream."""
        key = method, route, status
        found = self._answers.get(key)
        if found is None:
            metrics = self._metrics
            found = self._answers[key] = (
                metrics.requests.labels(*key),
                metrics.request_seconds.labels(method, route),
            )
        found[0].inc()
        if seconds is not None:
            found[1].observe(seconds)

    def streaming(self, change: int) -> None:
        """Note that a stream of events began, 1, or ended, -1."""
        self._metrics.streams.inc(change)

    # --- told by the services -------------------------------------------------------------

    def appended(self, messages: int, tokens: int) -> None:
        """Count an append that stored so many messages of so many tokens."""
        self._metrics.appends.inc()
        self._metrics.appended_messages.inc(messages)
        self._metrics.appended_tokens.inc(tokens)

    def built(self, format: str, pressure: str, *, is_delta: bool, is_degraded: bool) -> None:
        """Count a payload."""
        kind = "delta" if is_delta else "full"
        degraded = "yes" if is_degraded else "no"
        self._metrics.builds.labels(format, kind, pressure, degraded).inc()

    @contextmanager
    def compacting(self, conversation_id: str, trigger: str, strategy: str) -> Iterator[TellResult]:
        """Count a compaction by what the block tells of it, or raises."""
        metrics, outcome, started = self._metrics, "failed", perf_counter()
        try:
            with self._spans.compacting(conversation_id, trigger, strategy) as tell_span:

                def tell(result: CompactResult) -> None:
                    nonlocal outcome
                    outcome = "compacted" if result.compacted else "not_needed"
                    if result.compacted:
                        saved = max(0, result.before_tokens - result.after_tokens)
                        metrics.saved_tokens.labels(trigger, strategy).inc(saved)
                    tell_span(result)

                yield tell
        except (Conflict, NotFound):
            outcome = "superseded"
            raise
        except asyncio.CancelledError:
            outcome = "interrupted"
            raise
        finally:
            metrics.compactions.labels(trigger, strategy, outcome).inc()
            metrics.compaction_seconds.labels(trigger).observe(perf_counter() - started)

    # --- told by the gateway, the worker and the store ------------------------------------

    @contextmanager
    def calling(
        self, call: ModelCall, price: Callable[[Completion], float | None]
    ) -> Iterator[TellCompletion]:
        """Count a model call by the completion that the block tells, or by why it failed."""
        metrics, model, started = self._metrics, call.model, perf_counter()
        outcome = "error"
        try:
            with self._spans.calling(call) as tell_span:

                def tell(completion: Completion) -> None:
                    nonlocal outcome
                    outcome = ANSWERED
                    metrics.call_tokens.labels(model, "input").inc(completion.input_tokens)
                    metrics.call_tokens.labels(model, "output").inc(completion.output_tokens)
                    metrics.call_cost.labels(model).inc(price(completion) or 0.0)
                    tell_span(completion)

                yield tell
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
        """Count a piece of background work: what is due, or a job that a caller asked for."""
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
        """Count a session that failed by this kind of error."""
        self._metrics.database_errors.labels(kind).inc()

    # --- looked at ------------------------------------------------------------------------

    def watch(self, pool: Callable[[], Pool], look: Callable[[], Awaitable[Waiting]]) -> None:
        """Ask these two when somebody looks."""
        self._pool, self._look = pool, look

    def admits(self, authorization: str) -> bool:
        """Tell whether an `Authorization` header may read the metrics, in constant time."""
        if self._token is None:
            return True
        given = bearer_of(authorization) or ""
        return hmac.compare_digest(given.encode(), self._token.encode())

    async def scrape(self) -> tuple[bytes, str]:
        """Return all metrics as text, and its media type."""
        self._now.waiting = await self._waiting()
        self.sample()
        return await asyncio.to_thread(self._text), CONTENT_TYPE_PLAIN_0_0_4

    def sample(self) -> None:
        """Note what the pool is like now."""
        if self._pool is not None:
            pool, metrics = self._pool(), self._metrics
            metrics.pool_size.set(pool.size)
            metrics.pool_in_use.set(pool.in_use)
            metrics.pool_waiting.set(pool.waiting)
            metrics.pool_limit.set(pool.limit)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep up what others of the same directory tell of this process, for the block."""
        sampling = None
        if self._directory is not None:
            sampling = asyncio.create_task(self._sample_again_and_again())
        try:
            yield
        finally:
            tasks = {task for task in (sampling, self._looking) if task is not None}
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=LOOK_SECONDS)
            await self._spans.close()

    def _text(self) -> bytes:
        if self._directory is None:
            return generate_latest(self._kept)
        _forget_dead(Path(self._directory))
        registry = CollectorRegistry()
        MultiProcessCollector(registry, self._directory)  # type: ignore[no-untyped-call]
        registry.register(self._now)
        return generate_latest(registry)

    async def _waiting(self) -> Waiting | None:
        """Return what waits, None when the database has not told in time (rule 3).

        One that hangs is asked again only when it has let go of the question before.
        """
        if self._look is None:
            return None
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(_unless_away(self._look))
        await asyncio.wait({self._looking}, timeout=LOOK_SECONDS)
        if self._looking.done():
            return None if self._looking.cancelled() else self._looking.result()
        self._looking.cancel()
        return None

    async def _sample_again_and_again(self) -> None:
        while True:
            self.sample()
            await asyncio.sleep(SAMPLE_SECONDS)


class MeasuredGateway:
    """A gateway that tells of each call; `models` knows what one costs."""

    def __init__(self, gateway: Gateway, telemetry: Telemetry, models: Models) -> None:
        self._gateway = gateway
        self._telemetry = telemetry
        self._models = models

    async def complete(self, call: ModelCall) -> Completion:
        """Return the model's answer; raises ServiceUnavailable as the gateway does."""

        def price(completion: Completion) -> float | None:
            info = self._models.find(call.model)
            return info.cost(completion.input_tokens, completion.output_tokens) if info else None

        with self._telemetry.calling(call, price) as tell:
            completion = await self._gateway.complete(call)
            tell(completion)
        return completion


class MeasuredStore(Store):
    """A store that tells when the database fails, and what its pool is like."""

    def __init__(
        self,
        url: str,
        failed: Callable[[str], None],
        *,
        min_size: int = 1,
        max_size: int = 10,
        timeouts: Timeouts | None = None,
        pooler: Pooler = Pooler.NONE,
    ) -> None:
        super().__init__(
            url, min_size=min_size, max_size=max_size, timeouts=timeouts, pooler=pooler
        )
        self._failed = failed
        self._limit = max_size
        self._waiting = 0

    @asynccontextmanager
    async def session(self, seconds: float | None = None) -> AsyncIterator[Session]:
        """Yield a session, as a store does."""
        is_waiting = True
        self._waiting += 1
        try:
            async with super().session(seconds) as session:
                is_waiting = False
                self._waiting -= 1
                yield session
        except ServiceUnavailable as error:
            if isinstance(error.__cause__, _OF_THE_DATABASE):
                self._failed(str(error.facts.get("reason")))
            raise
        finally:
            self._waiting -= is_waiting

    def pool(self) -> Pool:
        """Return what the pool is like now."""
        size = self._pool.get_size() if self._pool is not None else 0
        idle = self._pool.get_idle_size() if self._pool is not None else 0
        return Pool(size, size - idle, self._waiting, self._limit)


async def _unless_away(look: Callable[[], Awaitable[Waiting]]) -> Waiting | None:
    try:
        return await look()
    except ServiceUnavailable:
        return None


def _forget_dead(directory: Path) -> None:
    """Remove what processes that are gone had open (rule 2)."""
    for path in directory.glob("gauge_live*_*.db"):
        pid = int(path.stem.rpartition("_")[2])
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            mark_process_dead(pid, str(directory))  # type: ignore[no-untyped-call]
        except PermissionError:
            pass  # it lives, as somebody else's
