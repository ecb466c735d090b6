"""Blobs: uploading, reading by line, byte and pattern, and collecting what nobody needs (F).

1. A ref is a blob's id, or that of a message which holds all of its result or its text: all are
   read the same way.
2. No session is open while bytes come from a client, go to one, or are searched.
3. Reading costs what is shown; searching and downloading need a constant amount of memory (F4, F5).
4. A collection decides and deletes under the conversation's lock, so that no append can refer to
   what it takes (decision 29).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import TypeVar

from app.domain.common import json_text
from app.domain.common.errors import Conflict, Gone, NotFound, PayloadTooLarge, ServiceUnavailable
from app.domain.common.messages import FormatName, Role
from app.domain.common.policy import Policy
from app.domain.compaction.reduction.text_shortening import readable_text
from app.domain.conversations.conversation import Conversation
from app.domain.conversations.events import EventType
from app.domain.conversations.log.row import parse_stored
from app.domain.conversations.stored_message import StoredMessage
from app.domain.tool_output.blobs import (
    CHUNK_BYTES,
    TEXT,
    Blob,
    Chunk,
    Chunker,
    ToolOutputRef,
    blob_id,
)
from app.domain.tool_output.grep import Grep, GrepResult
from app.domain.tool_output.offloading import SEQ_REF, message_ref, output_text
from app.domain.tool_output.preview import PreviewBuilder, PreviewRules
from app.domain.tool_output.slices import Bytes, LineReader, Lines, byte_slice, bytes_to_fetch
from app.services.ports import BlobStore, Database, Repositories
from app.services.prompt.settings_resolver import SettingsResolver
from app.services.tool_output.stored_results import CHUNKS_AT_ONCE, FIRST_CHUNKS, StoredResults

MAX_FOUND_LINES = 10_000
"""Lines that a search shows at most, those around its matches among them."""
SEARCHES_AT_ONCE = 2
"""Searches that one process does at a time: more would take the threads of everybody else."""
_SWEEP_BATCH = 100
_INLINE_BYTES = 262_144
"""A row's output up to which its reader does not hold up the event loop."""
_SEQ = re.compile(rf"{SEQ_REF}([1-9][0-9]{{0,14}})")

_Result = TypeVar("_Result")
_log = logging.getLogger("app.blobs")


@dataclass(frozen=True, slots=True)
class Uploaded:
    """A blob that was uploaded, and its view by the conversation's policy."""

    blob: Blob
    view: str


