"""A request and its response on a connection: uvicorn's, with fewer writes.

uvicorn writes the head of a response before its body, which costs a second system call and often
wakes the client twice. ASGI permits holding the head back until the first part of the body.
"""

from __future__ import annotations

from collections.abc import Iterable

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import (
    HEADER_RE,
    HEADER_VALUE_RE,
    STATUS_LINE,
    RequestResponseCycle,
)

MAX_JOINED_BYTES = 256 * 1024
"""The longest part that is copied behind its head; copying more takes longer than a write."""

_BYTES = [bytes([byte]) for byte in range(256)]
_IN_NAMES = b"".join(byte for byte in _BYTES if not HEADER_RE.search(byte))
_IN_VALUES = b"".join(byte for byte in _BYTES if not HEADER_VALUE_RE.search(byte))
"""The bytes that uvicorn accepts in a header; searching its patterns takes ten times as long."""
_LENGTH = b"content-length"
_HANDLED_BY_UVICORN = frozenset({b"connection", b"transfer-encoding"})


class Exchange(RequestResponseCycle):
    """Writes the head of a response of known length together with the first part of its body."""

    _head = b""

    async def send(self, message: ASGISendEvent) -> None:
        """Handle a message of the app."""
        if message["type"] == "http.response.start":
            if not (self.response_started or self.access_log or self.scope["method"] == "HEAD"):
                head = self._head_of(message["status"], message.get("headers", ()))
                if head is not None:
                    self._head, self.response_started = head, True
                    self.waiting_for_100_continue, self.chunked_encoding = False, False
                    return
        elif self._head and message["type"] == "http.response.body":
            body, head = message.get("body", b""), self._head
            self._head = b""
            if len(body) <= MAX_JOINED_BYTES:
                self.expected_content_length += len(head)
                message = {
                    "type": "http.response.body",
                    "body": head + body,
                    "more_body": message.get("more_body", False),
                }
            elif not self.disconnected:
                self.transport.write(head)
        await super().send(message)

    def _head_of(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
        """Return the head of a response of known length, None for one that uvicorn writes."""
        lines = [STATUS_LINE[status]]
        for name, value in (*self.default_headers, *headers):
            lines += (name.lower(), b": ", value, b"\r\n")
        names, values = lines[1::4], lines[3::4]
        if _LENGTH not in names or not _HANDLED_BY_UVICORN.isdisjoint(names):
            return None
        if b"".join(names).translate(None, _IN_NAMES) or b"".join(values).translate(
            None, _IN_VALUES
        ):
            raise RuntimeError("Invalid HTTP header.")
        self.expected_content_length = int(values[names.index(_LENGTH)])
        lines.append(b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n")
        return b"".join(lines)
