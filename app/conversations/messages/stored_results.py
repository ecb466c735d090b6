"""Blobs between the log and the blob store: stored on append, read by transcripts and readers."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any

from app.blobs.byte_store import BlobStore
from app.blobs.chunks import CHUNK_BYTES, Blob, Chunk, Chunker
from app.blobs.offloading import NewBlob, restore_result
from app.blobs.preview import Preview, PreviewBuilder
from app.common import json_text
from app.common.concurrency import THREAD_BYTES, for_each, in_thread_if
from app.common.errors import Gone, ServiceUnavailable
from app.common.pages import UNBOUNDED, Bound
from app.conversations.messages.draft import Draft
from app.conversations.messages.row import StoredMessage
from app.formats.message import FormatName
from app.policy.policy import ToolOutputPolicy
from app.repositories import Database

DeleteConversationObjects = Callable[[str, Sequence[str]], Awaitable[None]]
"""Deletes the objects of a tenant's deleted conversations."""

CHUNKS_PER_READ = 16
"""Chunks read with one statement: one megabyte, if they are full."""
CHUNKS_PER_SMALL_READ = 2
"""Chunks of the first read, if a few may be enough."""
MAX_CONCURRENT_WRITES = 8
"""Contents of one append that are written to the store at the same time."""

_log = logging.getLogger("app.outputs")


class Content(StrEnum):
    """How much of offloaded results a transcript shows [tool-output.transcript]."""

    AUTO = "auto"
    VIEW = "view"
    FULL = "full"


MAX_BYTES = {Content.AUTO: 65_536, Content.VIEW: 0, Content.FULL: 64 * 2**20}
"""The largest output that a transcript shows whole."""


@dataclass(frozen=True, slots=True)
class Original:
    """A message of the transcript: the original, or with the preview of its result.

    `size` is its approximate length as JSON. `is_truncated` is true for a preview, `is_collected`
    if the blob was collected.
    """

    message: StoredMessage
    raw_message: dict[str, Any]
    size: int
    is_truncated: bool = False
    is_collected: bool = False


