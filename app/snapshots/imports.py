"""Imports of exported conversations: all of a log or nothing [exports.import].

1. The lines are checked and stored in batches as they arrive, in a conversation that no tenant
   sees. The last transaction computes its window and its view, and gives it to its tenant.
2. An import that fails removes what it stored. After a crash, a worker removes what has not
   continued for `STALE_SECONDS`, or a new import with the same id does.
3. No session is open while bytes come from the client. Memory holds a batch of records and a few
   chunks of one blob.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from app.blobs.blobs import Chunk, Chunker, blob_id
from app.blobs.chunks import BlobStore
from app.blobs.stored_output import stored_output_from
from app.common import json_text
from app.common.errors import Conflict, PayloadTooLarge, ServiceUnavailable, ValidationError
from app.common.ids import keys_of
from app.conversations.lookup import free_key, id_taken, own_id_of, require_free
from app.conversations.messages.stored_results import CHUNKS_PER_READ
from app.conversations.settings_resolver import SettingsResolver
from app.conversations.windows.active_window import window_from
from app.repositories import Database, Repositories
from app.snapshots.copied_log import Shown, set_head, show
from app.snapshots.export_checks import ImportChecker
from app.snapshots.export_format import IMPORTING_TENANT, SETTINGS, ExportReader, Line, RecordKind
from app.snapshots.exports_repository import ADDITIONS, BEGIN, LOCK, PUBLISH, RENEW, STALE

STALE_SECONDS = 600
"""After this time without a line, an import may be removed."""
_DROP_TIMEOUT_SECONDS = 60
_STALE_BATCH = 50
_LINES_AT_ONCE = 100
_BATCH_ROWS = 500
_BATCH_CHARS = 2**20
_RECORD_FACTOR = 2
"""Bytes of a record for each byte of a request body: the quotes of its JSON are escaped."""
_log = logging.getLogger("app.imports")

CheckSettings = Callable[[Mapping[str, Any]], None]
"""Raises ValidationError unless a conversation could be created with these settings."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What was imported."""

    conversation_id: str
    public_id: str
    messages: int
    blobs: int


