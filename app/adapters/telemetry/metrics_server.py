"""`/metrics` of a process that answers no other requests, such as a worker's.

A thread answers, so that a loop that is busy or stuck is seen as well: what has to be asked there
is waited for, for `MAX_SECONDS`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterable, Iterator
from concurrent.futures import TimeoutError as LateError
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from threading import Thread
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIEnvironment

from app.adapters.telemetry.recorder import Telemetry

PATH = "/metrics"
MAX_SECONDS = 5.0
_PLAIN = "text/plain; charset=utf-8"
_log = logging.getLogger("app.metrics")


@contextmanager
def answering(telemetry: Telemetry, host: str, port: int) -> Iterator[int | None]:
    """Answer `/metrics` during the block, whose loop keeps them; yields the port.

    Work goes on without metrics where nobody can listen: then the log says so, and it is None.
    """
    loop = asyncio.get_running_loop()
    kind = _Server6 if ":" in host else _Server

    def app(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] != PATH:
            return _plain(start, "404 Not Found", "Only /metrics is here")
        if not telemetry.admits(environ.get("HTTP_AUTHORIZATION", "")):
            start("401 Unauthorized", [("Content-Type", _PLAIN), ("WWW-Authenticate", "Bearer")])
            return [b"The metrics need the token of the settings\n"]
        asked = asyncio.run_coroutine_threadsafe(telemetry.scrape(), loop)
        try:
            body, media_type = asked.result(MAX_SECONDS)
        except LateError:
            asked.cancel()
            return _plain(start, "503 Service Unavailable", "The process is stuck")
        except Exception as error:  # the server would print it, with words nobody vouches for
            _log.error("metrics_failed", extra={"data": {"error": type(error).__name__}})
            return _plain(start, "503 Service Unavailable", "The metrics cannot be told now")
        start("200 OK", [("Content-Type", media_type)])
        return [body]

    try:
        server = make_server(host, port, app, kind, _Quiet)
    except OSError as error:
        data = {"port": port, "reason": error.strerror or type(error).__name__}
        _log.error("metrics_not_served", extra={"data": data})
        yield None
        return
    Thread(target=server.serve_forever, args=(0.1,), name="metrics", daemon=True).start()
    _log.info("metrics_served", extra={"data": {"port": server.server_port}})
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Quiet(WSGIRequestHandler):
    timeout = MAX_SECONDS

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def _plain(start: StartResponse, status: str, text: str) -> Iterable[bytes]:
    start(status, [("Content-Type", _PLAIN)])
    return [f"{text}\n".encode()]