@dataclass(frozen=True, slots=True)
class Source:
    """An output that can be read: a stored blob, or the bytes of a row of the log."""

    conversation: Conversation
    ref: ToolOutputRef
    media_type: str
    sha256: str
    blob: Blob | None
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection took, or in a dry run would take."""

    dry_run: bool
    blobs: tuple[Blob, ...]
    uploads: int


class BlobService:
    """Serves the blobs of conversations."""

    def __init__(
        self,
        database: Database,
        resolver: SettingsResolver,
        store: BlobStore,
        outputs: StoredResults,
        new_id: Callable[[], str],
        now: Callable[[], datetime],
        *,
        most_bytes: int,
        upload_ttl_seconds: float,
    ) -> None:
        self._database = database
        self._frames = resolver
        self._store = store
        self._outputs = outputs
        self._new_id = new_id
        self._now = now
        self._most_bytes = most_bytes
        self._upload_ttl = timedelta(seconds=upload_ttl_seconds)
        self._searches = asyncio.Semaphore(SEARCHES_AT_ONCE)

    # --- uploading ------------------------------------------------------------------------

    async def upload(
        self,
        tenant_id: str,
        conversation_id: str,
        pieces: AsyncIterator[bytes],
        *,
        media_type: str,
        tool_name: str | None = None,
        tool_call_id: str | None = None,
        declared_bytes: int = 0,
    ) -> Uploaded:
        """Store a stream of any size in constant memory (F1).

        Raises NotFound, PayloadTooLarge with nothing stored, or ServiceUnavailable; whatever
        ends the stream early leaves nothing either. One that says it is too large is not read.
        """
        conversation = await self._conversation(tenant_id, conversation_id)
        self._check_size(declared_bytes)
        content_id = self._new_id()
        async with self._database.session() as records:
            if not await records.blobs.begin_upload(tenant_id, conversation_id, content_id):
                raise NotFound.conversation(conversation_id)
        try:
            rules = PreviewRules.of(self._policy(conversation).tool_output)
            chunker, view = Chunker(), PreviewBuilder(rules)
            key = await self._take_in(tenant_id, conversation_id, content_id, pieces, chunker, view)
            blob = Blob(
                id=blob_id(chunker.sha256),
                content_id=content_id,
                byte_size=chunker.byte_size,
                line_count=chunker.line_count,
                sha256=chunker.sha256,
                media_type=media_type,
                tool_name=tool_name,
                tool_call_id=tool_call_id,
                object_key=key,
            )
            async with self._database.session() as records:
                held = await records.blobs.end_upload(conversation_id, blob)
        except BaseException:
            await self._forget(conversation_id, content_id)
            raise
        if held != content_id and key is not None:
            await self._remove([key])
        # The same bytes may be a blob already, with another tool's name.
        blob = await self._stored(conversation_id, blob)
        return Uploaded(blob, view.finish(blob.ref, blob.tool_name).texts[0])

    def _check_size(self, byte_size: int) -> None:
        if byte_size > self._most_bytes:
            detail = f"A blob holds at most {self._most_bytes:,} bytes"
            raise PayloadTooLarge(detail, {"limit": self._most_bytes})

    async def _take_in(
        self,
        tenant_id: str,
        conversation_id: str,
        content_id: str,
        pieces: AsyncIterator[bytes],
        chunker: Chunker,
        view: PreviewBuilder,
    ) -> str | None:
        """Keep what comes, and return the key of its object."""
        waiting: list[Chunk] = []
        async with self._store.writer(tenant_id, conversation_id, content_id) as writer:

            async def flush() -> None:
                stored = await writer.write(waiting)
                async with self._database.session() as records:
                    await records.blobs.add_chunks(conversation_id, content_id, stored)
                waiting.clear()

            async for piece in pieces:
                self._check_size(chunker.byte_size + len(piece))
                view.feed(piece)
                waiting += chunker.feed(piece)
                if len(waiting) >= CHUNKS_AT_ONCE:
                    await flush()
            waiting += chunker.finish()
            if waiting:
                await flush()
            return await writer.finish()

    async def _forget(self, conversation_id: str, content_id: str) -> None:
        """Drop what came of an upload; what cannot be dropped now is collected later."""
        try:
            async with asyncio.timeout(5), self._database.session() as records:
                await records.blobs.drop_upload(conversation_id, content_id)
        except (ServiceUnavailable, TimeoutError):
            _log.warning("upload_not_dropped")

    async def _stored(self, conversation_id: str, blob: Blob) -> Blob:
        async with self._database.session() as records:
            return await records.blobs.find(conversation_id, blob.id) or blob

    # --- finding --------------------------------------------------------------------------

    async def page(
        self, tenant_id: str, conversation_id: str, limit: int, before: str | None
    ) -> list[Blob]:
        """Return blobs, newest first, from after the one with the id `before` on."""
        await self.check(tenant_id, conversation_id)
        async with self._database.session() as records:
            return await records.blobs.page(conversation_id, limit, before)

    async def check(self, tenant_id: str, conversation_id: str) -> None:
        """Raise NotFound unless there is such a conversation."""
        await self._conversation(tenant_id, conversation_id)

    async def find(self, tenant_id: str, conversation_id: str, ref: str) -> Source:
        """Return what a ref stands for; raises NotFound, or Gone once it is collected (F7)."""
        conversation = await self._conversation(tenant_id, conversation_id)
        async with self._database.session() as records:
            blob = await records.blobs.find(conversation_id, ref)
            message = None if blob is not None else await _message(records, conversation_id, ref)
            output_ref = await _beside(message, _blob_of) if message is not None else None
            if output_ref is not None:
                blob = await records.blobs.find(conversation_id, output_ref)
        if blob is not None:
            if blob.collected_at is not None:
                raise Gone(f"Output {ref} was collected", {"ref": ref})
            return Source(conversation, blob.ref, blob.media_type, blob.sha256, blob)
        if message is None:
            raise NotFound(f"No output {ref!r} in this conversation", {"ref": ref})
        data = await _beside(message, _bytes_of)
        lines = data.count(b"\n") + (data[-1:] not in (b"", b"\n"))
        own = ToolOutputRef(message_ref(message.id, message.seq), len(data), lines)
        return Source(conversation, own, TEXT, sha256(data).hexdigest(), None, data)

    async def _conversation(self, tenant_id: str, conversation_id: str) -> Conversation:
        async with self._database.session() as records:
            found = await records.conversations.find(
                tenant_id, conversation_id, self._frames.default_model
            )
        if found is None:
            raise NotFound.conversation(conversation_id)
        return found

    def _policy(self, conversation: Conversation) -> Policy:
        return self._frames.policy_of(conversation)

    # --- reading --------------------------------------------------------------------------

    async def content(self, source: Source, start: int, end: int) -> AsyncGenerator[bytes]:
        """Yield the bytes in `[start, end)` of an output, piece by piece."""
        if source.blob is None:
            yield source.data[start:end]
            return
        if start >= end:
            return
        first = start // CHUNK_BYTES
        at = first * CHUNK_BYTES
        few = min(CHUNKS_AT_ONCE, (end - 1) // CHUNK_BYTES - first + 1)
        async with aclosing(self._pieces(source, first, few)) as pieces:
            async for piece in pieces:
                yield piece[max(0, start - at) : end - at]
                at += len(piece)
                if at >= end:
                    return

    async def read_lines(
        self, tenant_id: str, conversation_id: str, ref: str, offset: int, limit: int
    ) -> Lines:
        """Return numbered lines from `offset` on, as many as fit a view (F4)."""
        source = await self.find(tenant_id, conversation_id, ref)
        policy = self._policy(source.conversation).tool_output
        number, newlines = await self._chunk_of(source, offset)
        reader = LineReader(
            offset,
            limit,
            max_line_length=policy.max_line_length,
            max_bytes=policy.max_message_bytes,
            total_lines=source.ref.line_count,
            start=number * CHUNK_BYTES,
            newlines=newlines,
        )
        if source.blob is None:
            await asyncio.to_thread(reader.feed, source.data)
            return reader.finish()
        while not reader.is_done:
            number, is_end = await self._feed(reader, source, number)
            if is_end or reader.next_line is None:
                break
            # The rest of a long line is passed over by the index, not read.
            following, newlines = await self._chunk_of(source, reader.next_line)
            if following > number:
                number = following
                reader.go_to(number * CHUNK_BYTES, newlines)
        return reader.finish()

    async def _chunk_of(self, source: Source, line: int) -> tuple[int, int]:
        """Return the chunk in which a line begins, and the newlines before that chunk."""
        if source.blob is None or line == 0:
            return 0, 0
        async with self._database.session() as records:
            place = await records.blobs.chunk_before_line(
                source.conversation.conversation_id, source.blob.content_id, line
            )
        return place or (0, 0)

    async def _feed(self, reader: LineReader, source: Source, number: int) -> tuple[int, bool]:
        """Feed chunks until the reader is done or waits; returns the next, and if that was all."""
        async with aclosing(self._pieces(source, number, FIRST_CHUNKS)) as pieces:
            async for piece in pieces:
                reader.feed(piece)
                number += 1
                if reader.is_done or reader.next_line is not None:
                    return number, False
        return number, True

    async def read_bytes(
        self, tenant_id: str, conversation_id: str, ref: str, offset: int, limit: int
    ) -> Bytes:
        """Return the text of a slice of bytes, no character of it split (F4)."""
        source = await self.find(tenant_id, conversation_id, ref)
        total = source.ref.byte_size
        start, end = bytes_to_fetch(offset, limit, total)
        async with aclosing(self.content(source, start, end)) as pieces:
            data = b"".join([piece async for piece in pieces])
        return byte_slice(data, start, offset=offset, limit=limit, total=total)

    async def grep(
        self,
        tenant_id: str,
        conversation_id: str,
        ref: str,
        pattern: str,
        *,
        ignore_case: bool = False,
        before: int = 0,
        after: int = 0,
        limit: int = 100,
    ) -> GrepResult:
        """Return the lines that a regular expression matches (F5).

        There are fewer than `limit` where so many would have too many lines around them. Raises
        ValidationError for a pattern that is none.
        """
        source = await self.find(tenant_id, conversation_id, ref)
        policy = self._policy(source.conversation).tool_output
        search = Grep(
            pattern,
            ignore_case=ignore_case,
            before=before,
            after=after,
            limit=min(limit, max(1, MAX_FOUND_LINES // (before + 1 + after))),
            max_line_length=policy.max_line_length,
        )
        async with self._searches:
            async with aclosing(self._runs(source)) as runs, aclosing(_ahead(runs)) as ready:
                async for run in ready:
                    await asyncio.to_thread(_feed_all, search, run)
                    if search.is_done:
                        break
            return await asyncio.to_thread(search.finish)

    async def _runs(self, source: Source) -> AsyncGenerator[list[bytes]]:
        """Yield all of an output, a few chunks at a time."""
        if source.blob is None:
            yield [source.data]
            return
        conversation_id = source.conversation.conversation_id
        async with aclosing(self._outputs.runs(conversation_id, source.blob)) as runs:
            async for run in runs:
                yield run

    async def _pieces(self, source: Source, first: int, at_once: int) -> AsyncGenerator[bytes]:
        """Yield an output from a chunk on."""
        if source.blob is None:
            yield source.data
            return
        conversation_id = source.conversation.conversation_id
        pieces = self._outputs.pieces(conversation_id, source.blob, first, at_once)
        async with aclosing(pieces):
            async for piece in pieces:
                yield piece

    # --- collecting -----------------------------------------------------------------------

    async def remove(self, tenant_id: str, conversation_id: str, ref: str) -> Blob:
        """Delete an upload that no message refers to; raises Conflict for any other blob."""
        await self.check(tenant_id, conversation_id)
        async with self._database.transaction() as records:
            await records.log.lock(tenant_id, conversation_id, self._frames.default_model)
            blob = await records.blobs.find(conversation_id, ref)
            if blob is None:
                message = await _message(records, conversation_id, ref)
                if message is not None:
                    raise Conflict(f"Output {ref} is part of the log", {"ref": ref})
                raise NotFound(f"No blob {ref!r} in this conversation", {"ref": ref})
            if blob.collected_at is not None:
                raise Gone(f"Output {ref} was collected", {"ref": ref})
            if blob.attached:
                raise Conflict(f"A message refers to blob {ref}", {"ref": ref})
            await records.blobs.collect(conversation_id, [ref])
        await self._remove([blob.object_key] if blob.object_key else [])
        return blob

    async def collect(
        self,
        tenant_id: str,
        conversation_id: str,
        *,
        dry_run: bool = False,
        uploaded_before: datetime | None = None,
    ) -> Collected:
        """Take the blobs that nothing refers to, and compacted ones if the policy says so (F7).

        `uploaded_before` spares uploads that are younger, which a message may still refer to.
        """
        async with self._database.transaction() as records:
            conversation = await records.log.lock(
                tenant_id, conversation_id, self._frames.default_model
            )
            if conversation is None:
                raise NotFound.conversation(conversation_id)
            compacted = self._policy(conversation).gc.drop_compacted
            blobs = await records.blobs.collectable(
                conversation_id, uploaded_before, compacted=compacted
            )
            begun = self._now() - self._upload_ttl
            uploads = await records.blobs.stale_uploads(conversation_id, begun)
            if not dry_run:
                await self._take(records, conversation_id, blobs, uploads)
        if not dry_run:
            await self._remove([blob.object_key for blob in blobs if blob.object_key])
        return Collected(dry_run, tuple(blobs), len(uploads))

    async def _take(
        self, records: Repositories, conversation_id: str, blobs: list[Blob], uploads: list[str]
    ) -> None:
        if blobs:
            await records.blobs.collect(conversation_id, [blob.id for blob in blobs])
            size = sum(blob.byte_size for blob in blobs)
            data = json_text.dumps({"blobs": len(blobs), "byte_size": size})
            await records.events.add(conversation_id, EventType.GC, data)
        for content_id in uploads:
            await records.blobs.drop_upload(conversation_id, content_id)
        await records.blobs.swept(conversation_id)

    async def collect_due(self) -> int:
        """Collect wherever there may be something to take; returns how many blobs that were."""
        before = self._now() - self._upload_ttl
        taken = 0
        seen: set[str] = set()
        while True:
            async with self._database.session() as records:
                due = await records.blobs.list_due(before, _SWEEP_BATCH)
            fresh = [item for item in due if item[1] not in seen]
            if not fresh:
                break
            for tenant_id, conversation_id in fresh:
                seen.add(conversation_id)
                try:
                    found = await self.collect(tenant_id, conversation_id, uploaded_before=before)
                except NotFound:
                    continue
                taken += len(found.blobs)
        await self._sweep_objects()
        return taken

    async def _sweep_objects(self) -> None:
        """Delete the objects that no row has, and the parts of uploads that were killed.

        Those of appends that were refused are among them.
        """
        older_than = self._now() - max(self._upload_ttl, timedelta(hours=1))
        if dropped := await self._store.drop_parts(older_than):
            _log.info("upload_parts_dropped", extra={"data": {"parts": dropped}})
        async for key, conversation_id, content_id in self._store.orphans(older_than):
            async with self._database.session() as records:
                held = await records.blobs.holds_content(conversation_id, content_id)
            if not held:
                await self._remove([key])

    async def _remove(self, keys: list[str]) -> None:
        """Delete objects that no row names any more; what fails is an orphan for the sweep."""
        if not keys:
            return
        try:
            await self._store.remove(keys)
        except ServiceUnavailable:
            _log.warning("objects_not_removed", extra={"data": {"count": len(keys)}})


async def _ahead(runs: AsyncGenerator[list[bytes]]) -> AsyncGenerator[list[bytes]]:
    """Yield what another yields, the next being read while one is in the caller's hands."""
    coming = asyncio.ensure_future(anext(runs, None))
    try:
        while (run := await coming) is not None:
            coming = asyncio.ensure_future(anext(runs, None))
            yield run
    finally:
        coming.cancel()
        await asyncio.wait([coming])
        _ = coming.cancelled() or coming.exception()  # seen: what was not asked for may fail


