"""Records metrics of this process, and reads the backlog when it is scraped.

1. Labels have few possible values: never a tenant, a conversation or a model that only a caller
   named. The `model` label has the models of the settings, which the service calls itself.
2. With `PROMETHEUS_MULTIPROC_DIR` the library keeps the numbers in files of that directory, so
   that each of several processes serves all of them. Gauges of dead processes are removed.
3. The backlog is read from the database on each scrape, for at most a second. If the database does
   not answer in time, those metrics are missing.
4. A process that serves no other requests, such as a worker, serves `/metrics` by a thread, so that
   a blocked event loop is visible: then the backlog is missing.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import platform
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Thread
from time import perf_counter
from typing import Any
from wsgiref.simple_server import make_server
from wsgiref.types import StartResponse, WSGIEnvironment

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
from prometheus_client.exposition import ThreadingWSGIServer, _SilentHandler, make_wsgi_app
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

from app.common.errors import Conflict, NotFound, ServiceUnavailable
from app.conversations.receipt import CompactResult, Observer
from app.database.connections import PoolState
from app.jobs.repository import Waiting
from app.models.usage import Completion, Gateway, ModelCall
from app.tenancy.api_keys import bearer_of

DIRECTORY_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
BACKLOG_TIMEOUT_SECONDS = 1.0
"""How long the database may take to return the backlog (rule 3)."""
SAMPLE_SECONDS = 5.0
"""How often each of several processes records the state of its pool."""
_log = logging.getLogger("app.metrics")

COUNTERS: Mapping[str, tuple[str, ...]] = {
    "http_requests": ("Requests answered, by route template", "method", "route", "status"),
    "appends": ("Appends that stored something",),
    "appended_messages": ("Messages stored by appends",),
    "appended_tokens": ("Tokens of the messages stored",),
    "builds": ("Payloads built", "format", "kind", "pressure", "degraded"),
    "compactions": ("Compactions, by outcome", "trigger", "strategy", "outcome"),
    "compaction_saved_tokens": (
        *("Tokens that compactions removed from payloads", "trigger", "strategy"),
    ),
    "llm_calls": ("Model calls, by outcome", "model", "outcome"),
    "llm_tokens": ("Tokens of answered calls, input and output", "model", "direction"),
    "llm_cost_usd": ("Cost of answered calls whose price is known, in USD", "model"),
    "refused_keys": ("Refused API keys, by reason", "reason"),
    "jobs": ("Background work, by outcome", "kind", "outcome"),
    "database_errors": ("Database sessions that failed, by kind of error", "kind"),
}
"""The counters by name: a description and the labels."""
DURATIONS: Mapping[str, tuple[str, ...]] = {
    "http_request": ("Duration of requests, without event streams", "method", "route"),
    "compaction": ("Duration of compactions", "trigger"),
    "llm_call": ("Duration of model calls", "model"),
    "job": ("Duration of background work", "kind"),
}
GAUGES: Mapping[str, str] = {
    "event_streams": "Open event streams",
    "pool_size": "Database connections that are open",
    "pool_in_use": "Database connections in use",
    "pool_waiting": "Sessions that wait for a connection",
    "pool_limit": "Database connections that may be open",
}
_REQUEST_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
_WORK_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
disable_created_metrics()  # type: ignore[no-untyped-call]


@dataclass(slots=True)
class _Measured:
    """The outcome of a block, which is counted at its end."""

    outcome: str


class Telemetry(Observer):
    """Metrics of one app or worker."""

    def __init__(self, version: str = "0", token: str | None = None) -> None:
        self._token = token
        self._directory = os.environ.get(DIRECTORY_VARIABLE)
        self.registry = registry = CollectorRegistry()
        if self._directory is None:
            registry.register(_process_collector())
        else:
            self.registry = CollectorRegistry()
        self.registry.register(_Scraped(self, version, self._directory))
        if self._directory is not None:
            MultiProcessCollector(self.registry, self._directory)  # type: ignore[no-untyped-call]
        self._counters = {
            name: Counter(f"context_{name}", text, labels, registry=registry)
            for name, (text, *labels) in COUNTERS.items()
        }
        self._durations = {
            name: Histogram(
                f"context_{name}_duration_seconds",
                text,
                labels,
                registry=registry,
                buckets=_REQUEST_BUCKETS if name == "http_request" else _WORK_BUCKETS,
            )
            for name, (text, *labels) in DURATIONS.items()
        }
        self._gauges = {
            name: Gauge(f"context_{name}", text, registry=registry, multiprocess_mode="livesum")
            for name, text in GAUGES.items()
        }
        self._request_metrics: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._pool: Callable[[], PoolState] | None = None
        self._read_backlog: Callable[[], Coroutine[Any, Any, Waiting]] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None

    # --- called by the API and the services -----------------------------------------------

    def answered(self, method: str, route: str, status: int, seconds: float | None) -> None:
        """Count a request, and record its duration unless it was a stream."""
        key = method, route, status
        cached = self._request_metrics.get(key)
        if cached is None:
            cached = self._request_metrics[key] = (
                self._counters["http_requests"].labels(*key),
                self._durations["http_request"].labels(method, route),
            )
        cached[0].inc()
        if seconds is not None:
            cached[1].observe(seconds)

    def streaming(self, change: int) -> None:
        """Count an event stream that started (1) or ended (-1)."""
        self._gauges["event_streams"].inc(change)

    def appended(self, messages: int, tokens: int) -> None:
        """Count an append, its messages and its tokens."""
        self._counters["appends"].inc()
        self._counters["appended_messages"].inc(messages)
        self._counters["appended_tokens"].inc(tokens)

    def built(self, format: str, pressure: str, *, is_delta: bool, is_degraded: bool) -> None:
        """Count a payload."""
        kind, degraded = "delta" if is_delta else "full", "yes" if is_degraded else "no"
        self._counters["builds"].labels(format, kind, pressure, degraded).inc()

    def key_refused(self, reason: str) -> None:
        """Count a refused API key."""
        self._counters["refused_keys"].labels(reason).inc()

    def database_failed(self, kind: str) -> None:
        """Count a database session that failed with this kind of error."""
        self._counters["database_errors"].labels(kind).inc()

    @contextmanager
    def compacting(self, trigger: str, strategy: str) -> Iterator[Callable[[CompactResult], None]]:
        """Count a compaction; the block passes its result."""

        def record(result: CompactResult) -> None:
            measured.outcome = "compacted" if result.compacted else "not_needed"
            if result.compacted:
                saved = max(0, result.before_tokens - result.after_tokens)
                self._counters["compaction_saved_tokens"].labels(trigger, strategy).inc(saved)

        with self.measured("compaction", trigger, strategy) as measured:
            yield record

    def called(self, call: ModelCall, answer: Completion) -> None:
        """Count the tokens and the cost of an answered model call."""
        self._counters["llm_cost_usd"].labels(call.model).inc(answer.cost(call.info) or 0.0)
        usage = answer.usage
        counts = {"input": usage.sent_tokens, "output": usage.output_tokens}
        for direction, tokens in counts.items():
            self._counters["llm_tokens"].labels(call.model, direction).inc(tokens)

    @contextmanager
    def working(self, job_id: str | None) -> Iterator[None]:
        """Count background work: a due compaction, or a job that a client requested."""
        with self.measured("job", "due" if job_id is None else "asked") as measured:
            yield
            measured.outcome = "done"

    @contextmanager
    def measured(self, what: str, *labels: str) -> Iterator[_Measured]:
        """Count and time a block."""
        started, measured = perf_counter(), _Measured("failed")
        try:
            yield measured
        except BaseException as error:
            measured.outcome = _outcome(what, error)
            raise
        finally:
            self._counters[f"{what}s"].labels(*labels, measured.outcome).inc()
            self._durations[what].labels(labels[0]).observe(perf_counter() - started)

    # --- scraped --------------------------------------------------------------------------

    def watch(
        self,
        pool: Callable[[], PoolState],
        read_backlog: Callable[[], Coroutine[Any, Any, Waiting]],
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
        self.loop = asyncio.get_running_loop()
        return await asyncio.to_thread(generate_latest, self.registry), CONTENT_TYPE_PLAIN_0_0_4

    def sample(self) -> None:
        """Record the state of the pool."""
        if self._pool is not None:
            pool = self._pool()
            for name in ("size", "in_use", "waiting", "limit"):
                self._gauges[f"pool_{name}"].set(getattr(pool, name))

    def waiting(self) -> Waiting | None:
        """Return the backlog for another thread, None if it is not read in time (rule 3)."""
        if self._read_backlog is None or self.loop is None:
            return None
        reading = asyncio.run_coroutine_threadsafe(self._read_backlog(), self.loop)
        try:
            return reading.result(BACKLOG_TIMEOUT_SECONDS)
        except (ServiceUnavailable, TimeoutError):
            reading.cancel()
            return None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """During the block update the gauges that other processes of the directory serve."""

        async def sample_periodically() -> None:
            while self._directory is not None:
                self.sample()
                await asyncio.sleep(SAMPLE_SECONDS)

        sampling = asyncio.create_task(sample_periodically())
        try:
            yield
        finally:
            sampling.cancel()


def serve_metrics(telemetry: Telemetry, host: str, port: int) -> int:
    """Serve `/metrics` by a thread from now on (rule 4), and return the port."""
    metrics, telemetry.loop = make_wsgi_app(telemetry.registry), asyncio.get_running_loop()

    def answered(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if telemetry.admits(environ.get("HTTP_AUTHORIZATION", "")):
            return metrics(environ, start)  # type: ignore[no-any-return]
        start("401 Unauthorized", [("WWW-Authenticate", "Bearer")])
        return [b"Send CONTEXT_METRICS_TOKEN as a Bearer token\n"]

    server = make_server(host, port, answered, ThreadingWSGIServer, _SilentHandler)
    Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    _log.info("metrics_served", extra={"data": {"port": server.server_port}})
    return server.server_port


@dataclass(eq=False)
class MeasuredGateway:
    """A gateway that records each call, its tokens and its cost."""

    _gateway: Gateway
    _telemetry: Telemetry

    async def complete(self, call: ModelCall) -> Completion:
        """Return the model's answer; raises ServiceUnavailable as the gateway does."""
        with self._telemetry.measured("llm_call", call.model) as measured:
            completion = await self._gateway.complete(call)
            measured.outcome = "ok"
            self._telemetry.called(call, completion)
        return completion


