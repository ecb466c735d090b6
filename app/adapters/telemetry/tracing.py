"""Traces in the words of OpenTelemetry, sent to a collector; imported only where one is named.

1. A span holds ids, sizes and kinds, never what was said: no bodies, no paths, no queries, no
   words of exceptions. Names of spans come from closed sets.
2. Spans are sent by a thread in batches. A collector that is away costs the spans, and one line
   in the log; requests never wait for it, and the end of the process only for `CLOSE_SECONDS`.
3. Nothing here is global: tests and apps of one process do not see each other's spans.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Thread
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import (
    Span,
    SpanKind,
    Status,
    StatusCode,
    format_trace_id,
    get_current_span,
)
from opentelemetry.util.http import sanitize_method
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.domain.common.errors import ContextError
from app.domain.compaction.planning import CompactResult
from app.domain.compaction.summaries import Completion, ModelCall

SERVICE = "context-service"
PATH = "/v1/traces"
EXPORT_SECONDS = 5.0
"""How long one batch may take to be sent."""
CLOSE_SECONDS = 2.0
"""How long the end of the process waits for what is left to be sent."""
GIVE_UP_SECONDS = 1.0
UNTRACED = frozenset({"/healthz", "/readyz", "/metrics"})
UNROUTED = "none"

PROVIDERS: Mapping[str, str] = {
    "azure": "azure.ai.openai",
    "azure_ai": "azure.ai.inference",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "vertex_ai": "gcp.vertex_ai",
    "watsonx": "ibm.watsonx.ai",
    "xai": "x_ai",
}
"""The conventions' names of providers where LiteLLM's prefix of a model is another."""

_CONTEXT_HEADERS = frozenset({b"traceparent", b"tracestate"})
_log = logging.getLogger("app.traces")


class Tracing:
    """Spans of requests, compactions, model calls and background work."""

    def __init__(self, endpoint: str, version: str) -> None:
        os.environ.setdefault("OTEL_SEMCONV_STABILITY_OPT_IN", "http")
        self._exporter = Collector(_address(endpoint))
        resource = Resource.create({"service.name": SERVICE, "service.version": version})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(
            BatchSpanProcessor(self._exporter, meter_provider=NoOpMeterProvider())
        )
        self._tracer = self._provider.get_tracer(SERVICE, version)

    @property
    def middleware(self) -> Callable[[ASGIApp], ASGIApp]:
        """What puts a span around every request."""
        return self._spanned

    def _spanned(self, app: ASGIApp) -> ASGIApp:
        """Return the app with a span around every request but those of `UNTRACED`.

        The library is shown the request without path, query, sender and headers; it takes over
        the caller's trace.
        """
        instrumented = OpenTelemetryMiddleware(
            _Inside(app),
            default_span_details=lambda scope: (_method(scope), {}),
            tracer_provider=self._provider,
            meter_provider=NoOpMeterProvider(),
            exclude_spans=["receive", "send"],
        )

        async def traced(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["path"] in UNTRACED:
                await app(scope, receive, send)
                return
            kept = [pair for pair in scope["headers"] if pair[0] in _CONTEXT_HEADERS]
            shown = {
                "type": "http",
                "method": scope["method"],
                "scheme": scope["scheme"],
                "http_version": scope["http_version"],
                "server": scope.get("server"),
                "path": "",
                "query_string": b"",
                "headers": kept,
                "whole": scope,
            }
            await instrumented(shown, receive, send)

        return traced

    @contextmanager
    def compacting(self, conversation_id: str, trigger: str, strategy: str) -> Iterator[Any]:
        """Span a compaction; the block tells its result."""
        attributes = {
            "context.conversation_id": conversation_id,
            "context.compaction.trigger": trigger,
            "context.compaction.strategy": strategy,
        }

        def tell(result: CompactResult) -> None:
            span.set_attribute("context.compaction.compacted", result.compacted)
            span.set_attribute("context.compaction.before_tokens", result.before_tokens)
            span.set_attribute("context.compaction.after_tokens", result.after_tokens)

        with self._span("compaction", attributes) as span:
            yield tell

    @contextmanager
    def calling(self, call: ModelCall) -> Iterator[Any]:
        """Span a model call by the conventions for generative AI; the block tells its answer."""
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": provider_of(call.model),
            "gen_ai.request.model": call.model,
            "gen_ai.request.max_tokens": call.max_tokens,
        }

        def tell(completion: Completion) -> None:
            span.set_attribute("gen_ai.response.finish_reasons", [completion.finish_reason])
            span.set_attribute("gen_ai.usage.input_tokens", completion.input_tokens)
            span.set_attribute("gen_ai.usage.output_tokens", completion.output_tokens)

        with self._span(f"chat {call.model}", attributes, SpanKind.CLIENT) as span:
            yield tell

    @contextmanager
    def working(self, conversation_id: str, kind: str) -> Iterator[None]:
        """Span a piece of a worker's work, which begins a trace."""
        attributes = {"context.conversation_id": conversation_id, "context.job.kind": kind}
        with self._span("job", attributes, SpanKind.CONSUMER):
            yield

    async def close(self) -> None:
        """Send what is left, as far as there is time for it (rule 2)."""
        closing = Thread(target=self._provider.shutdown, name="trace-flush", daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, CLOSE_SECONDS)
        if closing.is_alive():
            self._exporter.shutdown()  # what waits to try again gives up, and says so
            await asyncio.to_thread(closing.join, GIVE_UP_SECONDS)

    @contextmanager
    def _span(
        self, name: str, attributes: Mapping[str, Any], kind: SpanKind = SpanKind.INTERNAL
    ) -> Iterator[Span]:
        """Span the block; of what it raises only the kind is told (rule 1)."""
        with self._tracer.start_as_current_span(
            name,
            kind=kind,
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except BaseException as error:
                span.set_attribute("error.type", _kind_of(error))
                span.set_status(Status(StatusCode.ERROR))
                raise


class Collector(SpanExporter):
    """Where spans are sent to; it says when that begins to fail, and when it works again."""

    def __init__(self, address: str) -> None:
        # The library's own lines would come with every batch.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._exporter = OTLPSpanExporter(
            address, timeout=EXPORT_SECONDS, meter_provider=NoOpMeterProvider()
        )
        self._fails = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch, or lose it."""
        try:
            result = self._exporter.export(spans)
        except Exception as error:  # whatever it was, the next batch may get through
            result, kind = SpanExportResult.FAILURE, type(error).__name__
        else:
            kind = "not_taken"
        fails = result is not SpanExportResult.SUCCESS
        if fails and not self._fails:
            data = {"reason": kind, "spans": len(spans)}
            _log.warning("traces_not_sent", extra={"data": data})
        elif self._fails and not fails:
            _log.info("traces_sent_again")
        self._fails = fails
        return result

    def shutdown(self) -> None:
        """Stop trying."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Do nothing: batches are sent as they come."""
        return True


class _Inside:
    """The app inside the library's span, which is named by what the app finds out."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, shown: Scope, receive: Receive, send: Send) -> None:
        scope, span = shown["whole"], get_current_span()
        scope["trace_id"] = format_trace_id(span.get_span_context().trace_id)

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", UNROUTED)
                span.update_name(f"{_method(scope)} {route}")
                span.set_attribute("http.route", route)
            await send(message)

        await self._app(scope, receive, send_named)


def _method(scope: Scope) -> str:
    """Return the method as the conventions put it into a name."""
    method = sanitize_method(scope["method"])
    return "HTTP" if method == "_OTHER" else method


def provider_of(model: str) -> str:
    """Return the conventions' name of the provider that LiteLLM asks for a model."""
    prefix, slash, _ = model.partition("/")
    return PROVIDERS.get(prefix, prefix) if slash else "openai"


def _address(endpoint: str) -> str:
    base = endpoint.rstrip("/")
    return base if base.endswith(PATH) else base + PATH


def _kind_of(error: BaseException) -> str:
    reason = error.facts.get("reason") if isinstance(error, ContextError) else None
    return str(reason) if reason is not None else type(error).__name__
