"""Connection limits: uvicorn's httptools protocol with bounds on incomplete requests.

uvicorn bounds neither the bytes of a request head nor the time until the request is complete.

1. The head (request line and headers) has a limit of bytes and headers (431) and of seconds (408).
   An idle connection is closed after the same time.
2. A body has a minimum rate (408). The time in which the server does not read, because of
   backpressure, does not count.
3. The framing of a body (chunk sizes, extensions, trailers) may not exceed the body (400). Trailers
   are dropped.
4. A connection over the limit of connections receives a 503.
5. A refusal is a problem document. Input is read and dropped for a while after it, since closing a
   connection with unread input resets it, and the client would not receive the response.
"""

from __future__ import annotations

import resource
from asyncio import Event, TimerHandle, Transport
from dataclasses import dataclass
from enum import Enum
from typing import Any
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from app.api.http.errors import problem
from app.api.middleware.exchanges import Exchange
from app.domain.common.errors import PayloadTooLarge, ServiceUnavailable, ValidationError

MAX_HEADERS = 128
MIN_BODY_BYTES_PER_SECOND = 100
"""The minimum rate of a body."""
MAX_DROPPED_BYTES = 64 * 2**20
"""The maximum of input that is dropped after the response."""
TIMEOUT_CODE = "REQUEST_TIMEOUT"

_MAX_FRAMING_PER_BYTE = 1  # a chunk has five bytes of framing
_HEADER_OVERHEAD_BYTES = len(": \r\n")
_LINGER_SECONDS = 2.0
_RESERVED_FILES = 64  # file descriptors for the database, logs and files
_RETRY_AFTER = {"Retry-After": "1"}


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of connections and of incomplete requests."""

    connections: int
    head_bytes: int
    head_seconds: float
    body_stall_seconds: float


def max_connections(configured: int) -> int:
    """Return the number of connections, bounded by the file descriptors of the process."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return configured
    return max(1, min(configured, files - _RESERVED_FILES))


