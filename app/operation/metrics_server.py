"""`/metrics` of a process that serves no other requests, such as a worker's.

A thread of the Prometheus client answers, so that a blocked event loop is visible: a scrape waits
for the loop for at most `SCRAPE_SECONDS`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import cast
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import CollectorRegistry, Metric, start_http_server
from prometheus_client.registry import Collector

from app.operation.recorder import Telemetry

PATH = "/metrics"
SCRAPE_SECONDS = 5.0
_log = logging.getLogger("app.metrics")


@contextmanager
def serving_metrics(telemetry: Telemetry, host: str, port: int) -> Iterator[int | None]:
    """Serve `/metrics` during the block; yields the port.

    If the port is not available, an error is logged and None is yielded.
    """
    registry = CollectorRegistry()
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        data = {"port": port, "reason": error.strerror or type(error).__name__}
        _log.error("metrics_not_served", extra={"data": data})
        yield None
        return
    respond = cast(WSGIApplication, server.get_app())
    server.RequestHandlerClass.timeout = SCRAPE_SECONDS  # type: ignore[attr-defined]  # slow clients

    def checked(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] != PATH:
            return _plain(start, "404 Not Found", "This port serves /metrics only")
        if not telemetry.admits(environ.get("HTTP_AUTHORIZATION", "")):
            text = "Send CONTEXT_METRICS_TOKEN as a Bearer token"
            return _plain(start, "401 Unauthorized", text, ("WWW-Authenticate", "Bearer"))
        try:
            return respond(environ, start)
        except TimeoutError:
            return _plain(start, "503 Service Unavailable", "The event loop does not respond")
        except Exception as error:  # its text, which wsgiref would print, can have content
            _log.error("metrics_failed", extra={"data": {"error": type(error).__name__}})
            return _plain(start, "503 Service Unavailable", "The metrics cannot be read now")

    server.set_app(checked)
    registry.register(_OnLoop(telemetry))  # only now: until here a scrape is empty
    _log.info("metrics_served", extra={"data": {"port": server.server_port}})
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _OnLoop(Collector):
    """Refreshes the metrics on the event loop, then yields them."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._loop = asyncio.get_running_loop()

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics; raises TimeoutError if the loop is blocked."""
        refreshing = asyncio.run_coroutine_threadsafe(self._telemetry.refresh(), self._loop)
        try:
            refreshing.result(SCRAPE_SECONDS)
        finally:
            refreshing.cancel()
        yield from self._telemetry.registry().collect()


def _plain(
    start: StartResponse, status: str, text: str, *headers: tuple[str, str]
) -> Iterable[bytes]:
    start(status, [("Content-Type", "text/plain; charset=utf-8"), *headers])
    return [f"{text}\n".encode()]
