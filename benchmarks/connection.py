"""A keep-alive HTTP connection whose own cost is negligible in a measurement.

A blocking socket, for callers that wait for one answer before they send the next request.
"""

from __future__ import annotations

import socket
from time import monotonic
from typing import Self

import orjson

_HEAD_END = b"\r\n\r\n"
_LENGTH = b"\r\ncontent-length:"
TIMEOUT_SECONDS = 120
IDLE_SECONDS = 2.0
"""A server may close a connection that was idle for longer."""


class UnexpectedAnswer(Exception):
    """An answer that ends a measurement, such as an error status."""


class Connection:
    """One connection to a server on loopback."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connect()

    def _connect(self) -> None:
        self._socket = socket.create_connection(("127.0.0.1", self._port), timeout=TIMEOUT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._used = monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def post(self, path: str, body: object) -> bytes:
        """Send an object as JSON and return the answer's body; raises unless it is a 2xx."""
        return self.send(request("POST", path, orjson.dumps(body)))

    def get(self, path: str) -> bytes:
        """Return the body at `path`; raises unless the answer is a 2xx."""
        return self.send(request("GET", path))

    def send(self, raw: bytes) -> bytes:
        """Send a request made by `request` and return the body; raises unless it is a 2xx."""
        status, body = self.exchange(raw)
        if not 200 <= status < 300:
            line = raw[: raw.index(b"\r\n")].decode()
            raise UnexpectedAnswer(f"{line}: {status} {body[:600].decode(errors='replace')}")
        return body

    def exchange(self, raw: bytes) -> tuple[int, bytes]:
        """Send a request made by `request` and return the status and the body."""
        if monotonic() - self._used > IDLE_SECONDS:
            self._socket.close()
            self._connect()
        self._socket.sendall(raw)
        received = b""
        while (end := received.find(_HEAD_END)) < 0:
            received += self._receive(65_536)
        head = received[:end].lower() + b"\r\n"
        at = head.find(_LENGTH)
        if at < 0:
            raise UnexpectedAnswer(f"no Content-Length: {received[:200]!r}")
        start = at + len(_LENGTH)
        length = int(head[start : head.index(b"\r\n", start)])
        self._used = monotonic()
        return int(received[9:12]), self._body(received[end + len(_HEAD_END) :], length)

    def _body(self, begun: bytes, length: int) -> bytes:
        if len(begun) == length:
            return begun
        body = bytearray(length)
        body[: len(begun)] = begun
        rest = memoryview(body)[len(begun) :]
        while rest:
            count = self._socket.recv_into(rest)
            if count == 0:
                raise UnexpectedAnswer("the server closed the connection inside an answer")
            rest = rest[count:]
        return bytes(body)

    def _receive(self, most: int) -> bytes:
        data = self._socket.recv(most)
        if not data:
            raise UnexpectedAnswer("the server closed the connection")
        return data


def request(method: str, path: str, body: bytes = b"") -> bytes:
    """Return the bytes of a request, so that a measured loop need not make them."""
    return (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body