@dataclass(eq=False, repr=False)
class ImportService:
    """Imports conversations."""

    _database: Database
    _resolver: SettingsResolver
    _blob_store: BlobStore
    _new_id: Callable[[], str]
    _now: Callable[[], datetime]
    _check_settings: CheckSettings
    _max_body_bytes: int
    _max_blob_bytes: int

    async def add(
        self,
        tenant_id: str,
        pieces: AsyncIterator[bytes],
        public_id: str | None = None,
        agent_id: str | None = None,
    ) -> Imported:
        """Import an export; `agent_id` replaces the agent of the file.

        Raises ValidationError or PayloadTooLarge with the number of the line, or Conflict when the
        id is taken. Then nothing is stored.
        """
        public_id = public_id or self._new_id()
        key = await self._begin(tenant_id, public_id)
        try:
            return await self._store(tenant_id, key, public_id, pieces, agent_id)
        except BaseException:
            await self._drop(key)
            raise

    async def _begin(self, tenant_id: str, public_id: str) -> str:
        """Create the conversation, which no tenant sees, and return its key; raises Conflict."""
        before = self._now() - timedelta(seconds=STALE_SECONDS)
        for key in keys_of(tenant_id, public_id):
            await _remove(self._database, key, before)
        async with self._database.session() as session:
            key = await free_key(session, tenant_id, public_id)
            if not await session.session.run(BEGIN, conversation_id=key):
                raise id_taken(public_id)
        return key

    async def _drop(self, key: str) -> None:
        """Remove what an import stored; if that fails, a worker removes it later."""
        try:
            async with asyncio.timeout(_DROP_TIMEOUT_SECONDS):
                await _remove(self._database, key, self._now() + timedelta(days=1))
        except (ServiceUnavailable, TimeoutError):
            _log.warning("import_not_removed")

    # --- storing ----------------------------------------------------------------------------

    async def _store(
        self,
        tenant_id: str,
        key: str,
        public_id: str,
        pieces: AsyncIterator[bytes],
        agent_id: str | None,
    ) -> Imported:
        checker = ImportChecker(self._resolver.counter)
        lines = self._lines(pieces, checker)
        batch: list[Line] = []
        chars = 0
        async for line in lines:
            match line.type:
                case "export" | "end" | RecordKind.SETTINGS | RecordKind.STATE:
                    continue
                case RecordKind.BLOB:
                    await self._add_blob(tenant_id, key, line, lines)
                    continue
            if batch and (
                line.type != batch[0].type or len(batch) == _BATCH_ROWS or chars >= _BATCH_CHARS
            ):
                await self._add(key, batch)
                batch, chars = [], 0
            batch.append(line)
            chars += sum(len(item) for item in line.fields.values() if isinstance(item, str))
        if batch:
            await self._add(key, batch)
        async with self._database.transaction() as session:
            await require_free(session, tenant_id, public_id)
            await self._publish(session, tenant_id, key, public_id, checker, agent_id)
        return Imported(key, public_id, checker.head_seq, checker.blobs)

    async def _lines(
        self, pieces: AsyncIterator[bytes], checker: ImportChecker
    ) -> AsyncIterator[Line]:
        reader = ExportReader(_RECORD_FACTOR * self._max_body_bytes)
        async for piece in pieces:
            checked = map(checker.check, reader.feed(piece))
            # Parsing and checking take most of the time of an import.
            while some := await asyncio.to_thread(_next_lines, checked):
                for line in some:
                    yield line
        reader.finish()

    @asynccontextmanager
    async def _writing(self, key: str) -> AsyncIterator[Repositories]:
        """Write in a transaction of an import that was not removed."""
        async with self._database.transaction() as session:
            if not await session.session.run(RENEW, conversation_id=key):
                raise _removed(key)
            yield session

    async def _add(self, key: str, batch: Sequence[Line]) -> None:
        """Store records of one kind, after the blobs that they refer to."""
        kind = RecordKind(batch[0].type)
        refs = {ref: line for line in batch if (ref := _ref_of(line)) is not None}
        async with self._writing(key) as session:
            if refs:
                found = await session.blobs.find_all(key, list(refs))
                for ref in refs.keys() - {blob.id for blob in found}:
                    raise refs[ref].error(f"The blob {ref!r} is not in the export")
            rows = json_text.dumps([line.fields for line in batch])
            added = await session.session.run(ADDITIONS[kind], conversation_id=key, rows=rows)
            if added < len(batch):
                first = batch[0].number
                raise batch[-1].error(f"A message id stands twice, between line {first} and this")

    async def _add_blob(
        self, tenant_id: str, key: str, line: Line, lines: AsyncIterator[Line]
    ) -> None:
        """Store a blob with its bytes, which are in the next lines unless it was collected."""
        fields, content_id = line.fields, self._new_id()
        size = fields["byte_size"]
        if size > self._max_blob_bytes:
            raise PayloadTooLarge(
                f"Line {line.number}: a blob holds at most {self._max_blob_bytes:,} bytes. "
                "Nothing was imported",
                {"line": line.number, "limit": self._max_blob_bytes},
            )
        if fields["blob_id"] != blob_id(fields["sha256"]):
            raise line.error("is not the id of these bytes", "blob_id")
        async with self._writing(key) as session:
            if fields["is_collected"]:
                row = {"content_id": content_id, "collected_at": self._now().isoformat()}
                rows = json_text.dumps([{**fields, **row}])
                await session.session.run(
                    ADDITIONS[RecordKind.BLOB], conversation_id=key, rows=rows
                )
                return
            await session.blobs.begin_upload(IMPORTING_TENANT, key, content_id)
        chunker = Chunker()
        pending: list[Chunk] = []
        async with self._blob_store.writer(tenant_id, key, content_id) as writer:
            is_whole = False
            while not is_whole:
                is_whole = chunker.byte_size == size
                pending += chunker.finish() if is_whole else ()
                if pending and (is_whole or len(pending) >= CHUNKS_PER_READ):
                    stored = await writer.write(pending)
                    pending.clear()
                    async with self._writing(key) as session:
                        await session.blobs.add_chunks(key, content_id, stored)
                if not is_whole:
                    pending += chunker.feed((await anext(lines)).fields["data"])
            blob = chunker.blob(fields["media_type"], fields["tool_name"], fields["tool_call_id"])
            if (blob.sha256, blob.line_count) != (fields["sha256"], fields["line_count"]):
                raise line.error("The bytes of the blob differ from those exported", "sha256")
            object_key = await writer.finish()
        async with self._database.session() as session:
            stored_blob = replace(blob, content_id=content_id, object_key=object_key)
            await session.blobs.end_upload(key, stored_blob)
            if fields["attached"]:
                await session.blobs.attach(key, [blob.id])

    async def _publish(
        self,
        session: Repositories,
        tenant_id: str,
        key: str,
        public_id: str,
        checker: ImportChecker,
        agent_id: str | None,
    ) -> None:
        """Give the conversation to its tenant, with its window and its view."""
        settings = dict(checker.settings)
        agent_id = settings["agent_id"] = agent_id or settings["agent_id"]
        agent_policy = "{}"
        if agent_id is not None:
            # The lock orders the import and a deletion of the agent.
            agent = await session.agents.find(tenant_id, agent_id, lock=True)
            if agent is None:
                detail = f"There is no agent {agent_id!r}: create it first, or name another one"
                raise ValidationError.at("/query/agent_id", f"{detail} in `agent_id`")
            agent_policy = agent.settings.policy
        lists = ("policy", "sections", "tools", "metadata")
        given = {name: json_text.loads(settings[name]) for name in lists}
        self._check_settings(
            given | ({"model": settings["model"]} if settings["model"] is not None else {})
        )
        self._resolver.policy(agent_policy, settings["policy"])
        expires_at = _time(checker.settings["expires_at"])
        # The import of an old export would be deleted at once.
        settings["expires_at"] = expires_at if expires_at and expires_at > self._now() else None
        own = {name: settings[name] for name in SETTINGS} | {"own_id": own_id_of(key, public_id)}
        if not await session.session.run(PUBLISH, **own, tenant_id=tenant_id, conversation_id=key):
            raise _removed(key)
        head, receipt = checker.head, None
        await set_head(session, key, head | {"cleared_at": _time(head["cleared_at"])})
        if head["compaction_id"] is not None:
            receipt = await session.contexts.find_compaction(key, head["compaction_id"])
            if receipt is None:
                detail = "The active compaction of the export is not in it"
                raise ValidationError.at("/compaction_id", detail)
        window, oldest_at = window_from(head["since"], head["parts"]), _time(head["oldest_at"])
        shown = Shown(window, oldest_at, head["mentions"], receipt, tuple(head["kept"]))
        await show(session, self._resolver, tenant_id, key, shown)