def _feed_all(search: Grep, run: list[bytes]) -> None:
    for piece in run:
        search.feed(piece)


async def _message(records: Repositories, conversation_id: str, ref: str) -> StoredMessage | None:
    """Return the message that a ref names, by its seq or by its id (rule 1)."""
    if seq := _SEQ.fullmatch(ref):
        place = int(seq[1])
        found = await records.log.page(conversation_id, place - 1, place + 1, "asc", 1)
        if found and (found[0].role == Role.TOOL or message_ref(found[0].id, place) == ref):
            return found[0]
    found = await records.log.by_ids(conversation_id, [ref])
    return found[0] if found else None


async def _beside(message: StoredMessage, work: Callable[[StoredMessage], _Result]) -> _Result:
    """Read a row's output, a large one in a thread."""
    if len(message.body) <= _INLINE_BYTES:
        return work(message)
    return await asyncio.to_thread(work, message)


def _blob_of(message: StoredMessage) -> str | None:
    """Return the blob of a message's result, None where the row holds all there is."""
    output = message.output
    return output.ref if output is not None else None


def _bytes_of(message: StoredMessage) -> bytes:
    stored = parse_stored(message.body.encode(), FormatName(message.format))
    return output_text(stored) if stored.role is Role.TOOL else readable_text(stored)
