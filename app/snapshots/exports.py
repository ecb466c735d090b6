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
from app.common import json_text
from app.common.errors import NotFound, ServiceUnavailable
from app.common.pages import UNBOUNDED, Bound
from app.conversations.messages.stored_results import StoredResults
from app.database.sql import plain, read
from app.repositories import Database
from app.snapshots.export_format import FIELDS, RECORD_TABLES, ExportWriter, RecordKind, blob_pieces
from app.snapshots.exports_repository import READ_SETTINGS
from app.snapshots.exports_repository import page as read_page

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
            found = await session.session.first(
                READ_SETTINGS, tenant_id=tenant_id, conversation_id=conversation_id
            )
        if found is None:
            raise NotFound.conversation(conversation_id)
        row = {name: plain(value) for name, value in found.items()}
        writer = ExportWriter()
        created_at = row["conversation_created_at"].isoformat()
        public_id = row["own_id"] or conversation_id
        yield writer.first(public_id, created_at, self._now().isoformat())
        async with aclosing(self._records(row, bound)) as pages:
            async for records in pages:
                lines = (line for kind, fields in records for line in writer.record(kind, fields))
                while batch := await asyncio.to_thread(_next_lines, lines):
                    yield batch
        yield writer.last()

    async def _records(
        self, state: Mapping[str, Any], bound: Bound
    ) -> AsyncGenerator[Iterator[tuple[str, Mapping[str, Any]]]]:
        """Yield the kinds and the fields of records, a page or a part of a blob at a time."""
        for kind in (RecordKind.SETTINGS, RecordKind.STATE):
            yield iter([(kind, {name: state[name] for name in FIELDS[kind]})])
        newer = {state["compaction_id"]} - {None}
        for kind in RECORD_TABLES:
            last: Mapping[str, Any] | None = None
            count, has_more = 0, True
            while has_more:
                async with self._database.session() as session:
                    page = await read_page(session.session, kind, state, last, bound)
                last, has_more = (page[-1] if page else None), page.has_more and bool(page)
                count += len(page)
                if kind is RecordKind.BLOB:
                    for each in page:
                        row = {**each, "is_collected": each["collected_at"] is not None}
                        yield iter([(kind, {name: row[name] for name in FIELDS[kind]})])
                        if row["is_collected"]:
                            continue
                        blob = read(Blob, row, id=row["blob_id"], created_at=None)
                        batches = self._outputs.batches(state["conversation_id"], blob)
                        async with aclosing(batches):
                            async for chunks in batches:
                                pieces = (it for chunk in chunks for it in blob_pieces(chunk))
                                yield (("blob_piece", piece) for piece in pieces)
                else:
                    rows = [_fields_of(kind, row) for row in page]
                    yield ((kind, row) for row in rows if not _follows(kind, row, newer))
                page.clear()
            if kind is RecordKind.MESSAGE and count != state["head_seq"]:
                raise ServiceUnavailable("The conversation was deleted while it was exported")


def _next_lines(lines: Iterator[bytes]) -> bytes:
    batch, size = [], 0
    for line in lines:
        batch.append(line)
        size += len(line)
        if size >= _BATCH_BYTES:
            break
    return b"".join(batch)


def _fields_of(kind: RecordKind, row: Mapping[str, Any]) -> Mapping[str, Any]:
    if kind is not RecordKind.COMPACTION:
        return row
    facts = {**row, **json_text.loads(row["receipt"])}
    return {name: facts[name] for name in FIELDS[kind]}


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
