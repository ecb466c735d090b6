"""Responses on a connection: what is written together, and that it is what uvicorn writes."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from app.api.middleware.exchanges import MAX_JOINED_BYTES, Exchange

DATE = (b"date", b"today")


class Transport:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        """Keep the data."""
        self.writes.append(data)

    def close(self) -> None:
        """Note it."""
        self.is_closed = True


def exchange(
    kind: type[RequestResponseCycle], method: str = "POST", *, keep_alive: bool = True
) -> tuple[RequestResponseCycle, Transport]:
    """Return a request whose response goes to the transport."""
    transport = Transport()
    written = cast(asyncio.Transport, transport)
    made = kind(
        scope=cast(Any, {"type": "http", "method": method}),
        transport=written,
        flow=FlowControl(written),
        logger=logging.getLogger("uvicorn.error"),
        access_logger=logging.getLogger("uvicorn.access"),
        access_log=False,
        default_headers=[DATE],
        message_event=asyncio.Event(),
        expect_100_continue=False,
        keep_alive=keep_alive,
        on_response=lambda: None,
    )
    return made, transport


async def respond(
    made: RequestResponseCycle, headers: list[tuple[bytes, bytes]], *parts: bytes, status: int = 200
) -> None:
    """Send a response with a body in these parts."""
    await made.send({"type": "http.response.start", "status": status, "headers": headers})
    for number, part in enumerate(parts, 1):
        more = number < len(parts)
        await made.send({"type": "http.response.body", "body": part, "more_body": more})


def length(size: int) -> tuple[bytes, bytes]:
    """Return the header with the length of a body."""
    return (b"Content-Length", b"%d" % size)


@pytest.mark.parametrize(
    ("parts", "writes"),
    [
        ((b"whole",), 1),
        ((b"",), 1),
        ((b"one", b"two", b"three"), 3),
        ((b"x" * MAX_JOINED_BYTES,), 1),
        ((b"x" * (MAX_JOINED_BYTES + 1),), 2),
    ],
    ids=["whole", "empty", "parts", "longest", "long"],
)
@pytest.mark.parametrize("keep_alive", [True, False])
async def test_a_head_is_written_with_the_body(
    parts: tuple[bytes, ...], writes: int, keep_alive: bool
) -> None:
    """A head of known length is one write with the first part, unless that is very long."""
    headers = [(b"X-A", b"b"), length(sum(map(len, parts))), (b"content-type", b"a/b")]
    made, transport = exchange(Exchange, keep_alive=keep_alive)
    plain, expected = exchange(RequestResponseCycle, keep_alive=keep_alive)
    await respond(made, headers, *parts)
    await respond(plain, headers, *parts)
    assert b"".join(transport.writes) == b"".join(expected.writes)
    assert len(transport.writes) == writes
    assert made.response_complete and transport.is_closed is not keep_alive


@pytest.mark.parametrize(
    ("method", "headers", "parts", "status"),
    [
        ("POST", [], (b"one", b"two"), 200),
        ("POST", [(b"transfer-encoding", b"chunked")], (b"one",), 200),
        ("POST", [length(3), (b"Connection", b"close")], (b"one",), 431),
        ("HEAD", [length(3)], (b"",), 200),
        ("POST", [], (b"",), 204),
    ],
    ids=["unknown length", "chunked", "closing", "head", "no content"],
)
async def test_other_heads_are_written_at_once(
    method: str, headers: list[tuple[bytes, bytes]], parts: tuple[bytes, ...], status: int
) -> None:
    """Uvicorn writes the head of a stream, before the first part is known."""
    made, transport = exchange(Exchange, method)
    plain, expected = exchange(RequestResponseCycle, method)
    await made.send({"type": "http.response.start", "status": status, "headers": headers})
    assert len(transport.writes) == 1
    for number, part in enumerate(parts, 1):
        more = number < len(parts)
        await made.send({"type": "http.response.body", "body": part, "more_body": more})
    await respond(plain, headers, *parts, status=status)
    assert transport.writes == expected.writes
    assert transport.is_closed == expected.is_closed


@pytest.mark.parametrize(
    "header", [(b"x\r\n", b"a"), (b"x y", b"a"), (b"x", b"a\r\nSet-Cookie: b"), (b"x", b"\x00")]
)
async def test_invalid_headers_are_refused(header: tuple[bytes, bytes]) -> None:
    """Security: a header cannot begin another one."""
    made, transport = exchange(Exchange)
    with pytest.raises(RuntimeError):
        await respond(made, [length(0), header], b"")
    assert transport.writes == []


@pytest.mark.parametrize("parts", [(b"four",), (b"one", b"two"), (b"a",)])
async def test_a_body_of_another_length_is_an_error(parts: tuple[bytes, ...]) -> None:
    """A body that is longer or shorter than its head says is not completed."""
    made, _ = exchange(Exchange)
    with pytest.raises(RuntimeError):
        await respond(made, [length(3 if len(parts) == 1 else 7)], *parts)
    assert not made.response_complete


async def test_nothing_is_written_to_a_lost_connection() -> None:
    """A client that disconnects before the body gets no head."""
    made, transport = exchange(Exchange)
    await made.send({"type": "http.response.start", "status": 200, "headers": [length(3)]})
    made.disconnected = True
    await made.send({"type": "http.response.body", "body": b"one", "more_body": False})
    assert transport.writes == []
