"""Exports of conversations, and imports of them: all of a log or nothing.

1. An export is read a page at a time, and no session is open between pages [exports.stream]. It
   has the log up to the head at which it began, whose rows never change: appends neither wait nor
   disturb. An export that cannot be completed has no last line.
2. An import writes what comes to a temporary file, and stores it in one transaction afterwards. So
   no session is open while bytes come from the client. Objects in an object store, of which an
   import that fails leaves some, are deleted by the collection of orphans [exports.import].
3. Memory holds a page or a batch of records, and a few chunks of one blob.
"""

from __future__ import annotations

import asyncio
import hashlib
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from tempfile import TemporaryFile
from typing import Any

from app.blobs.blobs import Blob, Chunk, Chunker, blob_id
from app.blobs.store import BlobStore
from app.blobs.stored_output import stored_output_from
from app.common import json_text
from app.common.errors import NotFound, ServiceUnavailable, ValidationError
from app.common.pages import BATCH_BYTES, Bound
from app.conversations.messages.stored_results import CHUNKS_PER_READ, StoredResults
from app.conversations.repository import id_taken, own_id_of
from app.conversations.settings_resolver import SettingsResolver
from app.conversations.windows.active_window import window_from
from app.database.sql import plain, read
from app.repositories import Database, Repositories
from app.snapshots.checks import FORMAT, VERSION, ImportChecker, Line, read_lines
from app.snapshots.repository import UNSTORABLE
from app.snapshots.rows import (
    ADD,
    FIELDS,
    READ_SETTINGS,
    RECORD_TABLES,
    SETTINGS,
    RecordKind,
    Shown,
    page,
    set_head,
    show,
    write,
)

MEDIA_TYPE = "application/x-ndjson"
_PIECE_BYTES = 32_768
"""Bytes of a blob in one line."""
_BATCH_BYTES = 2**20
_BATCH_ROWS = 500
_LINES_AT_ONCE = 100
_RECORD_FACTOR = 2
"""Bytes of a record for each byte of a request body: the quotes of its JSON are escaped."""
CheckSettings = Callable[[Mapping[str, Any]], None]
"""Raises ValidationError unless a conversation could be created with these settings."""


@dataclass(eq=False, repr=False)
class ExportService:
    """Exports conversations."""

    _database: Database
    _outputs: StoredResults
    _now: Callable[[], datetime]

    async def export(self, tenant_id: str, conversation_id: str) -> AsyncGenerator[bytes]:
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
        state = {name: plain(value) for name, value in found.items()}
        own = {"conversation_id": state["own_id"] or conversation_id}
        own |= {"created_at": state["conversation_created_at"], "exported_at": self._now()}
        yield _line("export", {"format": FORMAT, "version": VERSION, **own})
        sha256, counts, lines = hashlib.sha256(), {kind: 0 for kind in RecordKind}, 2
        async with aclosing(self._records(state)) as pages:
            async for kind, records in pages:
                if kind is not None:
                    counts[kind] += len(records)
                lines += len(records)
                each = iter(records)
                while batch := await asyncio.to_thread(_next_lines, kind or "blob_piece", each):
                    sha256.update(batch)
                    yield batch
        if counts[RecordKind.MESSAGE] != state["head_seq"]:
            raise ServiceUnavailable("The conversation was deleted while it was exported")
        numbers = {"messages": counts[RecordKind.MESSAGE], "blobs": counts[RecordKind.BLOB]}
        yield _line("end", {**numbers, "lines": lines, "sha256": sha256.hexdigest()})

    async def _records(
        self, state: Mapping[str, Any]
    ) -> AsyncGenerator[tuple[RecordKind | None, list[dict[str, Any]]]]:
        """Yield records of one kind, a page at a time; None is the kind of a blob's pieces."""
        for kind in (RecordKind.SETTINGS, RecordKind.STATE):
            yield kind, [{name: state[name] for name in FIELDS[kind]}]
        newer = {state["compaction_id"]} - {None}
        for kind in RECORD_TABLES:
            last: Mapping[str, Any] | None = None
            has_more = True
            while has_more:
                async with self._database.session() as session:
                    rows = await page(session.session, kind, state, last, Bound(BATCH_BYTES))
                last, has_more = (rows[-1] if rows else None), rows.has_more and bool(rows)
                if kind is RecordKind.COMPACTION:
                    facts = ({**row, **json_text.loads(row["receipt"])} for row in rows)
                    rows[:] = [row for row in facts if not _follows(row, newer)]
                if kind is not RecordKind.BLOB:
                    yield kind, [{name: row[name] for name in FIELDS[kind]} for row in rows]
                    continue
                for row in rows:
                    row["is_collected"] = row["collected_at"] is not None
                    yield kind, [{name: row[name] for name in FIELDS[kind]}]
                    if row["is_collected"]:
                        continue
                    blob = read(Blob, row, id=row["blob_id"], created_at=None)
                    async with aclosing(
                        self._outputs.batches(state["conversation_id"], blob)
                    ) as batches:
                        async for chunks in batches:
                            yield None, [piece for chunk in chunks for piece in _pieces(chunk)]


