"""A port in front of a PostgreSQL that fails as networks and machines do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.patience import PATIENCE_SECONDS

_BYTES = 2**16


class DatabaseProxy:
    """A loopback port that passes bytes to a server's socket, until it is told otherwise."""

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        (host,), (port,) = (parse_qs(place.query)[name] for name in ("host", "port"))
        self._socket = f"{host}/.s.PGSQL.{port}"
        self._database = place.path
        self._server: asyncio.Server | None = None
        self._port = 0
        self._is_swallowing = False
        self._links: set[asyncio.Task[None]] = set()
        self.round_trips = 0
        """How often a client sent again after an answer; asyncpg waits for each answer."""
        self.swallowed = 0
        """How many bytes were taken and never answered."""

    @property
    def url(self) -> str:
        """The URL of the database through this port."""
        return f"postgresql://postgres@127.0.0.1:{self._port}{self._database}"

    async def heal(self) -> None:
        """Pass everything again; links that have lost bytes are cut."""
        if self._is_swallowing:
            self._is_swallowing = False
            await self.cut()
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
            self._port = self._server.sockets[0].getsockname()[1]

    def blackhole(self) -> None:
        """Take everything, on old links and new ones, and never answer."""
        self._is_swallowing = True

    async def cut(self) -> None:
        """End all links, in the middle of whatever they carry."""
        links = list(self._links)
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)

    async def refuse(self) -> None:
        """Listen no more, and end all links."""
        if self._server is not None:
            self._server.close()
            self._server = None
        await self.cut()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = asyncio.current_task()
        assert link is not None
        self._links.add(link)
        far: asyncio.StreamWriter | None = None
        try:
            near_reader, far = await asyncio.open_unix_connection(self._socket)
            answered = [True]
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._pass(reader, far, answered, is_answer=False))
                ways.create_task(self._pass(near_reader, writer, answered, is_answer=True))
        except (asyncio.CancelledError, OSError, ExceptionGroup):
            pass  # this link is over, whoever ended it
        finally:
            self._links.discard(link)
            for end in (writer, far):
                if end is not None:
                    end.transport.abort()

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answered: list[bool],
        *,
        is_answer: bool,
    ) -> None:
        while data := await reader.read(_BYTES):
            self.round_trips += answered[0] and not is_answer
            answered[0] = is_answer
            if self._is_swallowing:
                self.swallowed += len(data)
            else:
                writer.write(data)
                with suppress(ConnectionError):
                    await writer.drain()
        if not self._is_swallowing:
            raise ConnectionResetError("One end is gone, so the other one goes as well")


class ProxyThread:
    """A proxy in a loop and thread of its own."""

    def __init__(self, url: str) -> None:
        self._proxy = DatabaseProxy(url)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.do(DatabaseProxy.heal)

    @property
    def url(self) -> str:
        """The URL of the database through the proxy."""
        return self._proxy.url

    @property
    def round_trips(self) -> int:
        """How many round trips there were so far."""
        return self._proxy.round_trips

    def do(self, what: Callable[[DatabaseProxy], Any]) -> None:
        """Run an action on the proxy in its own thread."""

        async def act() -> None:
            done = what(self._proxy)
            if asyncio.iscoroutine(done):
                await done

        asyncio.run_coroutine_threadsafe(act(), self._loop).result(PATIENCE_SECONDS)


@asynccontextmanager
async def proxied(url: str) -> AsyncIterator[DatabaseProxy]:
    """Yield a proxy in front of the database that a URL names, until the end of the block."""
    proxy = DatabaseProxy(url)
    await proxy.heal()
    try:
        yield proxy
    finally:
        await proxy.refuse()
