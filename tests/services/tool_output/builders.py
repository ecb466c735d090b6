"""Processes that store tool output, and what they keep."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from app.blobs.byte_store import BlobStore, BlobWriter
from app.blobs.chunks import TEXT, Blob, Chunk
from app.common.errors import ContextError, ServiceUnavailable
from app.conversations.messages.service import LogService
from app.conversations.messages.stored_results import Content, Original, StoredResults
from app.conversations.service import ConversationService
from app.repositories import Database, Repositories
from app.tool_output.collection import BlobCollection
from app.tool_output.reading import BlobReader
from app.tool_output.uploads import BlobUploads
from tests.services.fakes import (
    SUMMARISER,
    TENANT,
    Clock,
    Harness,
    ScriptedGateway,
    WatchedDatabase,
    _open_sessions,
    asks,
    new_id,
    result,
    says,
    user,
)

LARGE = "line\n" * 2000
HOUR = timedelta(hours=1)


class WatchedStore(BlobStore):
    """A store that notes what is opened, and can be away."""

    def __init__(self, kept: BlobStore) -> None:
        self.kept = kept
        self.is_away = False
        self.opened: list[int] = []
        self.most_written = 0
        self.before_read: Callable[[], Awaitable[Any]] | None = None

    def check(self) -> None:
        """Raise while it is away; and never be asked while a session is open."""
        assert _open_sessions.get() == 0
        if self.is_away:
            raise ServiceUnavailable("The object store does not answer", {"reason": "Away"})

    @asynccontextmanager
    async def writer(
        self, tenant_id: str, conversation_id: str, content_id: str
    ) -> AsyncIterator[BlobWriter]:
        """Open a content for writing."""
        async with self.kept.writer(tenant_id, conversation_id, content_id) as writer:
            yield _WatchedWriter(self, writer)

    async def read(self, object_key: str | None, chunks: Sequence[Chunk]) -> list[bytes]:
        """Return the raw bytes of chunks."""
        hook, self.before_read = self.before_read, None
        if hook is not None:
            await hook()
        self.check()
        self.opened += [chunk.number for chunk in chunks]
        return await self.kept.read(object_key, chunks)

    async def copy(
        self, tenant_id: str, conversation_id: str, content_id: str, object_key: str
    ) -> str:
        """Copy an object."""
        self.check()
        return await self.kept.copy(tenant_id, conversation_id, content_id, object_key)

    async def remove(self, object_keys: Sequence[str]) -> None:
        """Delete objects."""
        self.check()
        await self.kept.remove(object_keys)

    async def delete_conversation(self, tenant_id: str, conversation_id: str) -> None:
        """Delete every object of a conversation."""
        self.check()
        await self.kept.delete_conversation(tenant_id, conversation_id)

    async def orphans(self, older_than: datetime) -> AsyncIterator[tuple[str, str, str]]:
        """Yield what was written before a time."""
        self.check()
        async for found in self.kept.orphans(older_than):
            yield found

    async def keys(self) -> list[str]:
        """Return the keys of all objects."""
        return [key async for key, _, _ in self.kept.orphans(datetime.now(UTC) + HOUR)]


class _WatchedWriter(BlobWriter):
    def __init__(self, store: WatchedStore, writer: BlobWriter) -> None:
        self._store = store
        self._writer = writer

    async def write(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        self._store.check()
        self._store.most_written = max(self._store.most_written, len(chunks))
        return await self._writer.write(chunks)

    async def finish(self) -> str | None:
        self._store.check()
        return await self._writer.finish()


class GatedDatabase(WatchedDatabase):
    """The real database, with a door before each transaction and a count of all sessions."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.before_transaction: Callable[[], Awaitable[Any]] | None = None
        self.sessions = 0

    @asynccontextmanager
    async def session(self, seconds: float | None = None) -> AsyncIterator[Repositories]:
        """Open a session and count it."""
        self.sessions += 1
        async with super().session(seconds) as session:
            yield session

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Repositories]:
        """Let what waits at the door go first, once."""
        gate, self.before_transaction = self.before_transaction, None
        if gate is not None:
            await gate()
        async with super().transaction() as session:
            yield session


