"""Exports of conversations, read and written a page at a time [exports.stream].

1. The log is exported up to the head at which the export began. Its rows never change, so appends
   neither wait nor disturb.
2. No session is open between pages. An export that cannot be completed has no last line.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from app.blobs.blobs import Blob
from app.common.errors import NotFound, ServiceUnavailable
from app.common.pages import UNBOUNDED, Bound
from app.conversations.messages.stored_results import StoredResults
from app.repositories import Database
from app.snapshots.export_fields import FIELDS
from app.snapshots.export_format import (
    KEYS,
    RECORD_TABLES,
    ExportWriter,
    RecordKind,
    blob_pieces,
)

_BATCH_BYTES = 2**20


@dataclass(eq=False, repr=False)
class ExportService:
    """Exports conversations."""

    _database: Database
    _outputs: StoredResults
    _now: Callable[[], datetime]

    async def export(
        self, tenant_id: str, conversation_id: str, bound: Bound = UNBOUNDED
    ) -> AsyncGenerator[bytes]:
        """Yield the lines of an export, several at a time.

        Raises NotFound before the first line. ServiceUnavailable or Gone after it mean that the
        conversation was deleted, or an output collected, meanwhile.
        """
        async with self._database.session() as session:
            row = await session.exports.settings(tenant_id, conversation_id)
        if row is None:
            raise NotFound.conversation(conversation_id)
        writer = ExportWriter()
        created_at = row["conversation_created_at"].isoformat()
        public_id = row["own_id"] or conversation_id
        yield writer.first(public_id, created_at, self._now().isoformat())
        for kind in (RecordKind.SETTINGS, RecordKind.STATE):
            lines = writer.record(kind, {name: row[name] for name in FIELDS[kind]})
            async for batch in _batches(lines):
                yield batch
        for kind in RECORD_TABLES:
            pages = self._pages(kind, conversation_id, row, writer, bound)
            async with aclosing(pages):
                async for batch in pages:
                    yield batch
        yield writer.last()

    async def _pages(
        self,
        kind: RecordKind,
        conversation_id: str,
        state: Mapping[str, Any],
        writer: ExportWriter,
        bound: Bound,
    ) -> AsyncGenerator[bytes]:
        head_seq = state["head_seq"]
        newer = {state["compaction_id"]} - {None}
        last: Mapping[str, Any] | None = None
        count, has_more = 0, True
        while has_more:
            async with self._database.session() as session:
                page = await session.exports.page(kind, conversation_id, head_seq, last, bound)
            has_more = page.has_more
            if not page:
                break
            last, count = {name: page[-1][name] for name in KEYS[kind]}, count + len(page)
            if kind is RecordKind.BLOB:
                for blob in page:
                    async for batch in self._blob(conversation_id, blob, writer):
                        yield batch
                continue
            records = (record for record in page if not _follows(kind, record, newer))
            lines = (line for record in records for line in writer.record(kind, record))
            async for batch in _batches(lines):
                yield batch
            page.clear()
        if kind is RecordKind.MESSAGE and count != head_seq:
            raise ServiceUnavailable("The conversation was deleted while it was exported")

    async def _blob(
        self, conversation_id: str, row: Mapping[str, Any], writer: ExportWriter
    ) -> AsyncGenerator[bytes]:
        """Yield the lines of a blob with its bytes; no bytes if it was collected."""
        row = {**row, "is_collected": row["collected_at"] is not None}
        fields = {name: row[name] for name in FIELDS[RecordKind.BLOB]}
        yield b"".join(writer.record(RecordKind.BLOB, fields))
        if row["is_collected"]:
            return
        blob = Blob(
            id=row["blob_id"],
            content_id=str(row["content_id"]),
            byte_size=row["byte_size"],
            line_count=row["line_count"],
            sha256=row["sha256"],
            media_type=row["media_type"],
            object_key=row["object_key"],
        )
        async with aclosing(self._outputs.batches(conversation_id, blob)) as batches:
            async for chunks in batches:
                pieces = (piece for chunk in chunks for piece in blob_pieces(chunk))
                lines = (line for piece in pieces for line in writer.record("blob_piece", piece))
                async for batch in _batches(lines):
                    yield batch


async def _batches(lines: Iterator[bytes]) -> AsyncGenerator[bytes]:
    """Yield lines, several at a time, that are written in a thread."""
    while batch := await asyncio.to_thread(_next_lines, lines):
        yield batch


def _next_lines(lines: Iterator[bytes]) -> bytes:
    batch, size = [], 0
    for line in lines:
        batch.append(line)
        size += len(line)
        if size >= _BATCH_BYTES:
            break
    return b"".join(batch)


def _follows(kind: RecordKind, record: Mapping[str, Any], newer: set[str]) -> bool:
    """Return whether a record is a receipt made since the state was read, and note that it is.

    Then it follows the receipt that was active, or one that does.
    """
    if kind is not RecordKind.COMPACTION or record["undone_at"] is not None:
        return False
    if record["parent_id"] not in newer:
        return False
    newer.add(record["compaction_id"])
    return True
