"""Exports of conversations. An import of one: `imports.py`.

An export is read a page at a time, and no session is open between pages [exports.stream]. It has
the log up to the head at which it began, whose rows never change: appends neither wait nor disturb.
An export that cannot be completed has no last line. Memory holds a page, and a few chunks of a
blob.
"""

from __future__ import annotations

import asyncio
import hashlib
from base64 import b64encode
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from app.blobs.blobs import Blob
from app.common import json_text
from app.common.errors import NotFound, ServiceUnavailable
from app.conversations.messages.stored_results import StoredResults
from app.database.sql import read
from app.repositories import Database
from app.snapshots.checks import FORMAT, LINES, VERSION
from app.snapshots.columns import KINDS, page, read_settings

_PIECE_BYTES = 32_768
"""Bytes of a blob in one line."""


@dataclass(eq=False, repr=False)
class ExportService:
    """Exports conversations."""

    database: Database
    outputs: StoredResults
    now: Callable[[], datetime]

    async def export(self, tenant_id: str, conversation_id: str) -> AsyncGenerator[bytes]:
        """Yield the lines of an export, several at a time.

        Raises NotFound before the first line. ServiceUnavailable or Gone after it mean that the
        conversation was deleted, or an output collected, meanwhile.
        """
        async with self.database.session() as session:
            state = await read_settings(session.session, tenant_id, conversation_id)
        if state is None:
            raise NotFound.conversation(conversation_id)
        first = {"format": FORMAT, "version": VERSION, "exported_at": self.now()}
        first["conversation_id"] = state["own_id"] or conversation_id
        yield _lines("export", [first | {"created_at": state["conversation_created_at"]}])
        sha256, counts = hashlib.sha256(), Counter[str]()
        async with aclosing(self._records(state)) as pages:
            async for kind, records in pages:
                lines = await asyncio.to_thread(_lines, kind, records)
                sha256.update(lines)
                counts[kind] += len(records)
                yield lines
        if counts["message"] != state["head_seq"]:
            raise ServiceUnavailable("The conversation was deleted while it was exported")
        end: dict[str, Any] = {"messages": counts["message"], "blobs": counts["blob"]}
        end |= {"lines": counts.total() + 2, "sha256": sha256.hexdigest()}
        yield _lines("end", [end])

    async def _records(
        self, state: Mapping[str, Any]
    ) -> AsyncGenerator[tuple[str, list[dict[str, Any]]]]:
        """Yield records of one kind, a page at a time."""
        for kind in ("settings", "state"):
            yield kind, [dict(state)]
        for kind in KINDS:
            last, has_more = None, True
            while has_more:
                async with self.database.session() as session:
                    rows = await page(session.session, kind, state, last)
                last, has_more = (rows[-1] if rows else None), rows.has_more
                if rows and kind != "blob":
                    yield kind, rows
                    continue
                for row in rows:
                    row["is_collected"] = row["collected_at"] is not None
                    yield kind, [row]
                    if not row["is_collected"]:
                        blob = read(Blob, row, id=row["blob_id"])
                        async with aclosing(
                            self.outputs.batches(state["source_id"], blob)
                        ) as batches:
                            async for chunks in batches:
                                yield "blob_piece", [*_pieces(chunks)]


def _pieces(chunks: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for chunk in chunks:
        for start in range(0, len(chunk), _PIECE_BYTES):
            yield {"data": b64encode(chunk[start : start + _PIECE_BYTES]).decode()}


def _lines(kind: str, records: Iterable[Mapping[str, Any]]) -> bytes:
    if kind == "compaction":
        records = [{**record, **json_text.loads(record["receipt"])} for record in records]
    lines = ({"type": kind, **{name: row[name] for name in LINES[kind]}} for row in records)
    return b"".join(json_text.dump_stored(line) + b"\n" for line in lines)
