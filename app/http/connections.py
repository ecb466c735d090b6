"""uvicorn's httptools protocol, which closes a connection whose client does not go on.

uvicorn closes an idle connection after a response. It neither bounds the head of a request, nor how
long it waits for a head, for a body, or for a client that does not read.

1. A head has at most `MAX_HEAD_BYTES` and what one read returns; then 431. So has the framing of a
   body beyond the size of the body; then 400. Trailers are dropped.
2. A connection is checked every `period_seconds`. A head that was awaited since the last check is a
   408, and so is a body with fewer than `MIN_BYTES` since then, unless the server does not read.
3. A client that has read fewer than `MIN_BYTES` of what waits for it is disconnected.
"""

from __future__ import annotations

from asyncio import Transport
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from app.common.errors import PayloadTooLarge, ValidationError
from app.http.errors import problem

MAX_HEAD_BYTES = 64 * 1024
MIN_BYTES = 1000


class BoundedProtocol(HttpToolsProtocol):
    """The protocol of one connection."""

    period_seconds = 15.0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._in_head, self._in_body = True, False
        self._received = 0  # since the last check
        self._around = 0  # bytes of the head, then of what is not the body, less the body
        self._was_awaited = False
        self._unsent = 0

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Start the checks."""
        super().connection_made(transport)
        self._timer = self.loop.call_later(self.period_seconds, self._check)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the checks."""
        self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the data, and refuse a head or a framing that is too long (rule 1)."""
        self._received += len(data)
        self._around += len(data)
        super().data_received(data)
        if self._around > MAX_HEAD_BYTES and not self.transport.is_closing():
            if self._in_head:
                self._refuse(
                    431, PayloadTooLarge.code, f"A head has {MAX_HEAD_BYTES:,} bytes at most"
                )
            else:
                self._refuse(400, ValidationError.code, "The framing of the body exceeds the body")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, but no trailer."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Wait for the body."""
        self._in_head, self._in_body, self._was_awaited, self._around = False, True, False, 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Count a part of the body."""
        self._around -= 2 * len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Wait for the next request."""
        self._in_head, self._in_body, self._around = True, False, 0
        super().on_message_complete()

    def resume_writing(self) -> None:
        """The client has read."""
        self._unsent = 0
        super().resume_writing()

    def _check(self) -> None:
        """Close the connection of a client that does not go on (rules 2 and 3)."""
        self._timer = self.loop.call_later(self.period_seconds, self._check)
        unsent = self.transport.get_write_buffer_size() if self.flow.write_paused else 0
        if self._unsent and unsent > self._unsent - MIN_BYTES:
            self.transport.abort()
        self._unsent = unsent
        is_answered = self.cycle is None or self.cycle.response_complete
        awaited = is_answered or (
            self._in_body and not (self.flow.read_paused or self.cycle.waiting_for_100_continue)
        )
        is_slow = is_answered or self._received < MIN_BYTES
        if awaited and self._was_awaited and is_slow and not self.transport.is_closing():
            self._refuse(408, "REQUEST_TIMEOUT", "The request was not complete in time")
        self._was_awaited, self._received = awaited, 0

    def _refuse(self, status: int, code: str, detail: str) -> None:
        """Answer with a problem, unless a response has begun, and close the connection."""
        is_answered = self.cycle is None or self.cycle.response_complete
        if is_answered or not (self.cycle.response_started or self._in_head or self.pipeline):
            answer = problem(status, code, detail, headers={"Connection": "close"})
            lines = [b"%b: %b\r\n" % field for field in answer.raw_headers]
            head = b"".join([STATUS_LINE[status], *lines, b"\r\n"])
            self.transport.write(head + bytes(answer.body))
        self.transport.close()
