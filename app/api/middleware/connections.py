"""Connections: what a request may cost before it is whole (uvicorn's httptools protocol, bounded).

uvicorn bounds neither the bytes of a request's head nor the time until the request is complete.

1. A head, which is the request line and the headers, has so many bytes and headers at most (431),
   and is complete after so many seconds (408). A connection without a byte is closed by then.
2. A body may take as long as it likes while it moves: it is given up (408) when too few bytes came
   in a while. The time in which the server did not read, because the work on the body was behind,
   does not count.
3. What frames a body, such as the sizes of chunks, their extensions and trailers, is bounded by
   the body itself (400). Trailers are dropped: they come when the request is under way.
4. There are so many connections at most; one more is answered with 503.
5. A refusal is written as any other problem. Then input is dropped for a while, since closing a
   connection that has unread input resets it, and the sender would not see the answer.
"""

from __future__ import annotations

import resource
from asyncio import TimerHandle, Transport
from dataclasses import dataclass
from enum import Enum
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from app.api.http.errors import problem
from app.domain.common.errors import PayloadTooLarge, ServiceUnavailable, ValidationError

MAX_HEADERS = 128
MIN_BODY_BYTES_PER_SECOND = 100
"""The slowest that a body may come."""
MAX_DROPPED_BYTES = 64 * 2**20
"""What may still come of a body whose request is answered."""
TIMEOUT_CODE = "REQUEST_TIMEOUT"

_FRAMING_PER_BYTE = 1  # a chunk has five bytes around it, and should have more in it
_AROUND_HEADER = len(": \r\n")
_LINGER_SECONDS = 2.0
_OTHER_FILES = 64
_RETRY_AFTER = {"Retry-After": "1"}


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The bounds of connections and of requests before they are whole."""

    connections: int
    head_bytes: int
    head_seconds: float
    body_stall_seconds: float


def most_connections(wanted: int) -> int:
    """Return how many connections a process can have, as many as are wanted or it has files for."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, files - _OTHER_FILES))


class _Part(Enum):
    """What is awaited of a connection."""

    NOTHING = "nothing"  # the next request
    HEAD = "head"
    BODY = "body"


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol for one connection, within limits."""

    def __init__(self, *, limits: ConnectionLimits, **given: Any) -> None:
        super().__init__(**given)
        self._limits = limits
        self._part = _Part.NOTHING
        self._timer: TimerHandle | None = None
        self._is_refused = False
        self._head_bytes = self._headers = 0  # of the head that is read
        self._received = self._body_bytes = self._moved = 0  # since the head or body began
        self._was_paused = False
        self._dropped = 0

    # --- the connection -------------------------------------------------------------------

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Wait for a head, or refuse a connection too many."""
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections:
            detail = f"All {self._limits.connections:,} connections of this process are taken"
            self._refuse(503, ServiceUnavailable.code, detail, _RETRY_AFTER)
            return
        self._wait(self._limits.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read what came, and refuse a request that is over a bound by now."""
        if self._is_refused:
            return
        self._received += len(data)
        super().data_received(data)
        if self._is_refused or self.transport.is_closing():
            return
        if self._part is _Part.HEAD:
            if self._is_too_large() or self._received > self._limits.head_bytes:
                self._refuse_head()
            elif self._timer is None:
                self._wait(self._limits.head_seconds)
        elif self._part is _Part.BODY:
            framing = self._received - self._body_bytes
            if framing > self._limits.head_bytes + self._body_bytes * _FRAMING_PER_BYTE:
                detail = "The chunks of the body have more bytes around them than in them"
                self._refuse(400, ValidationError.code, detail)
            elif self._dropped > MAX_DROPPED_BYTES:
                self.transport.close()
            elif self._timer is None:
                self._moved = self._body_bytes
                self._wait(self._limits.body_stall_seconds)
        elif self._timer is None and self._is_idle():
            self._wait(self._limits.head_seconds)  # line ends before a request are nothing yet

    # --- what the parser finds ------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin to count a head."""
        super().on_message_begin()
        self._part = _Part.HEAD
        self._head_bytes = self._headers = 0

    def on_url(self, url: bytes) -> None:
        """Count the request line."""
        self._head_bytes += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header; drop a trailer, and what is too much."""
        if self._part is not _Part.HEAD:
            return
        self._head_bytes += len(name) + len(value) + _AROUND_HEADER
        self._headers += 1
        if not self._is_too_large():
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Have the request handled, unless its head is over a bound."""
        if self._is_refused:
            return
        if self._is_too_large():
            self._refuse_head()
            return
        self._stop_waiting()
        self._part = _Part.BODY
        self._received = self._body_bytes = self._dropped = 0
        self._was_paused = False
        super().on_headers_complete()

    def _is_too_large(self) -> bool:
        return self._headers > MAX_HEADERS or self._head_bytes > self._limits.head_bytes

    def on_body(self, body: bytes) -> None:
        """Hand on a piece of the body."""
        if self._is_refused:
            return
        self._body_bytes += len(body)
        if self.cycle.response_complete:
            self._dropped += len(body)
        super().on_body(body)
        self._was_paused = self._was_paused or self.flow.read_paused

    def on_message_complete(self) -> None:
        """Await the next request."""
        if self._is_refused:
            return
        self._stop_waiting()
        self._part = _Part.NOTHING
        self._received = 0
        super().on_message_complete()

    # --- waiting --------------------------------------------------------------------------

    def _wait(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self._waited)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _waited(self) -> None:
        """Give up what did not come in time, or go on waiting for a body that moves (rule 2)."""
        self._timer = None
        if self.transport.is_closing():
            return
        if self._part is _Part.NOTHING:
            if self._is_idle():
                self.transport.close()
        elif self._part is _Part.HEAD:
            detail = f"The head of a request is complete within {self._limits.head_seconds:g} s"
            self._refuse(408, TIMEOUT_CODE, detail)
        elif self._moves():
            self._moved, self._was_paused = self._body_bytes, self.flow.read_paused
            self._wait(self._limits.body_stall_seconds)
        else:
            detail = f"A body comes with {MIN_BODY_BYTES_PER_SECOND} bytes a second or more"
            self._refuse(408, TIMEOUT_CODE, detail)

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _moves(self) -> bool:
        moved = self._body_bytes - self._moved
        if moved >= MIN_BODY_BYTES_PER_SECOND * self._limits.body_stall_seconds:
            return True
        is_awaited = not (self.flow.read_paused or self.cycle.waiting_for_100_continue)
        return self._was_paused or not is_awaited

    # --- refusing -------------------------------------------------------------------------

    def _refuse_head(self) -> None:
        detail = (
            f"The request line and the headers have at most {self._limits.head_bytes:,} bytes and"
            f" {MAX_HEADERS} headers"
        )
        self._refuse(431, PayloadTooLarge.code, detail)

    def _refuse(
        self, status: int, code: str, detail: str, headers: dict[str, str] | None = None
    ) -> None:
        """Answer instead of the app, and end the connection (rule 5)."""
        self._is_refused = True
        self._stop_waiting()
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if self._part is not _Part.BODY or self.pipeline or cycle.response_started:
                # An answer before this one is under way, and this one would go into it.
                self.transport.close()
                return
            cycle.disconnected = True
            cycle.message_event.set()
        answer = problem(status, code, detail, headers=(headers or {}) | {"Connection": "close"})
        lines = [b"%b: %b\r\n" % field for field in answer.raw_headers]
        self.transport.write(b"".join([STATUS_LINE[status], *lines, b"\r\n", bytes(answer.body)]))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self._timer = self.loop.call_later(_LINGER_SECONDS, self.transport.close)
