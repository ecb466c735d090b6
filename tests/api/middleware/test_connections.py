"""Bounds of connections: heads, bodies and time before a request is whole (over sockets).

[api.limits]
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, cast

import pytest
import uvicorn

from app.api.middleware.connections import (
    MAX_HEADERS,
    BoundedProtocol,
    ConnectionLimits,
    max_connections,
)
from app.main import create_app
from app.settings import Settings
from tests.conftest import serving

LIMITS = ConnectionLimits(connections=20, head_bytes=2000, head_seconds=0.6, body_stall_seconds=0.5)
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
    names = ",".join(name.decode() for name, _ in scope["headers"])
    body = f"{size} {names}".encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@contextmanager
def bounded(app: Any, limits: ConnectionLimits) -> Iterator[int]:
    """Serve an app with these limits, and yield its port."""
    protocol = cast("type[asyncio.Protocol]", partial(BoundedProtocol, limits=limits))
    config = uvicorn.Config(app, port=0, log_level="error", lifespan="off", http=protocol)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="bounded", daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started:
        assert thread.is_alive() and time.monotonic() < deadline, "the server did not start"
        time.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(20)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a server with small limits."""
    with bounded(echo, LIMITS) as found:
        yield found


def opened(port: int) -> socket.socket:
    """Return a connection to the server."""
    return socket.create_connection(("127.0.0.1", port), timeout=10)


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


def problem_in(answer: bytes, status: int) -> Any:
    """Assert that an answer is a problem with this status, and return it."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), answer[:300]
    assert b"content-type: application/problem+json" in head.lower()
    assert b"connection: close" in head.lower()
    return json.loads(body)


def closing(head: bytes) -> bytes:
    """Return a request with `Connection: close`."""
    return head + b"Connection: close\r\n\r\n"


@pytest.mark.parametrize(
    "begin",
    [HEAD + b"X: " + b"a" * 3000, HEAD + b"X: y\r\n" * 600, b"GET /" + b"a" * 3000],
    ids=["one header", "many headers", "request line"],
)
@pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "endless"])
def test_the_bytes_of_a_head_are_bounded(port: int, begin: bytes, is_whole: bool) -> None:
    """A head over the limit is 431, whether it ends or not, in one piece or in many."""
    end = b" HTTP/1.1\r\nHost: a\r\n\r\n" if begin.startswith(b"GET") else b"\r\n\r\n"
    whole = begin + (end if is_whole else b"")
    pieces = [whole[at : at + 700] for at in range(0, len(whole), 700)]
    for parts in ([whole], pieces):
        found = problem_in(sent(port, *parts, pause=0.01), 431)
        assert found["code"] == "PAYLOAD_TOO_LARGE" and "2,000 bytes" in found["detail"]


def test_the_headers_of_a_head_are_bounded(port: int) -> None:
    """One header more than there may be is 431, however short it is."""
    most = b"".join(b"a:\r\n" for _ in range(MAX_HEADERS - 2))
    assert sent(port, closing(HEAD + most)).startswith(b"HTTP/1.1 200 ")
    problem_in(sent(port, closing(HEAD + most + b"a:\r\n")), 431)


def test_a_head_at_the_limit_is_accepted(port: int) -> None:
    """A head of the limit's bytes is handled, and what follows it as well."""
    head = HEAD + b"X: " + b"a" * (LIMITS.head_bytes - 80) + b"\r\n"
    answer = sent(port, head + b"\r\n" + closing(b"GET /b HTTP/1.1\r\nHost: a\r\n"))
    assert answer.count(b"HTTP/1.1 200 ") == 2


@pytest.mark.parametrize(
    ("begin", "status"),
    [(b"", None), (HEAD, 408), (b"P", 408), (CHUNKED, 408), (CHUNKED + b"1\r\n{", 408)],
    ids=["no byte", "half a head", "one byte", "no body", "half a body"],
)
def test_an_incomplete_head_is_closed(port: int, begin: bytes, status: int | None) -> None:
    """A connection without a complete request is closed in time, with a 408 for a started head."""
    began = time.monotonic()
    answer = sent(port, begin)
    assert time.monotonic() - began < 5
    if status is None:
        assert answer == b""
    else:
        assert problem_in(answer, status)["code"] == "REQUEST_TIMEOUT"


def test_a_slow_head_is_closed(port: int) -> None:
    """Bytes that come one by one do not win a head more time."""
    began = time.monotonic()
    answer = sent(port, *[bytes([byte]) for byte in HEAD * 3], pause=0.1)
    assert time.monotonic() - began < 10
    problem_in(answer, 408)


def test_a_second_request_has_the_same_timeout(port: int) -> None:
    """A connection that was answered once is closed as well when its next head does not end."""
    with opened(port) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        time.sleep(0.2)
        connection.sendall(b"GET / HTTP")
        assert b" 408 " in rest_of(connection)


