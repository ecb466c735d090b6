"""The Prometheus metrics.

Labels have few possible values: never a tenant, a conversation or a model that only a caller named.
The `model` label has the models of the settings, which the service calls itself.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.work.backlog import Waiting

REQUEST_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
WORK_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)

disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """All recorded metrics, in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, description: str, *labels: str) -> Counter:
            return Counter(f"context_{name}", description, labels, registry=registry)

        def gauge(name: str, description: str) -> Gauge:
            return Gauge(
                f"context_{name}", description, registry=registry, multiprocess_mode="livesum"
            )

        def histogram(
            name: str, description: str, *labels: str, buckets: tuple[float, ...] = WORK_BUCKETS
        ) -> Histogram:
            return Histogram(
                f"context_{name}", description, labels, registry=registry, buckets=buckets
            )

        self.requests = counter(
            "http_requests", "Requests answered, by route template", "method", "route", "status"
        )
        self.request_seconds = histogram(
            "http_request_duration_seconds",
            "Duration of requests, without event streams",
            *("method", "route"),
            buckets=REQUEST_BUCKETS,
        )
        self.streams = gauge("event_streams", "Open event streams")
        self.appends = counter("appends", "Appends that stored something")
        self.appended_messages = counter("appended_messages", "Messages stored by appends")
        self.appended_tokens = counter("appended_tokens", "Tokens of the messages stored")
        self.builds = counter("builds", "Payloads built", "format", "kind", "pressure", "degraded")
        self.compactions = counter(
            "compactions", "Compactions, by outcome", "trigger", "strategy", "outcome"
        )
        self.compaction_seconds = histogram(
            "compaction_duration_seconds", "Duration of compactions", "trigger"
        )
        self.saved_tokens = counter(
            "compaction_saved_tokens",
            "Tokens that compactions removed from payloads",
            *("trigger", "strategy"),
        )
        self.calls = counter("llm_calls", "Model calls, by outcome", "model", "outcome")
        self.call_seconds = histogram(
            "llm_call_duration_seconds", "Duration of model calls", "model"
        )
        self.call_tokens = counter(
            "llm_tokens", "Tokens of answered calls, input and output", "model", "direction"
        )
        self.call_cost = counter(
            "llm_cost_usd", "Cost of answered calls whose price is known, in USD", "model"
        )
        self.refused_keys = counter("refused_keys", "Refused API keys, by reason", "reason")
        self.jobs = counter("jobs", "Background work, by outcome", "kind", "outcome")
        self.job_seconds = histogram("job_duration_seconds", "Duration of background work", "kind")
        self.pool_size = gauge("pool_size", "Database connections that are open")
        self.pool_in_use = gauge("pool_in_use", "Database connections in use")
        self.pool_waiting = gauge("pool_waiting", "Sessions that wait for a connection")
        self.pool_limit = gauge("pool_limit", "Database connections that may be open")
        self.database_errors = counter(
            "database_errors", "Database sessions that failed, by kind of error", "kind"
        )


class ScrapedMetrics(Collector):
    """Metrics that are read on each scrape: the version and the backlog."""

    def __init__(self, version: str) -> None:
        self._version = version
        self.waiting: Waiting | None = None

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; the backlog is missing while the database is unavailable."""
        description = "The version of the service"
        info = GaugeMetricFamily("context_service_info", description, labels=("version", "python"))
        info.add_metric((self._version, platform.python_version()), 1)
        yield info
        waiting = self.waiting
        if waiting is None:
            return
        yield GaugeMetricFamily(
            "context_due_conversations", "Conversations with a due compaction", waiting.due
        )
        yield GaugeMetricFamily("context_open_jobs", "Queued and running jobs", waiting.jobs)
        yield GaugeMetricFamily(
            "context_queue_age_seconds",
            "Age of the oldest due conversation or open job, in seconds",
            waiting.oldest_seconds,
        )
