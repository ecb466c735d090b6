"""The repository of blobs in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any
from uuid import UUID

from app.blobs import statements as sql
from app.blobs.blobs import Blob, StoredChunk
from app.common.errors import NotFound
from app.common.sendable import sendable
from app.database.repository import Repository
from app.database.sql import read

_CHUNK_FIELDS = [field.name for field in fields(StoredChunk)]


class BlobRepository(Repository):
    """Queries and statements on the blobs of one conversation."""

    async def find(self, conversation_id: str, ref: str) -> Blob | None:
        """Return a blob, collected or not; None for an unknown ref."""
        found = await self.find_all(conversation_id, [ref])
        return found[0] if found else None

    async def find_all(self, conversation_id: str, refs: Sequence[str]) -> list[Blob]:
        """Return the blobs that exist, collected or not."""
        sendable_refs = [ref for ref in refs if sendable(ref) is ref]
        rows = await self._session.all(
            sql.FIND, conversation_id=conversation_id, refs=sendable_refs
        )
        return [_blob_from(row) for row in rows]

    async def page(self, conversation_id: str, limit: int, before: str | None) -> list[Blob]:
        """Return blobs that were not collected, newest first, after the one with id `before`."""
        rows = await self._session.all(
            sql.PAGE, conversation_id=conversation_id, limit=limit, before=_sendable(before)
        )
        return [_blob_from(row) for row in rows]

    async def begin_upload(self, tenant_id: str, conversation_id: str, content_id: str) -> bool:
        """Record an upload with this content id; False if there is no such conversation."""
        begun = await self._session.run(
            sql.BEGIN_UPLOAD,
            tenant_id=tenant_id,
            conversation_id=conversation_id,
            content_id=content_id,
        )
        return begun == 1

    async def add_chunks(
        self, conversation_id: str, content_id: str, chunks: Sequence[StoredChunk]
    ) -> None:
        """Store more chunks of an unfinished upload; none if it was dropped."""
        await self._session.run(
            sql.ADD_CHUNKS,
            conversation_id=conversation_id,
            content_id=content_id,
            **_chunk_parameters([(content_id, chunk) for chunk in chunks]),
        )

    async def end_upload(self, conversation_id: str, blob: Blob) -> str:
        """Finish an upload, and return the content id of the blob's bytes.

        The upload's chunks are dropped if the blob was stored before. Raises NotFound if the
        conversation was deleted, or the upload was dropped meanwhile.
        """
        row = await self._session.first(
            sql.END_UPLOAD,
            conversation_id=conversation_id,
            content_id=blob.content_id,
            **_blob_parameters([blob]),
        )
        if row is None or not row["is_alive"]:
            raise NotFound.conversation(conversation_id)
        if row["content_id"] is None:
            raise NotFound(
                "The upload took too long and was dropped", {"conversation_id": conversation_id}
            )
        return str(row["content_id"])

    async def drop_upload(self, conversation_id: str, content_id: str) -> None:
        """Delete an unfinished upload and its chunks."""
        upload = {"conversation_id": UUID(conversation_id), "content_id": UUID(content_id)}
        if await self._session.first(sql.DROP_UPLOAD, **upload) is not None:
            # The first statement does not see chunks added while it waited for the upload's lock.
            await self._session.run(sql.DROP_CHUNKS, **upload)

    async def add_to_messages(
        self,
        conversation_id: str,
        stored: Sequence[tuple[Blob, Sequence[StoredChunk]]],
        uses: Sequence[tuple[str, int]],
    ) -> None:
        """Store blobs with their chunks, and which blob is used at which seq.

        The conversation must be locked.
        """
        # The same order in every statement prevents deadlocks.
        ordered = sorted(stored, key=lambda pair: pair[0].id)
        await self._session.run(
            sql.ADD_TO_MESSAGES,
            conversation_id=UUID(conversation_id),
            **_blob_parameters([blob for blob, _ in ordered]),
            **_chunk_parameters(
                [(blob.content_id, chunk) for blob, chunks in ordered for chunk in chunks]
            ),
            use_ids=[ref for ref, _ in uses],
            use_seqs=[seq for _, seq in uses],
        )

    async def attach(self, conversation_id: str, refs: Sequence[str]) -> None:
        """Mark blobs as referred to by messages; the conversation must be locked."""
        await self._session.run(sql.ATTACH, conversation_id=UUID(conversation_id), refs=list(refs))

    async def chunks(
        self, conversation_id: str, content_id: str, first: int, count: int
    ) -> list[StoredChunk]:
        """Return up to `count` chunks from number `first` on, in order."""
        rows = await self._session.all(
            sql.CHUNKS,
            conversation_id=conversation_id,
            content_id=content_id,
            first=first,
            count=count,
        )
        return [read(StoredChunk, row) for row in rows]

    async def chunk_before_line(
        self, conversation_id: str, content_id: str, line: int
    ) -> tuple[int, int] | None:
        """Return the number of the chunk in which a line begins, and the newlines before it.

        It is the last chunk with fewer than `line` newlines before it; `line`, which counts from 0,
        is at least 1. None if there are no chunks.
        """
        row = await self._session.first(
            sql.CHUNK_BEFORE_LINE, conversation_id=conversation_id, content_id=content_id, line=line
        )
        return tuple(row) if row is not None else None

    async def collectable(
        self, conversation_id: str, uploaded_before: datetime | None, *, compacted: bool
    ) -> list[Blob]:
        """Return the blobs to collect, the oldest first.

        These are blobs without a message, uploaded before `uploaded_before` if it is set. With
        `compacted`, also blobs whose messages are all hidden by the active compaction and are in no
        snapshot.
        """
        rows = await self._session.all(
            sql.COLLECTABLE,
            conversation_id=conversation_id,
            uploaded_before=uploaded_before,
            compacted=compacted,
        )
        return [_blob_from(row) for row in rows]

    async def collect(self, conversation_id: str, refs: Sequence[str]) -> None:
        """Delete the bytes of blobs but not their rows; the lock of `collectable` must be held."""
        await self._session.run(sql.COLLECT, conversation_id=conversation_id, refs=list(refs))

    async def list_due(self, uploaded_before: datetime, limit: int) -> list[tuple[str, str]]:
        """Return tenant and conversation ids that a scheduled collection has to visit.

        They have unattached or unfinished uploads from before that time, the oldest first, or a
        compaction since the last collection. Call it again after collecting, because many uploads
        of one conversation can fill the limit.
        """
        rows = await self._session.all(sql.LIST_DUE, uploaded_before=uploaded_before, limit=limit)
        return [(row["tenant_id"], str(row["conversation_id"])) for row in rows]

    async def stale_uploads(self, conversation_id: str, begun_before: datetime) -> list[str]:
        """Return the content ids of unfinished uploads that began before that time."""
        rows = await self._session.all(
            sql.STALE_UPLOADS, conversation_id=conversation_id, begun_before=begun_before
        )
        return [str(row["content_id"]) for row in rows]

    async def mark_swept(self, conversation_id: str) -> None:
        """Record that a collection has visited the conversation since its last compaction."""
        await self._session.run(sql.SWEPT, conversation_id=conversation_id)

    async def holds_content(self, conversation_id: str, content_id: str) -> bool:
        """Whether a blob that is not collected or an unfinished upload has this id."""
        row = await self._session.first(
            sql.HOLDS_CONTENT, conversation_id=conversation_id, content_id=content_id
        )
        return row is not None and row["is_held"]


def _blob_parameters(blobs: Sequence[Blob]) -> dict[str, Any]:
    return {
        "blob_ids": [blob.id for blob in blobs],
        "blob_contents": [UUID(blob.content_id) for blob in blobs],
        "blob_sizes": [blob.byte_size for blob in blobs],
        "blob_lines": [blob.line_count for blob in blobs],
        "blob_hashes": [blob.sha256 for blob in blobs],
        "blob_types": [sendable(blob.media_type) for blob in blobs],
        "blob_tools": [_sendable(blob.tool_name) for blob in blobs],
        "blob_calls": [_sendable(blob.tool_call_id) for blob in blobs],
        "blob_keys": [blob.object_key for blob in blobs],
    }


def _chunk_parameters(chunks: Sequence[tuple[str, StoredChunk]]) -> dict[str, Any]:
    return {
        "chunk_contents": [UUID(content_id) for content_id, _ in chunks],
        **{
            f"chunk_{name}": [getattr(chunk, name) for _, chunk in chunks] for name in _CHUNK_FIELDS
        },
    }


def _sendable(text: str | None) -> str | None:
    return sendable(text) if text is not None else None


def _blob_from(row: Any) -> Blob:
    return Blob(**{**row, "content_id": str(row["content_id"])})