class _Scraped(Collector):
    """Metrics that are read on each scrape: the version, the pool and the backlog."""

    def __init__(self, telemetry: Telemetry, version: str, directory: str | None) -> None:
        self._telemetry = telemetry
        self._version = version
        self._directory = directory

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; the backlog is missing while the database is unavailable."""
        self._telemetry.sample()
        for path in Path(self._directory).glob("gauge_live*_*.db") if self._directory else ():
            pid = int(path.stem.rpartition("_")[2])
            with suppress(PermissionError):  # it runs as another user
                try:
                    os.kill(pid, 0)
                except ProcessLookupError:
                    mark_process_dead(pid, self._directory)  # type: ignore[no-untyped-call]
        description = "The version of the service"
        info = GaugeMetricFamily("context_service_info", description, labels=("version", "python"))
        info.add_metric((self._version, platform.python_version()), 1)
        yield info
        if (waiting := self._telemetry.waiting()) is not None:
            for name, text, value in (
                ("due_conversations", "Conversations with a due compaction", waiting.due),
                ("open_jobs", "Queued and running jobs", waiting.jobs),
                (
                    "queue_age_seconds",
                    "Age of the oldest due conversation or open job, in seconds",
                    waiting.oldest_seconds,
                ),
            ):
                yield GaugeMetricFamily(f"context_{name}", text, value)


@cache
def _process_collector() -> ProcessCollector:
    return ProcessCollector(registry=None)  # reads the boot time: once per process


def _outcome(what: str, error: BaseException) -> str:
    """Return the outcome of what an error has ended: of a call the gateway's reason."""
    if isinstance(error, asyncio.CancelledError):
        return "interrupted"
    if what == "llm_call":
        facts = error.facts if isinstance(error, ServiceUnavailable) else {}
        return str(facts.get("reason", "error"))
    is_discarded = what == "compaction" and isinstance(error, Conflict | NotFound)
    return "discarded" if is_discarded else "failed"