class Process:
    """The services of one process that has blobs, over a store."""

    def __init__(
        self,
        database: Database,
        store: BlobStore | None = None,
        *,
        max_blob_bytes: int = 2**31,
        **harness: Any,
    ) -> None:
        self.database = GatedDatabase(database)
        self.store = WatchedStore(store or BlobStore())
        self.now = datetime.now(UTC)
        self.harness = Harness(self.database, **harness)
        self.outputs = StoredResults(self.database, self.store, new_id)
        resolver = self.harness.resolver
        self.log = LogService(
            self.database, resolver, self.outputs, self.harness.active, new_id, 1000
        )
        self.harness.log = self.log
        self.harness.conversations = ConversationService(
            self.database,
            resolver,
            new_id,
            self.harness.clock.utc,
            self.outputs.delete_conversation_objects,
            self.harness.summariser.check_model,
        )
        self.blobs = BlobReader(self.database, resolver, self.outputs)
        self.uploads = BlobUploads(self.database, resolver, self.outputs, new_id, max_blob_bytes)
        self.collection = BlobCollection(
            self.database, resolver, self.store, self.outputs, lambda: self.now, HOUR
        )

    async def upload(
        self, cid: str, *pieces: bytes, tenant: str = TENANT, tool: str | None = None
    ) -> Blob:
        """Upload some pieces."""
        blob, _ = await self.uploads.upload(
            tenant, cid, streamed(*pieces), media_type=TEXT, tool_name=tool
        )
        return blob

    async def stored(self, cid: str, content: Any, **more: Any) -> Any:
        """Append a call with its result, and return the result's ref."""
        call = new_id()
        done = await self.harness.append(cid, asks(call), result(call, content) | more)
        return done.messages[-1].output_ref

    async def read(self, cid: str, ref: str, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes of an output as they are downloaded."""
        source = await self.blobs.find(TENANT, cid, ref)
        last = source.blob.byte_size if end is None else end
        async with aclosing(self.blobs.content(source, start, last)) as pieces:
            return b"".join([piece async for piece in pieces])

    async def transcript(self, cid: str, content: Content = Content.AUTO) -> list[Original]:
        """Return all messages of a transcript."""
        return await self.outputs.originals(cid, await self.harness.messages(cid), content)

    async def collect(self, cid: str, **how: Any) -> list[str]:
        """Collect, and return the ids of what was taken."""
        return [ref.id for ref in (await self.collection.collect(TENANT, cid, **how)).collected]

    async def compacted(self, policy: Any = None) -> tuple[str, list[str]]:
        """Return a conversation whose middle is compacted, and the refs of three large results.

        The first two were in the middle, the last one is still shown.
        """
        sandwich = {"preserve_top": 1, "preserve_bottom": 3}
        cid = await self.harness.conversation({"sandwich": sandwich, **(policy or {})})
        await self.harness.append(cid, user("begin"), says("well"))
        refs = []
        for name in ("first", "second"):
            await self.harness.append(cid, user(f"and the {name}?"), says("yes " * 200))
            refs.append((await self.stored(cid, f"{name}\n{LARGE}")).id)
        await self.harness.append(cid, user("and the last?"))
        refs.append((await self.stored(cid, f"last\n{LARGE}")).id)
        assert (await self.harness.compact(cid)).compacted
        return cid, refs


async def streamed(*pieces: bytes) -> AsyncIterator[bytes]:
    """Yield pieces as a client sends them: no session is open meanwhile."""
    for piece in pieces:
        assert _open_sessions.get() == 0
        await asyncio.sleep(0)
        yield piece


def refused(work: Awaitable[Any]) -> Awaitable[Any]:
    """Return what comes of work that may be refused."""

    async def run() -> Any:
        try:
            return await work
        except ContextError as error:
            return error

    return run()


def summarising(database: Database, kept: BlobStore) -> Process:
    """Return one process's services with a model that summarises."""
    clock = Clock()
    return Process(
        database, kept, gateway=ScriptedGateway(clock=clock), clock=clock, model=SUMMARISER
    )


async def left(connection: asyncpg.Connection) -> tuple[int, int, int]:
    """Return how many blobs, chunks and uploads there are."""
    tables = ("blobs", "blob_chunks", "blob_uploads")
    numbers = [await connection.fetchval(f"SELECT count(*) FROM {name}") for name in tables]
    return numbers[0], numbers[1], numbers[2]
