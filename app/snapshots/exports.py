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
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import islice
from tempfile import TemporaryFile
from typing import Any

from pydantic import TypeAdapter

from app.blobs.chunks import Blob, Chunker, blob_id
from app.blobs.stored_output import stored_output_from
from app.common import json_text
from app.common.errors import NotFound, ServiceUnavailable, ValidationError
from app.conversations.messages.stored_results import StoredResults
from app.conversations.repository import id_taken, own_id_of
from app.conversations.schemas import ConversationCreate
from app.conversations.settings_resolver import SettingsResolver
from app.conversations.view import window_from
from app.database.connections import UNSTORABLE
from app.database.sql import read
from app.http.errors import validated
from app.policy.policy import merge
from app.repositories import Database, Repositories
from app.snapshots.checks import FORMAT, LINES, VERSION, ImportChecker, Line, read_lines
from app.snapshots.copied_rows import ADD, KINDS, Shown, end_copy, page, read_settings, write

_PIECE_BYTES = 32_768
"""Bytes of a blob in one line."""
_IMPORT_BYTES = 2**20
_IMPORT_ROWS = 500
"""What an import inserts at once."""
_LINES_AT_ONCE = 100
_RECORD_FACTOR = 2
"""Bytes of a record for each byte of a request body: the quotes of its JSON are escaped."""
_SETTINGS = TypeAdapter(ConversationCreate)


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


