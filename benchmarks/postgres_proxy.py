"""A proxy between the service and PostgreSQL that counts what passes.

A round trip is counted when a client that has received something sends again: asyncpg waits
for each answer before it asks for more. The counts include preparing and connecting.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Lock, Thread
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True, slots=True)
class Counts:
    """Round trips, and bytes in each direction."""

    round_trips: int = 0
    to_server: int = 0
    from_server: int = 0

    def since(self, before: Counts) -> Counts:
        """Return what came between two readings."""
        return Counts(
            self.round_trips - before.round_trips,
            self.to_server - before.to_server,
            self.from_server - before.from_server,
        )


@dataclass(slots=True)
class Proxy:
    """Relays connections on loopback to the PostgreSQL socket of a URL."""

    url: str
    _target: str
    _listener: socket.socket
    _counts: Counts = field(default_factory=Counts)
    _lock: Lock = field(default_factory=Lock)
    _open: list[socket.socket] = field(default_factory=list)

    def read(self) -> Counts:
        """Return the counts so far."""
        with self._lock:
            return self._counts

    def accept(self) -> None:
        """Relay connections until the listener is closed."""
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._target)
                self._open += [client, server]
                relay = _Relay(self, client, server)
                for pump in (relay.upward, relay.downward):
                    Thread(target=pump, daemon=True).start()

    def count(self, round_trips: int, to_server: int, from_server: int) -> None:
        """Add to the counts."""
        with self._lock:
            now = self._counts
            self._counts = Counts(
                now.round_trips + round_trips,
                now.to_server + to_server,
                now.from_server + from_server,
            )

    def close(self) -> None:
        """Close every connection."""
        for end in (self._listener, *self._open):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@dataclass(slots=True)
class _Relay:
    """One connection; `answered` tells that the server spoke last."""

    proxy: Proxy
    client: socket.socket
    server: socket.socket
    answered: bool = True

    def upward(self) -> None:
        """Relay what the client sends."""
        with suppress(OSError):
            while data := self.client.recv(1 << 18):
                self.proxy.count(int(self.answered), len(data), 0)
                self.answered = False
                self.server.sendall(data)
            self.server.shutdown(socket.SHUT_RDWR)

    def downward(self) -> None:
        """Relay what the server answers."""
        with suppress(OSError):
            while data := self.server.recv(1 << 18):
                self.proxy.count(0, 0, len(data))
                self.answered = True
                self.client.sendall(data)
            self.client.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxied(url: str) -> Iterator[Proxy]:
    """Run a proxy to the PostgreSQL whose unix socket `url` names."""
    parts = urlsplit(url)
    options = parse_qs(parts.query)
    target = f"{options['host'][0]}/.s.PGSQL.{options['port'][0]}"
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    proxy = Proxy(
        f"postgresql://postgres@127.0.0.1:{port}{parts.path}?sslmode=disable", target, listener
    )
    Thread(target=proxy.accept, daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.close()