def test_empty_lines_are_not_a_request(port: int) -> None:
    """A connection that was answered once does not stay open for line ends."""
    with opened(port) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        time.sleep(0.2)
        began = time.monotonic()
        with suppress(ConnectionError):
            while time.monotonic() < began + 10:
                connection.sendall(b"\r\n")
                time.sleep(0.1)
        assert time.monotonic() - began < 8


def test_a_running_request_has_no_timeout(port: int) -> None:
    """An answer may take longer than a head or a body may."""
    answer = sent(port, closing(b"GET /slow HTTP/1.1\r\nHost: a\r\n"))
    assert answer.startswith(b"HTTP/1.1 200 ")


def test_a_body_at_the_minimum_rate_is_accepted(port: int) -> None:
    """An upload may take many times the limit at the minimum rate."""
    pieces = [b"64\r\n" + b"x" * 100 + b"\r\n"] * 15
    head = closing(HEAD + b"Transfer-Encoding: chunked\r\n")
    answer = sent(port, head, *pieces, b"0\r\n\r\n", pause=0.1)
    assert answer.startswith(b"HTTP/1.1 200 ") and b"1500 " in answer


def test_a_body_below_the_minimum_rate_is_refused(port: int) -> None:
    """A byte now and then does not keep a request open."""
    head = HEAD + b"Content-Length: 1000\r\n\r\n"
    problem_in(sent(port, head, *[b"x"] * 30, pause=0.1), 408)


def test_backpressure_does_not_count_as_a_stall(port: int) -> None:
    """A body that waits for the app is not the sender's fault."""
    head = closing(b"POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 3000000\r\n")
    answer = sent(port, head, b"x" * 3_000_000)
    assert answer.startswith(b"HTTP/1.1 200 ") and b"3000000 " in answer


@pytest.mark.parametrize(
    ("piece", "begin"),
    [
        (b"a", CHUNKED + b"1;"),
        (b"X: y\r\n", CHUNKED + b"0\r\n"),
        (b"1\r\n \r\n", CHUNKED),
    ],
    ids=["chunk extension", "trailers", "chunks of a byte"],
)
def test_framing_is_bounded(port: int, piece: bytes, begin: bytes) -> None:
    """What is around a body is no way to send without end."""
    problem_in(sent(port, begin, *[piece * 1000] * 40), 400)


def test_trailers_are_dropped(port: int) -> None:
    """A trailer is no header of the request that it ends."""
    whole = closing(HEAD + b"Transfer-Encoding: chunked\r\n") + b"1\r\nx\r\n0\r\nSneaky: 1\r\n\r\n"
    answer = sent(port, whole)
    assert b"1 host,transfer-encoding,connection" in answer and b"sneaky" not in answer


def test_connections_have_a_limit(port: int) -> None:
    """A connection over the limit receives a 503, until another one is closed."""
    several = [opened(port) for _ in range(LIMITS.connections)]
    time.sleep(0.2)
    answer = sent(port, b"")
    assert problem_in(answer, 503)["code"] == "SERVICE_UNAVAILABLE"
    assert b"retry-after: 1" in answer.lower()
    for each in several:
        each.close()
    time.sleep(0.2)
    assert sent(port, closing(HEAD)).startswith(b"HTTP/1.1 200 ")


def test_a_refusal_never_corrupts_a_previous_response(port: int) -> None:
    """A head that is too large does not write into the answer that is under way."""
    answer = sent(port, b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n", HEAD + b"X: " + b"a" * 9000)
    assert answer.count(b"HTTP/1.1") <= 1 and b" 431 " not in answer


def test_input_after_an_early_response_is_bounded(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Input after the response is dropped up to a limit."""
    monkeypatch.setattr("app.api.middleware.connections.MAX_DROPPED_BYTES", 100_000)
    head = b"POST /early HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    began = time.monotonic()
    with opened(port) as connection:
        connection.sendall(head)
        with pytest.raises(ConnectionError):
            while time.monotonic() < began + 10:
                connection.sendall(b"1000\r\n" + b"x" * 4096 + b"\r\n")


def test_connections_are_bounded_by_file_descriptors() -> None:
    """A process does not take connections that it has no file for."""
    assert max_connections(1) == 1
    assert max_connections(10**9) < 10**9


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n", 400),
        (b"GET /v1/models HTTP/1.1\r\n", 400),
        (b"GET /healthz HTTP/1.0\r\nHost: a\r\nHost: b\r\n", 400),
        (b"GET /healthz HTTP/1.0\r\n", 200),
        (b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n", 200),
    ],
)
def test_a_request_with_two_hosts_is_refused(settings: Settings, head: bytes, status: int) -> None:
    """RFC 9112: a request of HTTP/1.1 without a Host header, or any with two, is a 400."""
    with serving(create_app(settings)) as url:
        answer = sent(int(url.rpartition(":")[2]), closing(head))
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:300]
    if status == 400:
        assert b"exactly one Host header" in answer