@dataclass(eq=False, repr=False)
class ImportService:
    """Imports conversations; `max_bytes` are those of a request body and of a blob."""

    database: Database
    resolver: SettingsResolver
    outputs: StoredResults
    new_id: Callable[[], str]
    now: Callable[[], datetime]
    max_bytes: tuple[int, int]

    async def add(
        self,
        tenant_id: str,
        pieces: AsyncIterator[bytes],
        public_id: str | None = None,
        agent_id: str | None = None,
    ) -> str:
        """Import an export and return its key; `agent_id` replaces the agent of the file.

        Raises ValidationError or PayloadTooLarge with the number of the line, or Conflict when the
        id is taken. Then nothing is stored.
        """
        public_id = public_id or self.new_id()
        with TemporaryFile() as file:
            try:
                async for piece in pieces:
                    await asyncio.to_thread(file.write, piece)
                file.seek(0)
            except OSError as error:
                reason = {"reason": type(error).__name__}
                raise ServiceUnavailable("There is no room for the export", reason) from error
            checker = ImportChecker(self.resolver.counter)
            checked = map(checker.check, read_lines(file, _RECORD_FACTOR * self.max_bytes[0]))
            async with self.database.transaction() as session:
                key = await session.conversations.free_key(tenant_id, public_id)
                writer = _Import(self, session, tenant_id, key, checker, _in_threads(checked))
                try:
                    await writer.begin(own_id_of(key, public_id), agent_id)
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

    async def begin(self, own_id: str | None, agent_id: str | None) -> None:
        """Create the conversation with the settings of the file, if a request could."""
        async for line in self.lines:
            if line.type == "state":
                break
        settings = self.checker.settings
        lists = ("policy", "sections", "tools", "metadata")
        given = {name: json_text.loads(settings[name]) for name in lists}
        given["policy"] = merge({}, given["policy"])
        model = {"model": settings["model"]} if settings["model"] is not None else {}
        validated(_SETTINGS, given | model)
        self.agent_id = agent_id or settings["agent_id"]
        expires_at = _time(settings["expires_at"])
        if expires_at is not None and expires_at <= self.service.now():
            expires_at = None  # the import of an old export would be deleted at once
        own = {"tenant_id": self.tenant_id, "conversation_id": self.key, "own_id": own_id}
        changed = {"agent_id": self.agent_id, "expires_at": expires_at, "origin_id": None}
        changed["policy"] = json_text.dumps(given["policy"])
        if not await self.session.session.run(ADD, **{**settings, **own, **changed}):
            raise id_taken(own_id or self.key)  # another tenant has created one with this UUID

    async def store(self) -> None:
        """Store the other records, those of one kind in batches."""
        batch: list[Line] = []
        size = 0
        async for line in self.lines:
            is_full = len(batch) == _IMPORT_ROWS or size >= _IMPORT_BYTES
            if batch and (is_full or line.type != batch[0].type):
                await self._write(batch)
                batch, size = [], 0
            if line.type == "blob":
                await self._add_blob(line)
            elif line.type != "end":
                batch.append(line)
                size += sum(len(item) for item in line.fields.values() if isinstance(item, str))

    async def _write(self, batch: list[Line]) -> None:
        """Store records of one kind, after the blobs that they refer to."""
        refs = {ref: line for line in batch if (ref := _ref_of(line)) is not None}
        if refs:
            found = await self.session.blobs.find_all(self.key, list(refs))
            for ref in refs.keys() - {blob.id for blob in found}:
                raise refs[ref].error(f"The blob {ref!r} is not in the export")
        records = [line.fields for line in batch]
        if await write(self.session.session, self.key, batch[0].type, records) < len(batch):
            first = batch[0].number
            raise batch[-1].error(f"A message id stands twice, between line {first} and this")

    async def _add_blob(self, line: Line) -> None:
        """Store a blob with its bytes, which are in the next lines unless it was collected."""
        service, blobs, fields = self.service, self.session.blobs, line.fields
        content_id, size = service.new_id(), fields["byte_size"]
        if size > service.max_bytes[1]:
            raise line.too_large("a blob has", service.max_bytes[1])
        if fields["blob_id"] != blob_id(fields["sha256"]):
            raise line.error("is not the id of these bytes", "blob_id")
        if fields["is_collected"]:
            row = {"content_id": content_id, "collected_at": service.now().isoformat()}
            await write(self.session.session, self.key, "blob", [{**fields, **row}])
            return
        await blobs.begin_upload(self.tenant_id, self.key, content_id)
        chunker = Chunker()

        async def pieces() -> AsyncIterator[bytes]:
            while chunker.byte_size < size:
                yield (await anext(self.lines)).fields["data"]

        place, add = (self.tenant_id, self.key, content_id), partial(blobs.add_chunks, self.key)
        key = await service.outputs.write(place, pieces(), chunker, partial(add, content_id))
        blob = chunker.blob(fields["media_type"], fields["tool_name"], fields["tool_call_id"])
        if (blob.sha256, blob.line_count) != (fields["sha256"], fields["line_count"]):
            raise line.error("The bytes of the blob differ from those exported", "sha256")
        await blobs.end_upload(self.key, replace(blob, content_id=content_id, object_key=key))
        if fields["attached"]:
            await blobs.attach(self.key, [blob.id])

    async def finish(self) -> None:
        """Store the state, the active window and the view, after all rows."""
        session, state, resolver = self.session, self.checker.full_state, self.service.resolver
        agent_policy = "{}"
        if self.agent_id is not None:
            # The lock orders the import and a deletion of the agent.
            agent = await session.agents.find(self.tenant_id, self.agent_id, lock=True)
            if agent is None:
                detail = f"There is no agent {self.agent_id!r}: create it, or name another one"
                raise ValidationError.at("/query/agent_id", detail)
            agent_policy = agent.settings.policy
        resolver.policy(agent_policy, self.checker.settings["policy"])
        receipt = await session.contexts.find_receipt(self.key, state["compaction_id"])
        if receipt is None and state["compaction_id"] is not None:
            detail = "The active compaction of the export is not in it"
            raise ValidationError.at("/compaction_id", detail)
        state["cleared_at"] = _time(state["cleared_at"])
        window = window_from(state["since"], state["window_parts"])
        tools, seqs = state["named_tools"], tuple(state["protected_seqs"])
        shown = Shown(window, _time(state["oldest_at"]), tools, receipt, seqs)
        await end_copy(session, resolver, (self.tenant_id, self.key), state, shown)


async def _in_threads(checked: Iterator[Line]) -> AsyncIterator[Line]:
    """Yield lines; parsing and checking them takes most of the time of an import."""
    while some := await asyncio.to_thread(lambda: list(islice(checked, _LINES_AT_ONCE))):
        for line in some:
            yield line


def _ref_of(line: Line) -> str | None:
    """Return the blob that a record refers to."""
    if line.type == "message" and line.fields["output"] is not None:
        return stored_output_from(line.fields["output"]).ref
    ref: str | None = line.fields["blob_id"] if line.type == "blob_use" else None
    return ref


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text is not None else None


def _pieces(chunks: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for chunk in chunks:
        for start in range(0, len(chunk), _PIECE_BYTES):
            yield {"data": b64encode(chunk[start : start + _PIECE_BYTES]).decode()}


def _lines(kind: str, records: Iterable[Mapping[str, Any]]) -> bytes:
    if kind == "compaction":
        records = [{**record, **json_text.loads(record["receipt"])} for record in records]
    lines = ({"type": kind, **{name: row[name] for name in LINES[kind]}} for row in records)
    return b"".join(json_text.dump_stored(line) + b"\n" for line in lines)
