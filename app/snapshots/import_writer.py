"""Writes the checked lines of an import, in batches and blob by blob."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from app.blobs.blobs import Chunk, Chunker, blob_id
from app.blobs.stored_output import stored_output_from
from app.common.errors import Conflict, PayloadTooLarge
from app.conversations.messages.stored_results import CHUNKS_PER_READ
from app.conversations.ports import BlobStore, BlobWriter
from app.repositories import Database
from app.snapshots.export_format import IMPORTING_TENANT, Line, RecordKind, line_error

_BATCH_ROWS = 500
_BATCH_CHARS = 2**20


class _OpenBlob:
    """A blob of which bytes are missing."""

    def __init__(self, line: Line, fields: Mapping[str, Any], content_id: str) -> None:
        self.line = line
        self.fields = fields
        self.content_id = content_id
        self.chunker = Chunker()
        self.pending: list[Chunk] = []
        self.writer: BlobWriter
        self.stack = AsyncExitStack()


@dataclass(eq=False, repr=False)
class ImportWriter:
    """Writes one import; memory holds a batch of records and a few chunks of one blob."""

    _database: Database
    _store: BlobStore
    _new_id: Callable[[], str]
    _now: Callable[[], datetime]
    _tenant_id: str
    _conversation_id: str
    _max_blob_bytes: int

    def __post_init__(self) -> None:
        self._kind: RecordKind | None = None
        self._batch: list[tuple[Line, dict[str, Any]]] = []
        self._chars = 0
        self._blob: _OpenBlob | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._blob is not None:
            await self._blob.stack.__aexit__(kind, error, traceback)

    async def add(self, line: Line, fields: dict[str, Any]) -> None:
        """Store a line, or keep it for the next batch."""
        match line.type:
            case "blob_piece":
                await self._add_piece(fields["data"])
            case RecordKind.BLOB:
                await self._begin_blob(line, fields)
            case "export" | "end" | RecordKind.SETTINGS | RecordKind.STATE:
                pass
            case _:
                kind = RecordKind(line.type)
                if kind is not self._kind:
                    await self.flush()
                self._kind = kind
                self._batch.append((line, fields))
                texts = (item for item in fields.values() if isinstance(item, str | bytes))
                self._chars += sum(map(len, texts))
                if len(self._batch) >= _BATCH_ROWS or self._chars >= _BATCH_CHARS:
                    await self.flush()

    async def flush(self) -> None:
        """Store the batch."""
        batch, self._batch, self._chars = self._batch, [], 0
        if not batch or self._kind is None:
            return
        refs = {ref: line for line, fields in batch if (ref := _ref_of(line, fields)) is not None}
        async with self._database.transaction() as session:
            await self._require_alive(await session.exports.renew(self._conversation_id))
            if refs:
                found = await session.blobs.find_all(self._conversation_id, list(refs))
                for ref in refs.keys() - {blob.id for blob in found}:
                    raise refs[ref].error(f"The blob {ref!r} is not in the export")
            rows = [fields for _, fields in batch]
            if not await session.exports.add(self._kind, self._conversation_id, rows):
                first, last = batch[0][0].number, batch[-1][0].number
                raise line_error(last, f"A message id stands twice, between line {first} and this")

    async def _begin_blob(self, line: Line, fields: dict[str, Any]) -> None:
        if fields["byte_size"] > self._max_blob_bytes:
            raise PayloadTooLarge(
                f"Line {line.number}: a blob holds at most {self._max_blob_bytes:,} bytes. "
                "Nothing was imported",
                {"line": line.number, "limit": self._max_blob_bytes},
            )
        if fields["blob_id"] != blob_id(fields["sha256"]):
            raise line.error("is not the id of these bytes", "blob_id")
        content_id = self._new_id()
        if fields["is_collected"]:
            await self._add_collected(fields, content_id)
            return
        blob = self._blob = _OpenBlob(line, fields, content_id)
        async with self._database.transaction() as session:
            await self._require_alive(await session.exports.renew(self._conversation_id))
            await session.blobs.begin_upload(IMPORTING_TENANT, self._conversation_id, content_id)
        writer = self._store.writer(self._tenant_id, self._conversation_id, content_id)
        blob.writer = await blob.stack.enter_async_context(writer)
        if not fields["byte_size"]:
            await self._end_blob(blob)

    async def _add_collected(self, fields: Mapping[str, Any], content_id: str) -> None:
        """Store the row that a collected blob has left."""
        async with self._database.transaction() as session:
            await self._require_alive(await session.exports.renew(self._conversation_id))
            row = {**fields, "content_id": content_id, "collected_at": self._now().isoformat()}
            await session.exports.add(RecordKind.BLOB, self._conversation_id, [row])

    async def _add_piece(self, data: bytes) -> None:
        blob = self._blob
        assert blob is not None, "the checker accepts a piece after its blob only"
        blob.pending += blob.chunker.feed(data)
        if len(blob.pending) >= CHUNKS_PER_READ:
            await self._write(blob)
        if blob.chunker.byte_size == blob.fields["byte_size"]:
            await self._end_blob(blob)

    async def _write(self, blob: _OpenBlob) -> None:
        stored = await blob.writer.write(blob.pending)
        blob.pending.clear()
        async with self._database.transaction() as session:
            await self._require_alive(await session.exports.renew(self._conversation_id))
            await session.blobs.add_chunks(self._conversation_id, blob.content_id, stored)

    async def _end_blob(self, blob: _OpenBlob) -> None:
        fields = blob.fields
        blob.pending += blob.chunker.finish()
        whole = blob.chunker.blob(fields["media_type"], fields["tool_name"], fields["tool_call_id"])
        if (whole.sha256, whole.line_count) != (fields["sha256"], fields["line_count"]):
            raise blob.line.error("The bytes of the blob differ from those exported", "sha256")
        if blob.pending:
            await self._write(blob)
        key = await blob.writer.finish()
        await blob.stack.aclose()
        self._blob = None
        async with self._database.session() as session:
            await session.blobs.end_upload(
                self._conversation_id, replace(whole, content_id=blob.content_id, object_key=key)
            )
            if fields["attached"]:
                await session.blobs.attach(self._conversation_id, [whole.id])

    async def _require_alive(self, is_alive: bool) -> None:
        if not is_alive:
            raise Conflict(
                "The import was removed: there was no line for too long",
                {"conversation_id": self._conversation_id},
            )


def _ref_of(line: Line, fields: Mapping[str, Any]) -> str | None:
    """Return the blob that a record refers to."""
    if line.type == RecordKind.BLOB_USE:
        ref: str = fields["blob_id"]
        return ref
    if line.type == RecordKind.MESSAGE and fields["output"] is not None:
        return stored_output_from(fields["output"]).ref
    return None
