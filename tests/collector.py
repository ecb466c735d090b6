"""A stand-in for an OpenTelemetry collector: a real HTTP server that reads what is sent to it."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Condition, Thread
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.patience import PATIENCE_SECONDS


class Collector:
    """What arrived: requests as they came, their spans, and what the sender says of itself."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.paths: set[str] = set()
        self.status = 200
        self._arrived = Condition()

    @property
    def spans(self) -> list[Span]:
        """All spans so far."""
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def resource(self) -> dict[str, Any]:
        """The attributes of the sender, as in its first request."""
        return values(self.requests[0].resource_spans[0].resource.attributes)

    def named(self, name: str) -> list[Span]:
        """Return the spans of this name."""
        return [span for span in self.spans if span.name == name]

    def take(self, path: str, body: bytes) -> None:
        """Note a request."""
        with self._arrived:
            self.paths.add(path)
            self.requests.append(ExportTraceServiceRequest.FromString(body))
            self._arrived.notify_all()

    def wait(self, count: int) -> None:
        """Wait until so many requests have arrived."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.requests) >= count, PATIENCE_SECONDS)


def values(attributes: Any) -> dict[str, Any]:
    """Return attributes as a dict."""
    return {item.key: _value(item.value) for item in attributes}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None


@contextmanager
def collecting() -> Iterator[tuple[Collector, str]]:
    """Run a collector and yield it with its address."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            collector.take(self.path, body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(collector.status)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield collector, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