@dataclass(eq=False, repr=False)
class StoredResults:
    """Stores the blobs of drafts, and reads stored blobs a few chunks at a time."""

    _database: Database
    _store: BlobStore
    _new_id: Callable[[], str]

    async def store_blobs(
        self, tenant_id: str, conversation_id: str, drafts: Sequence[Draft]
    ) -> list[tuple[Blob, list[Chunk]]]:
        """Write the bytes of all new blobs to the store, and return the blobs' rows and chunks.

        Raises ServiceUnavailable when an object store fails [tool-output.store-failure].
        """
        new = {blob.id: (blob, chunks) for draft in drafts for blob, chunks in draft.blobs}

        async def write(new_blob: NewBlob) -> tuple[Blob, list[Chunk]]:
            blob, chunks = new_blob
            content_id = self._new_id()
            async with self._store.writer(tenant_id, conversation_id, content_id) as writer:
                stored = await writer.write(chunks)
                key = await writer.finish()
            return replace(blob, content_id=content_id, object_key=key), stored

        return await for_each(new.values(), write, MAX_CONCURRENT_WRITES)

    async def write(
        self,
        place: tuple[str, str, str],
        pieces: AsyncIterator[bytes],
        chunker: Chunker,
        add: Callable[[Sequence[Chunk]], Awaitable[None]],
    ) -> str | None:
        """Write a stream to the store, and return the key of its object, if there is one.

        The place is the ids of tenant, conversation and content; `add` stores the rows of chunks.
        """
        pending: list[Chunk] = []
        async with self._store.writer(*place) as writer:
            async for piece in pieces:
                pending += chunker.feed(piece)
                if len(pending) >= CHUNKS_PER_READ:
                    await add(await writer.write(pending))
                    pending.clear()
            pending += chunker.finish()
            if pending:
                await add(await writer.write(pending))
            return await writer.finish()

    async def delete_conversation_objects(
        self, tenant_id: str, conversation_ids: Sequence[str]
    ) -> None:
        """Delete the objects of deleted conversations; after a failure a worker does."""
        try:
            for conversation_id in conversation_ids:
                await self._store.delete_conversation(tenant_id, conversation_id)
        except ServiceUnavailable:
            _log.warning("objects_not_removed")

    async def delete_objects(self, *object_keys: str | None) -> None:
        """Delete objects that no row names any more; after a failure a worker does."""
        try:
            if keys := [key for key in object_keys if key is not None]:
                await self._store.remove(keys)
        except ServiceUnavailable:
            _log.warning("objects_not_removed")

    async def delete_unused(
        self, conversation_id: str, stored: Iterable[tuple[Blob, Sequence[Chunk]]]
    ) -> None:
        """Delete the objects of blobs whose content no row took, as of results stored before."""
        objects = {blob.object_key: blob.content_id for blob, _ in stored if blob.object_key}
        if objects:
            with suppress(ServiceUnavailable):  # a worker deletes them later
                async with self._database.session() as session:
                    holds = session.blobs.holds_content
                    unused = [
                        k for k, id in objects.items() if not await holds(conversation_id, id)
                    ]
                await self.delete_objects(*unused)

    async def attached_blobs(
        self, conversation_id: str, refs: Sequence[str], policy: ToolOutputPolicy
    ) -> dict[str, tuple[Blob, Preview]]:
        """Return the blobs that exist, each with its preview; raises Gone for one collected now.

        A collected blob has an empty preview: only a message that refers to it already may name it.
        """
        async with self._database.session() as session:
            blobs = await session.blobs.find_all(conversation_id, refs)
        found: dict[str, tuple[Blob, Preview]] = {}
        for blob in blobs:
            preview = Preview(texts=("",))
            if blob.collected_at is None:
                builder = PreviewBuilder(policy)
                chunks = self.chunks(conversation_id, blob, 0, CHUNKS_PER_SMALL_READ)
                async with aclosing(chunks):
                    async for chunk in chunks:
                        builder.feed(chunk)
                        if builder.is_full:
                            break
                preview = builder.finish(blob.ref, blob.tool_name)
            found[blob.id] = blob, preview
        return found

    async def originals(
        self,
        conversation_id: str,
        messages: Sequence[StoredMessage],
        content: Content,
        bound: Bound = UNBOUNDED,
    ) -> list[Original]:
        """Return messages with their original results, as far as `content` includes them.

        The list ends early, but after one message at least, if the page would become too large.
        """
        outputs = [message.output for message in messages]
        refs = {output.ref for output in outputs if output is not None and output.ref is not None}
        blobs: dict[str | None, Blob] = {}
        if refs:
            async with self._database.session() as session:
                found = await session.blobs.find_all(conversation_id, [*refs])
            blobs = {blob.id: blob for blob in found}
        originals: list[Original] = []
        total = 0
        for message, output in zip(messages, outputs, strict=True):
            size, blob = message.byte_size, blobs.get(output.ref) if output is not None else None
            is_cut, is_collected = output is not None and output.is_cut, False
            whole = None
            if blob is not None:
                is_collected = blob.collected_at is not None
                if is_cut and not is_collected and blob.byte_size <= MAX_BYTES[content]:
                    whole, size = blob, size + blob.byte_size
            total += size
            if originals and whole is not None and total > bound.max_bytes:
                break
            load = partial(json_text.loads, message.body)
            if whole is not None and output is not None:
                data = b"".join([chunk async for chunk in self.chunks(conversation_id, whole)])
                form = FormatName(message.format)
                load = partial(restore_result, message.body, form, output, data)
            raw_message = await in_thread_if(size > THREAD_BYTES, load)
            is_truncated = is_cut and whole is None
            originals.append(Original(message, raw_message, size, is_truncated, is_collected))
        return originals

    async def chunks(
        self, conversation_id: str, blob: Blob, first: int = 0, count: int = CHUNKS_PER_READ
    ) -> AsyncGenerator[bytes]:
        """Yield the bytes of a blob chunk by chunk, from the chunk number `first` on."""
        async with aclosing(self.batches(conversation_id, blob, first, count)) as batches:
            async for batch in batches:
                for chunk in batch:
                    yield chunk

    async def batches(
        self, conversation_id: str, blob: Blob, first: int = 0, count: int = CHUNKS_PER_READ
    ) -> AsyncGenerator[list[bytes]]:
        """Yield the chunks of a blob in batches, of which the first has `count` chunks.

        No session is open while the caller has a batch. Raises Gone if the blob is collected
        meanwhile.
        """
        at, end = first, -(-blob.byte_size // CHUNK_BYTES)
        gone = Gone(f"Output {blob.id} was collected", {"ref_id": blob.id})
        while at < end:
            async with self._database.session() as session:
                chunks = await session.blobs.chunks(conversation_id, blob.content_id, at, count)
            if not chunks:
                raise gone
            try:
                data = await self._store.read(blob.object_key, chunks)
            except ServiceUnavailable:
                # An object is deleted after its rows: without rows this is a collected blob.
                async with self._database.session() as session:
                    if await session.blobs.holds_content(conversation_id, blob.content_id):
                        raise
                raise gone from None
            yield data
            at, count = chunks[-1].number + 1, CHUNKS_PER_READ
