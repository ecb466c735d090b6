"""Bounds of connections: heads, bodies and time before a request is whole (over sockets).

[api.limits]
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import uvicorn

from app.http import middleware
from app.http.middleware import BoundedProtocol
from app.main import create_app
from app.settings import Settings
from tests.conftest import serving
from tests.patience import PATIENCE_SECONDS

PERIOD_SECONDS = 0.5
MAX_CONNECTIONS = 20
HEAD = b"POST / HTTP/1.1\r\nHost: a\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the size of the body; `/slow` reads it late, `/early` not at all."""
    size, more = 0, scope["path"] != "/early"
    if scope["path"] == "/slow":
        await asyncio.sleep(1.5)
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size, more = size + len(message.get("body", b"")), message["more_body"]
    if scope["path"] == "/large":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(300):
            await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
        return
    names = ",".join(name.decode() for name, _ in scope["headers"])
    body = f"{size} {names}".encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Impatient(BoundedProtocol):
    """The protocol with a short period."""

    period_seconds = PERIOD_SECONDS


class Patient(BoundedProtocol):
    """The protocol with a period that no test waits for."""

    period_seconds = PATIENCE_SECONDS


@contextmanager
def bounded(app: Any, protocol: type[BoundedProtocol]) -> Iterator[int]:
    """Serve an app with a limit of connections, and yield its port."""
    config = uvicorn.Config(
        app,
        port=0,
        log_level="error",
        lifespan="off",
        http=protocol,
        limit_concurrency=MAX_CONNECTIONS,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="bounded", daemon=True)
    thread.start()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not server.started:
        assert thread.is_alive() and time.monotonic() < deadline, "the server did not start"
        time.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(PATIENCE_SECONDS)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a server that waits a short time for its clients."""
    with bounded(echo, Impatient) as found:
        yield found


@pytest.fixture(scope="module")
def patient_port() -> Iterator[int]:
    """The port of a server that waits for its clients."""
    with bounded(echo, Patient) as found:
        yield found


def opened(port: int) -> socket.socket:
    """Return a connection to the server."""
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)


def rest_of(connection: socket.socket) -> bytes:
    """Return all input until the server closes."""
    found = b""
    with suppress(ConnectionError):
        while data := connection.recv(65_536):
            found += data
    return found


def sent(port: int, data: bytes, *more: bytes, pause: float = 0.0) -> bytes:
    """Send pieces and return all input until the server closes."""
    with opened(port) as connection:
        with suppress(ConnectionError):
            for piece in (data, *more):
                connection.sendall(piece)
                time.sleep(pause)
        return rest_of(connection)


def closing(head: bytes) -> bytes:
    """Return a request with `Connection: close`."""
    return head + b"Connection: close\r\n\r\n"


@pytest.mark.parametrize(
    "begin",
    [HEAD + b"X: " + b"a" * 9000, HEAD + b"X: y\r\n" * 1500, b"GET /" + b"a" * 9000],
    ids=["one header", "many headers", "request line"],
)
def test_the_bytes_of_a_head_are_bounded(
    patient_port: int, begin: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection whose head is longer than the limit is closed."""
    monkeypatch.setattr(middleware, "MAX_HEAD_BYTES", 2000)
    pieces = [begin[at : at + 700] for at in range(0, len(begin), 700)]
    for parts in ([begin], pieces):
        assert sent(patient_port, *parts, pause=0.01) == b""


@pytest.mark.parametrize(
    "begin",
    [b"", HEAD, b"P", CHUNKED, CHUNKED + b"1\r\n{"],
    ids=["no byte", "half a head", "one byte", "no body", "half a body"],
)
def test_an_incomplete_request_is_refused(port: int, begin: bytes) -> None:
    """A connection without a complete request is closed in time."""
    assert sent(port, begin) == b""


def test_a_body_below_the_minimum_rate_is_refused(port: int) -> None:
    """A byte now and then does not keep a request open."""
    head = HEAD + b"Content-Length: 1000\r\n\r\n"
    assert sent(port, head, *[b"x"] * 30, pause=0.1) == b""


@pytest.mark.parametrize(
    ("piece", "begin"),
    [(b"a", CHUNKED + b"1;"), (b"X: y\r\n", CHUNKED + b"0\r\n"), (b"1\r\n \r\n", CHUNKED)],
    ids=["chunk extension", "trailers", "chunks of a byte"],
)
def test_framing_is_bounded(patient_port: int, piece: bytes, begin: bytes) -> None:
    """What is around a body is no way to send without end."""
    assert sent(patient_port, begin, *[piece * 1000] * 100) == b""


def test_a_client_that_does_not_read_is_disconnected(port: int) -> None:
    """An answer that nobody reads does not stay in memory."""
    with opened(port) as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
        time.sleep(6 * PERIOD_SECONDS)
        assert len(rest_of(connection)) < 300 * 100_000


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n", 400),
        (b"GET /v1/models HTTP/1.1\r\n", 400),
        (b"GET /healthz HTTP/1.0\r\nHost: a\r\nHost: b\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\nAuthorization: a\r\nauthorization: b\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\nAuthorization: a\r\n", 200),
        (b"GET /healthz HTTP/1.0\r\n", 200),
        (b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n", 200),
    ],
)
def test_an_ambiguous_request_is_refused(settings: Settings, head: bytes, status: int) -> None:
    """One of HTTP/1.1 without a Host header, or any with two, or with two keys, is a 400."""
    with serving(create_app(settings)) as url:
        answer = sent(int(url.rpartition(":")[2]), closing(head))
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:300]
    if status == 400:
        assert b"exactly one Host header" in answer