async def remove_stale_imports(database: Database, now: Callable[[], datetime]) -> int:
    """Remove the imports that a crash has left; return their number (rule 2)."""
    before = now() - timedelta(seconds=STALE_SECONDS)
    removed, batch = 0, _STALE_BATCH
    while batch == _STALE_BATCH:
        async with database.session() as session:
            stale = await session.session.all(STALE, before=before, limit=_STALE_BATCH)
        batch = sum([await _remove(database, str(key), before) for (key,) in stale])
        removed += batch
    return removed


async def _remove(database: Database, key: str, before: datetime) -> bool:
    """Remove an import that has not continued since a time; the sweep deletes its objects."""
    async with database.transaction() as session:
        if await session.session.first(LOCK, conversation_id=key, before=before) is None:
            return False
        await session.conversations.remove(key)
    return True


def _next_lines(checked: Iterator[Line]) -> list[Line]:
    return list(islice(checked, _LINES_AT_ONCE))


def _ref_of(line: Line) -> str | None:
    """Return the blob that a record refers to."""
    if line.type == RecordKind.MESSAGE and line.fields["output"] is not None:
        return stored_output_from(line.fields["output"]).ref
    ref: str | None = line.fields["blob_id"] if line.type == RecordKind.BLOB_USE else None
    return ref


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text is not None else None


def _removed(key: str) -> Conflict:
    detail = "The import took too long between two lines and was removed"
    return Conflict(detail, {"conversation_id": key})
