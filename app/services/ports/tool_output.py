"""Ports for stored tool outputs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Protocol

from app.domain.tool_output.blobs import Blob, Chunk, StoredChunk


class BlobRepository(Protocol):
    """Queries and statements on the blobs of one conversation."""

    async def find(self, conversation_id: str, ref: str) -> Blob | None:
        """Return a blob, collected or not; None for an unknown ref."""
        ...

    async def find_all(self, conversation_id: str, refs: Sequence[str]) -> list[Blob]:
        """Return the blobs that exist, collected or not."""
        ...

    async def page(self, conversation_id: str, limit: int, before: str | None) -> list[Blob]:
        """Return blobs that were not collected, newest first, after the one with id `before`."""
        ...

    async def begin_upload(self, tenant_id: str, conversation_id: str, content_id: str) -> bool:
        """Record an upload with this content id; False if there is no such conversation."""
        ...

    async def add_chunks(
        self, conversation_id: str, content_id: str, chunks: Sequence[StoredChunk]
    ) -> None:
        """Store more chunks of an unfinished upload; none if it was dropped."""
        ...

    async def end_upload(self, conversation_id: str, blob: Blob) -> str:
        """Finish an upload, and return the content id of the blob's bytes.

        The upload's chunks are dropped if the blob was stored before. Raises NotFound if the
        conversation was deleted, or the upload was dropped meanwhile.
        """
        ...

    async def drop_upload(self, conversation_id: str, content_id: str) -> None:
        """Delete an unfinished upload and its chunks."""
        ...

    async def attach(self, conversation_id: str, refs: Sequence[str]) -> None:
        """Mark blobs as referred to by messages; the conversation must be locked."""
        ...

    async def chunks(
        self, conversation_id: str, content_id: str, first: int, count: int
    ) -> list[StoredChunk]:
        """Return up to `count` chunks from number `first` on, in order."""
        ...

    async def chunk_before_line(
        self, conversation_id: str, content_id: str, line: int
    ) -> tuple[int, int] | None:
        """Return the number of the chunk in which a line begins, and the newlines before it.

        It is the last chunk with fewer than `line` newlines before it; `line`, which counts from 0,
        is at least 1. None if there are no chunks.
        """
        ...

    async def collectable(
        self, conversation_id: str, uploaded_before: datetime | None, *, compacted: bool
    ) -> list[Blob]:
        """Return the blobs to collect, the oldest first.

        These are blobs without a message, uploaded before `uploaded_before` if it is set. With
        `compacted`, also blobs whose messages are all hidden by the active compaction and are in no
        snapshot.
        """
        ...

    async def collect(self, conversation_id: str, refs: Sequence[str]) -> None:
        """Delete the bytes of blobs but not their rows; the lock of `collectable` must be held."""
        ...

    async def list_due(self, uploaded_before: datetime, limit: int) -> list[tuple[str, str]]:
        """Return tenant and conversation ids that a scheduled collection has to visit.

        They have unattached or unfinished uploads from before that time, the oldest first, or a
        compaction since the last collection. Call it again after collecting, because many uploads
        of one conversation can fill the limit.
        """
        ...

    async def stale_uploads(self, conversation_id: str, begun_before: datetime) -> list[str]:
        """Return the content ids of unfinished uploads that began before that time."""
        ...

    async def mark_swept(self, conversation_id: str) -> None:
        """Record that a collection has visited the conversation since its last compaction."""
        ...

    async def holds_content(self, conversation_id: str, content_id: str) -> bool:
        """Whether a blob that is not collected or an unfinished upload has this id."""
        ...


class BlobWriter(Protocol):
    """Writes the chunks of one content, in order."""

    async def write(self, chunks: Sequence[Chunk]) -> list[StoredChunk]:
        """Write chunks, and return them as their rows store them."""
        ...

    async def finish(self) -> str | None:
        """Complete the content; return the key of its object, None if rows hold the bytes."""
        ...


class BlobStore(Protocol):
    """Stores the bytes of chunks: in their rows, or in an object store.

    A failure of an object store raises ServiceUnavailable.
    """

    def writer(
        self, tenant_id: str, conversation_id: str, content_id: str
    ) -> AbstractAsyncContextManager[BlobWriter]:
        """Open a writer for a content; without `finish`, nothing is stored."""
        ...

    async def read(self, object_key: str | None, chunks: Sequence[StoredChunk]) -> list[bytes]:
        """Return the uncompressed bytes of consecutive chunks."""
        ...

    async def copy(
        self, tenant_id: str, conversation_id: str, content_id: str, object_key: str
    ) -> str:
        """Copy an object to a content of another conversation, and return its key."""
        ...

    async def remove(self, object_keys: Sequence[str]) -> None:
        """Delete objects; missing ones are no error."""
        ...

    async def delete_conversation(self, tenant_id: str, conversation_id: str) -> None:
        """Delete every object of a conversation."""
        ...

    async def drop_parts(self, older_than: datetime) -> int:
        """Delete parts of unfinished objects written before a time; return their number.

        A bucket cannot list such parts; it needs a lifecycle rule.
        """
        ...

    def orphans(self, older_than: datetime) -> AsyncIterator[tuple[str, str, str]]:
        """Yield the key, conversation id and content id of every object older than a time."""
        ...