def _pieces(data: bytes) -> Iterator[dict[str, Any]]:
    for start in range(0, len(data), _PIECE_BYTES):
        yield {"data": b64encode(data[start : start + _PIECE_BYTES]).decode()}


def _line(kind: str, fields: Mapping[str, Any]) -> bytes:
    return json_text.dump_stored({"type": kind, **fields}) + b"\n"


def _next_lines(kind: str, records: Iterator[Mapping[str, Any]]) -> bytes:
    batch, size = [], 0
    for record in records:
        batch.append(_line(kind, record))
        size += len(batch[-1])
        if size >= _BATCH_BYTES:
            break
    return b"".join(batch)


def _follows(receipt: Mapping[str, Any], newer: set[str]) -> bool:
    """Return whether a receipt was made since the state was read, and note that it was.

    Then it follows the receipt that was active, or one that does.
    """
    if receipt["undone_at"] is not None or receipt["parent_id"] not in newer:
        return False
    newer.add(receipt["compaction_id"])
    return True


@dataclass(eq=False, repr=False)
class ImportService:
    """Imports conversations."""

    _database: Database
    _resolver: SettingsResolver
    _blob_store: BlobStore
    _new_id: Callable[[], str]
    _now: Callable[[], datetime]
    _max_body_bytes: int
    _max_blob_bytes: int

    async def add(
        self,
        tenant_id: str,
        pieces: AsyncIterator[bytes],
        check_settings: CheckSettings,
        public_id: str | None = None,
        agent_id: str | None = None,
    ) -> str:
        """Import an export and return its key; `agent_id` replaces the agent of the file.

        Raises ValidationError or PayloadTooLarge with the number of the line, or Conflict when the
        id is taken. Then nothing is stored.
        """
        public_id = public_id or self._new_id()
        with TemporaryFile() as file:
            try:
                async for piece in pieces:
                    await asyncio.to_thread(file.write, piece)
                file.seek(0)
            except OSError as error:
                reason = {"reason": type(error).__name__}
                raise ServiceUnavailable("There is no room for the export", reason) from error
            checker = ImportChecker(self._resolver.counter)
            checked = map(checker.check, read_lines(file, _RECORD_FACTOR * self._max_body_bytes))
            async with self._database.transaction() as session:
                key = await session.conversations.free_key(tenant_id, public_id)
                writer = _Import(self, session, tenant_id, key, checker, _in_threads(checked))
                try:
                    await writer.begin(check_settings, own_id_of(key, public_id), agent_id)
                    await writer.store()
                    await writer.finish()
                except (*UNSTORABLE, ValueError, KeyError, TypeError, AttributeError) as error:
                    detail = "It, or a line before it, has a value that cannot be stored"
                    raise checker.line.error(detail) from error
        return key


