"""OpenTelemetry's SDK: spans of requests, and the export of all spans to a collector.

Imported only if a collector is configured.

1. A span of a request has no body, path, query or text of an exception. Span names come from
   closed sets.
2. A thread sends spans in batches. If the collector is unavailable, spans are lost and the library
   logs it; requests never wait for it, and the shutdown waits for `CLOSE_SECONDS` at most.
3. Nothing is global: several apps in one process do not see each other's spans.
"""

from __future__ import annotations

import asyncio
import os
from threading import Thread

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Tracer, format_trace_id, get_current_span
from opentelemetry.util.http import sanitize_method
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SERVICE = "context-service"
PATH = "/v1/traces"
EXPORT_TIMEOUT_SECONDS = 5.0
"""How long one batch may take to be sent."""
CLOSE_SECONDS = 2.0
"""How long the shutdown waits for spans that are not sent yet."""
RETRY_CANCEL_SECONDS = 1.0
"""How long the shutdown then waits for a cancelled retry."""
UNTRACED = frozenset({"/healthz", "/readyz", "/metrics"})
UNROUTED = "none"

_CONTEXT_HEADERS = frozenset({b"traceparent", b"tracestate"})


class Tracing:
    """The tracer, and the spans of requests."""

    def __init__(self, endpoint: str, version: str) -> None:
        os.environ.setdefault("OTEL_SEMCONV_STABILITY_OPT_IN", "http")
        base = endpoint.rstrip("/")
        self._exporter = OTLPSpanExporter(
            base if base.endswith(PATH) else base + PATH,
            timeout=EXPORT_TIMEOUT_SECONDS,
            meter_provider=NoOpMeterProvider(),
        )
        resource = Resource.create({"service.name": SERVICE, "service.version": version})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(
            BatchSpanProcessor(self._exporter, meter_provider=NoOpMeterProvider())
        )
        self.tracer: Tracer = self._provider.get_tracer(SERVICE, version)

    def middleware(self, app: ASGIApp) -> ASGIApp:
        """Return the app with a span around every request except those to `UNTRACED`.

        The library sees the request without path, query, client and headers, except those that
        continue the caller's trace.
        """

        async def named_by_route(redacted: Scope, receive: Receive, send: Send) -> None:
            """Call the app in the library's span, which gets its name from the matched route."""
            scope, span = redacted["original_scope"], get_current_span()
            scope["trace_id"] = format_trace_id(span.get_span_context().trace_id)

            async def send_named(message: Message) -> None:
                if message["type"] == "http.response.start":
                    route = getattr(scope.get("route"), "path", UNROUTED)
                    span.update_name(f"{_method(scope)} {route}")
                    span.set_attribute("http.route", route)
                await send(message)

            await app(scope, receive, send_named)

        instrumented = OpenTelemetryMiddleware(
            named_by_route,
            default_span_details=lambda scope: (_method(scope), {}),
            tracer_provider=self._provider,
            meter_provider=NoOpMeterProvider(),
            exclude_spans=["receive", "send"],
        )

        async def traced(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["path"] in UNTRACED:
                await app(scope, receive, send)
                return
            trace_headers = [pair for pair in scope["headers"] if pair[0] in _CONTEXT_HEADERS]
            redacted_scope = {
                "type": "http",
                "method": scope["method"],
                "scheme": scope["scheme"],
                "http_version": scope["http_version"],
                "server": scope.get("server"),
                "path": "",
                "query_string": b"",
                "headers": trace_headers,
                "original_scope": scope,
            }
            await instrumented(redacted_scope, receive, send)

        return traced

    async def close(self) -> None:
        """Send the remaining spans, as far as the time suffices (rule 2)."""
        closing = Thread(target=self._provider.shutdown, name="trace-flush", daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, CLOSE_SECONDS)
        if closing.is_alive():
            self._exporter.shutdown()  # type: ignore[no-untyped-call]  # cancels a retry
            await asyncio.to_thread(closing.join, RETRY_CANCEL_SECONDS)


def _method(scope: Scope) -> str:
    """Return the method for a span name, as OpenTelemetry's conventions write it."""
    method = sanitize_method(scope["method"])
    return "HTTP" if method == "_OTHER" else method