class _Part(Enum):
    """The part of a request that the connection waits for."""

    NOTHING = "nothing"  # the next request
    HEAD = "head"
    BODY = "body"


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol for one connection, with limits."""

    def __init__(self, *, limits: ConnectionLimits, **options: Any) -> None:
        super().__init__(**options)
        self._limits = limits
        self._part = _Part.NOTHING
        self._timer: TimerHandle | None = None
        self._is_refused = False
        self._head_bytes = self._headers = 0  # of the head that is read
        # Counts since the head or the body began
        self._received = self._body_bytes = self._counted_body_bytes = 0
        self._was_paused = False
        self._dropped = 0

    # --- the connection -------------------------------------------------------------------

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Start the timeout of the head, or refuse the connection."""
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections:
            detail = f"All {self._limits.connections:,} connections of this process are in use"
            self._refuse(503, ServiceUnavailable.code, detail, _RETRY_AFTER)
            return
        self._start_timer(self._limits.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timeout."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the data, and refuse a request over a limit."""
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
                self._start_timer(self._limits.head_seconds)
        elif self._part is _Part.BODY:
            framing = self._received - self._body_bytes
            if framing > self._limits.head_bytes + self._body_bytes * _MAX_FRAMING_PER_BYTE:
                detail = "The framing of the body exceeds the body"
                self._refuse(400, ValidationError.code, detail)
            elif self._dropped > MAX_DROPPED_BYTES:
                self.transport.close()
            elif self._timer is None:
                self._counted_body_bytes = self._body_bytes
                self._start_timer(self._limits.body_stall_seconds)
        elif self._timer is None and self._is_idle():
            self._start_timer(self._limits.head_seconds)  # empty lines before a request

    # --- callbacks of the parser ------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Start to count a head."""
        super().on_message_begin()
        self._part = _Part.HEAD
        self._head_bytes = self._headers = 0

    def on_url(self, url: bytes) -> None:
        """Count the request line."""
        self._head_bytes += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header; drop trailers and headers over the limit."""
        if self._part is not _Part.HEAD:
            return
        self._head_bytes += len(name) + len(value) + _HEADER_OVERHEAD_BYTES
        self._headers += 1
        if not self._is_too_large():
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Handle the request, unless its head is over a limit."""
        if self._is_refused:
            return
        if self._is_too_large():
            self._refuse_head()
            return
        self._stop_timer()
        self._part = _Part.BODY
        self._received = self._body_bytes = self._dropped = 0
        self._was_paused = False
        self._start_exchange()

    def _start_exchange(self) -> None:
        """Start the app, as uvicorn does without WebSockets and its limit of concurrency."""
        parser, scope = self.parser, self.scope
        http_version, url = parser.get_http_version(), httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        scope["http_version"] = http_version
        scope["method"] = parser.get_method().decode("ascii")
        scope["path"] = self.root_path + (unquote(path) if "%" in path else path)
        scope["raw_path"] = self.root_path.encode("ascii") + url.path
        scope["query_string"] = url.query or b""
        previous = self.cycle
        self.cycle = Exchange(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=http_version != "1.0" and parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        if previous is None or previous.response_complete:
            self._start_asgi_task(self.cycle, self.app)
        else:  # a pipelined request
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def _is_too_large(self) -> bool:
        return self._headers > MAX_HEADERS or self._head_bytes > self._limits.head_bytes

    def on_body(self, body: bytes) -> None:
        """Count a chunk of the body."""
        if self._is_refused:
            return
        self._body_bytes += len(body)
        if self.cycle.response_complete:
            self._dropped += len(body)
        super().on_body(body)
        self._was_paused = self._was_paused or self.flow.read_paused

    def on_message_complete(self) -> None:
        """Wait for the next request."""
        if self._is_refused:
            return
        self._stop_timer()
        self._part = _Part.NOTHING
        self._received = 0
        super().on_message_complete()

    # --- timeouts ---------------------------------------------------------------------------

    def _start_timer(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self._timed_out)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _timed_out(self) -> None:
        """Refuse an incomplete request, unless its body has the minimum rate (rule 2)."""
        self._timer = None
        if self.transport.is_closing():
            return
        if self._part is _Part.NOTHING:
            if self._is_idle():
                self.transport.close()
        elif self._part is _Part.HEAD:
            detail = f"The request head was not complete within {self._limits.head_seconds:g} s"
            self._refuse(408, TIMEOUT_CODE, detail)
        elif self._has_minimum_rate():
            self._counted_body_bytes, self._was_paused = self._body_bytes, self.flow.read_paused
            self._start_timer(self._limits.body_stall_seconds)
        else:
            detail = f"The body was slower than {MIN_BODY_BYTES_PER_SECOND} bytes per second"
            self._refuse(408, TIMEOUT_CODE, detail)

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _has_minimum_rate(self) -> bool:
        new_bytes = self._body_bytes - self._counted_body_bytes
        if new_bytes >= MIN_BODY_BYTES_PER_SECOND * self._limits.body_stall_seconds:
            return True
        is_awaited = not (self.flow.read_paused or self.cycle.waiting_for_100_continue)
        return self._was_paused or not is_awaited

    # --- refusing -------------------------------------------------------------------------

    def _refuse_head(self) -> None:
        detail = (
            f"The request line and the headers may have {self._limits.head_bytes:,} bytes and"
            f" {MAX_HEADERS} headers"
        )
        self._refuse(431, PayloadTooLarge.code, detail)

    def _refuse(
        self, status: int, code: str, detail: str, headers: dict[str, str] | None = None
    ) -> None:
        """Send a problem document and close the connection (rule 5)."""
        self._is_refused = True
        self._stop_timer()
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if self._part is not _Part.BODY or self.pipeline or cycle.response_started:
                # Another response is being sent, which this one would corrupt.
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