@dataclass(eq=False, repr=False)
class _Import:
    """One import, in its transaction; the lines are checked when they are read."""

    service: ImportService
    session: Repositories
    tenant_id: str
    key: str
    checker: ImportChecker
    lines: AsyncIterator[Line]
    agent_id: str | None = None

    async def begin(
        self, check_settings: CheckSettings, own_id: str | None, agent_id: str | None
    ) -> None:
        """Create the conversation with the settings of the file."""
        async for line in self.lines:
            if line.type == RecordKind.STATE:
                break
        settings = dict(self.checker.settings)
        lists = ("policy", "sections", "tools", "metadata")
        given = {name: json_text.loads(settings[name]) for name in lists}
        model = {"model": settings["model"]} if settings["model"] is not None else {}
        check_settings(given | model)
        settings["agent_id"] = agent_id or settings["agent_id"]
        expires_at = _time(settings["expires_at"])
        # The import of an old export would be deleted at once.
        is_valid = expires_at is not None and expires_at > self.service._now()
        settings["expires_at"] = expires_at if is_valid else None
        own = {name: settings[name] for name in (*SETTINGS, "counter")} | {"own_id": own_id}
        added = {"tenant_id": self.tenant_id, "conversation_id": self.key}
        if not await self.session.session.run(ADD, **own, **added):
            raise id_taken(own_id or self.key)  # another tenant has created one with this UUID
        self.agent_id = settings["agent_id"]

    async def store(self) -> None:
        """Store the other records, those of one kind in batches."""
        batch: list[Line] = []
        size = 0
        async for line in self.lines:
            if batch and (
                line.type != batch[0].type or len(batch) == _BATCH_ROWS or size >= _BATCH_BYTES
            ):
                await self._write(batch)
                batch, size = [], 0
            if line.type == RecordKind.BLOB:
                await self._add_blob(line)
            elif line.type != "end":
                batch.append(line)
                size += sum(len(item) for item in line.fields.values() if isinstance(item, str))
        if batch:
            await self._write(batch)

    async def _write(self, batch: list[Line]) -> None:
        """Store records of one kind, after the blobs that they refer to."""
        refs = {ref: line for line in batch if (ref := _ref_of(line)) is not None}
        if refs:
            found = await self.session.blobs.find_all(self.key, list(refs))
            for ref in refs.keys() - {blob.id for blob in found}:
                raise refs[ref].error(f"The blob {ref!r} is not in the export")
        records = [line.fields for line in batch]
        kind = RecordKind(batch[0].type)
        if await write(self.session.session, self.key, kind, records) < len(batch):
            first = batch[0].number
            raise batch[-1].error(f"A message id stands twice, between line {first} and this")

    async def _add_blob(self, line: Line) -> None:
        """Store a blob with its bytes, which are in the next lines unless it was collected."""
        service, session, fields = self.service, self.session, line.fields
        content_id, size = service._new_id(), fields["byte_size"]
        if size > service._max_blob_bytes:
            raise line.too_large("a blob has", service._max_blob_bytes)
        if fields["blob_id"] != blob_id(fields["sha256"]):
            raise line.error("is not the id of these bytes", "blob_id")
        if fields["is_collected"]:
            row = {"content_id": content_id, "collected_at": service._now().isoformat()}
            await write(session.session, self.key, RecordKind.BLOB, [{**fields, **row}])
            return
        await session.blobs.begin_upload(self.tenant_id, self.key, content_id)
        chunker, is_whole = Chunker(), False
        pending: list[Chunk] = []
        async with service._blob_store.writer(self.tenant_id, self.key, content_id) as writer:
            while not is_whole:
                is_whole = chunker.byte_size == size
                pending += chunker.finish() if is_whole else ()
                if pending and (is_whole or len(pending) >= CHUNKS_PER_READ):
                    chunks = await writer.write(pending)
                    await session.blobs.add_chunks(self.key, content_id, chunks)
                    pending.clear()
                if not is_whole:
                    pending += chunker.feed((await anext(self.lines)).fields["data"])
            blob = chunker.blob(fields["media_type"], fields["tool_name"], fields["tool_call_id"])
            if (blob.sha256, blob.line_count) != (fields["sha256"], fields["line_count"]):
                raise line.error("The bytes of the blob differ from those exported", "sha256")
            object_key = await writer.finish()
        stored = replace(blob, content_id=content_id, object_key=object_key)
        await session.blobs.end_upload(self.key, stored)
        if fields["attached"]:
            await session.blobs.attach(self.key, [blob.id])

    async def finish(self) -> None:
        """Store the head, the window and the view, after all rows."""
        session, head, resolver = self.session, self.checker.head, self.service._resolver
        agent_policy = "{}"
        if self.agent_id is not None:
            # The lock orders the import and a deletion of the agent.
            agent = await session.agents.find(self.tenant_id, self.agent_id, lock=True)
            if agent is None:
                detail = (
                    f"There is no agent {self.agent_id!r}: create it first, or name another one"
                )
                raise ValidationError.at("/query/agent_id", f"{detail} in `agent_id`")
            agent_policy = agent.settings.policy
        resolver.policy(agent_policy, self.checker.settings["policy"])
        await set_head(session, self.key, head | {"cleared_at": _time(head["cleared_at"])})
        receipt = None
        if head["compaction_id"] is not None:
            receipt = await session.contexts.find_compaction(self.key, head["compaction_id"])
            if receipt is None:
                detail = "The active compaction of the export is not in it"
                raise ValidationError.at("/compaction_id", detail)
        window, oldest_at = window_from(head["since"], head["parts"]), _time(head["oldest_at"])
        shown = Shown(window, oldest_at, head["mentions"], receipt, tuple(head["kept"]))
        await show(session, resolver, self.tenant_id, self.key, shown)


async def _in_threads(checked: Iterator[Line]) -> AsyncIterator[Line]:
    """Yield lines; parsing and checking them takes most of the time of an import."""
    while some := await asyncio.to_thread(lambda: list(islice(checked, _LINES_AT_ONCE))):
        for line in some:
            yield line


def _ref_of(line: Line) -> str | None:
    """Return the blob that a record refers to."""
    if line.type == RecordKind.MESSAGE and line.fields["output"] is not None:
        return stored_output_from(line.fields["output"]).ref
    ref: str | None = line.fields["blob_id"] if line.type == RecordKind.BLOB_USE else None
    return ref


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text is not None else None
