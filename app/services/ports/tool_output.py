"""Ports for stored tool outputs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Protocol

from app.domain.tool_output.blobs import Blob, Chunk, StoredChunk


class BlobRepository(Protocol):
    """Sentences about the blobs of one conversation (F)."""

    async def find(self, conversation_id: str, ref: str) -> Blob | None:
        """Return a blob, a collected one too; None for an unknown ref."""
        ...

    async def find_all(self, conversation_id: str, refs: Sequence[str]) -> list[Blob]:
        """Return those of the blobs that there are."""
        ...

    async def page(self, conversation_id: str, limit: int, before: str | None) -> list[Blob]:
        """Return blobs that were not collected, newest first, from after the id `before` on."""
        ...

    async def add(self, conversation_id: str, blob: Blob, chunks: Sequence[StoredChunk]) -> str:
        """Store a blob, or find it stored, and return the content id that holds its bytes.

        `chunks` are stored only if that is the blob's own; a collected one comes back to life.
        For a deleted conversation nothing is stored.
        """
        ...

    async def begin_upload(self, tenant_id: str, conversation_id: str, content_id: str) -> bool:
        """Note that chunks of a content are coming; False without such a conversation."""
        ...

    async def add_chunks(
        self, conversation_id: str, content_id: str, chunks: Sequence[StoredChunk]
    ) -> None:
        """Store more chunks of an upload under way."""
        ...

    async def end_upload(self, conversation_id: str, blob: Blob) -> str:
        """Store the blob of an upload, or find it stored; returns as `add` does.

        The upload's own chunks are dropped where the blob was stored already. Raises NotFound
        when the conversation is gone.
        """
        ...

    async def drop_upload(self, conversation_id: str, content_id: str) -> None:
        """Forget an upload that did not end, and its chunks."""
        ...

    async def attach(self, conversation_id: str, refs: Sequence[str]) -> None:
        """Note that messages refer to these blobs."""
        ...

    async def chunks(
        self, conversation_id: str, content_id: str, first: int, count: int
    ) -> list[StoredChunk]:
        """Return up to `count` chunks from number `first` on, in order."""
        ...

    async def chunk_before_line(
        self, conversation_id: str, content_id: str, line: int
    ) -> tuple[int, int] | None:
        """Return the number, and the newlines before it, of the chunk with that many newlines.

        It is the last chunk with fewer than `line` newlines before it, the first for line 0;
        None where there are no chunks.
        """
        ...

    async def collectable(
        self, conversation_id: str, uploaded_before: datetime | None, *, compacted: bool
    ) -> list[Blob]:
        """Return what a collection would take, the oldest first (F7).

        Blobs no message was attached to, uploaded before that time if one is given; and with
        `compacted` those whose messages are all hidden by the active compaction.
        """
        ...

    async def collect(self, conversation_id: str, refs: Sequence[str]) -> None:
        """Delete the bytes of blobs and leave their tombstones (decision 29)."""
        ...

    async def list_due(self, uploaded_before: datetime, limit: int) -> list[tuple[str, str]]:
        """Return tenant and conversation ids where a scheduled collection may find something.

        Those with uploads from before that time that were not attached or did not end, and those
        compacted since the last collection.
        """
        ...

    async def stale_uploads(self, conversation_id: str, begun_before: datetime) -> list[str]:
        """Return the content ids of uploads that did not end, begun before that time."""
        ...

    async def swept(self, conversation_id: str) -> None:
        """Note that a scheduled collection has seen the conversation's last compaction."""
        ...

    async def holds_content(self, conversation_id: str, content_id: str) -> bool:
        """Whether a blob or an upload under way has this content."""
        ...


class BlobWriter(Protocol):
    """Takes the chunks of one content, in order."""

    async def write(self, chunks: Sequence[Chunk]) -> list[StoredChunk]:
        """Keep chunks, and return them as their rows have to hold them."""
        ...

    async def finish(self) -> str | None:
        """Make what was written last; returns the object's key, None where rows hold the bytes."""
        ...


class BlobStore(Protocol):
    """Keeps the bytes of chunks: in their rows, or in objects beside the database (F1).

    Whatever fails in an object store is ServiceUnavailable.
    """

    def writer(
        self, tenant_id: str, conversation_id: str, content_id: str
    ) -> AbstractAsyncContextManager[BlobWriter]:
        """Open a content for writing; left without `finish`, nothing of it stays."""
        ...

    async def read(self, object_key: str | None, chunks: Sequence[StoredChunk]) -> list[bytes]:
        """Return the raw bytes of neighbouring chunks."""
        ...

    async def copy(
        self, tenant_id: str, conversation_id: str, content_id: str, object_key: str
    ) -> str:
        """Copy an object to a content of another conversation, and return the key it has there."""
        ...

    async def remove(self, object_keys: Sequence[str]) -> None:
        """Delete objects; those that are not there are no error."""
        ...

    async def forget(self, tenant_id: str, conversation_id: str) -> None:
        """Delete every object of a conversation."""
        ...

    async def drop_parts(self, older_than: datetime) -> int:
        """Delete what killed uploads have left of objects before a time; returns how many parts.

        An object store that does not list them keeps them, until a rule of its bucket ends them.
        """
        ...

    def orphans(self, older_than: datetime) -> AsyncIterator[tuple[str, str, str]]:
        """Yield the key, conversation id and content id of every object written before a time."""
        ...
