"""Tool outputs between the log and the blob store: what appends keep and readers get back (F1)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar

from app.domain.common import json_text
from app.domain.common.errors import Gone, ServiceUnavailable
from app.domain.common.messages import FormatName
from app.domain.common.policy import ToolOutputPolicy
from app.domain.conversations.log.draft import Draft
from app.domain.conversations.stored_message import StoredMessage
from app.domain.tool_output.blobs import CHUNK_BYTES, Blob, Chunk, StoredChunk
from app.domain.tool_output.offloading import Attached, restored
from app.domain.tool_output.preview import PreviewBuilder, PreviewKind, PreviewRules, ToolView
from app.services.common.read_permits import UNLIMITED, Read
from app.services.ports import BlobStore, Database

Forget = Callable[[str, Sequence[str]], Awaitable[None]]
"""Deletes what an object store keeps of a tenant's deleted conversations."""

CHUNKS_AT_ONCE = 16
"""Chunks read with one statement where a blob is read on: a megabyte, if they are full."""
FIRST_CHUNKS = 2
"""Chunks read first where few may be enough."""
WRITES_AT_ONCE = 8
"""Contents of one batch on their way into the store: each may take its time there."""
INLINED_BYTES = 65_536
"""Output that a transcript shows whole without being asked to (decision 4)."""
MAX_WHOLE_BYTES = 64 * 2**20
"""Output that is shown whole in its message where all of it is asked for."""

_Found = TypeVar("_Found")

_log = logging.getLogger("app.outputs")


class Content(StrEnum):
    """How much of offloaded results a transcript shows (decision 4)."""

    AUTO = "auto"
    VIEW = "view"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Original:
    """A message of the transcript: as it came, or with a result's view in its place.

    `is_truncated` tells of a view that shows less, `is_collected` that no more is kept (F7).
    """

    message: StoredMessage
    piece: dict[str, Any]
    is_truncated: bool = False
    is_collected: bool = False


class StoredResults:
    """Keeps the blobs of drafts, and reads stored ones a few chunks at a time."""

    def __init__(self, database: Database, store: BlobStore, new_id: Callable[[], str]) -> None:
        self._database = database
        self._store = store
        self._new_id = new_id

    async def keep(
        self, tenant_id: str, conversation_id: str, drafts: Sequence[Draft]
    ) -> list[tuple[Blob, list[StoredChunk]]]:
        """Put the bytes of all new blobs where they belong, and return what rows have to hold.

        Raises ServiceUnavailable when an object store fails (F8).
        """
        new = {blob.id: (blob, chunks) for draft in drafts for blob, chunks in draft.blobs}
        some = asyncio.Semaphore(WRITES_AT_ONCE)

        async def keep(blob: Blob, chunks: Sequence[Chunk]) -> tuple[Blob, list[StoredChunk]]:
            content_id = self._new_id()
            async with some, self._store.writer(tenant_id, conversation_id, content_id) as writer:
                stored = await writer.write(chunks)
                key = await writer.finish()
            return replace(blob, content_id=content_id, object_key=key), stored

        # All end before one's failure is told: nothing is written behind the caller's back.
        works = (keep(blob, chunks) for blob, chunks in new.values())
        kept = await asyncio.gather(*works, return_exceptions=True)
        return [_succeeded(item) for item in kept]

    async def forget(self, tenant_id: str, conversation_ids: Sequence[str]) -> None:
        """Delete what the store keeps of deleted conversations (A7).

        What cannot be deleted now is left for the sweep of orphans.
        """
        try:
            for conversation_id in conversation_ids:
                await self._store.forget(tenant_id, conversation_id)
        except ServiceUnavailable:
            _log.warning("objects_not_removed")

    async def attached(
        self, conversation_id: str, refs: Sequence[str], policy: ToolOutputPolicy
    ) -> Mapping[str, Attached]:
        """Return those of the blobs that there are, each with its view.

        A collected one has an empty view: only a message that has it already may name it.
        """
        async with self._database.session() as records:
            blobs = await records.blobs.find_all(conversation_id, refs)
        return {blob.id: await self._attached(conversation_id, blob, policy) for blob in blobs}

    async def _attached(
        self, conversation_id: str, blob: Blob, policy: ToolOutputPolicy
    ) -> Attached:
        while blob.collected_at is None:
            builder = PreviewBuilder(PreviewRules.of(policy))
            try:
                await self._show(conversation_id, blob, builder)
            except Gone:
                # Collected in between, and stored again perhaps: then it has another content.
                async with self._database.session() as records:
                    found = await records.blobs.find(conversation_id, blob.id)
                if found is None:
                    raise
                blob = found
            else:
                return Attached(blob, builder.finish(blob.ref, blob.tool_name))
        return Attached(blob, ToolView(PreviewKind.WHOLE, ("",)))

    async def _show(self, conversation_id: str, blob: Blob, builder: PreviewBuilder) -> None:
        async with aclosing(self.pieces(conversation_id, blob, 0, FIRST_CHUNKS)) as pieces:
            async for piece in pieces:
                builder.feed(piece)
                if builder.is_full:
                    break

    async def originals(
        self,
        conversation_id: str,
        messages: Sequence[StoredMessage],
        content: Content,
        read: Read = UNLIMITED,
    ) -> list[Original]:
        """Return messages as they came, cut results as far as `content` asks for them.

        The list ends early, but never before the first, where a page would become too large.
        """
        wanted = {id(message): size for message in messages if (size := _wanted(message, content))}
        refs = {message.output.ref for message in messages if message.output is not None}
        blobs = await self._blobs(conversation_id, [ref for ref in refs if ref is not None])
        shown: list[Original] = []
        total = 0
        for message in messages:
            size = wanted.get(id(message), 0)
            total += message.byte_size + size
            if shown and size and total > read.max_bytes:
                break
            await read.make_room(size)
            blob = blobs.get((message.output.ref or "") if message.output is not None else "")
            shown.append(await self._original(conversation_id, message, blob, is_wanted=size > 0))
        return shown

    async def _blobs(self, conversation_id: str, refs: Sequence[str]) -> Mapping[str, Blob]:
        if not refs:
            return {}
        async with self._database.session() as records:
            return {blob.id: blob for blob in await records.blobs.find_all(conversation_id, refs)}

    async def _original(
        self, conversation_id: str, message: StoredMessage, blob: Blob | None, *, is_wanted: bool
    ) -> Original:
        output, body = message.output, json_text.loads(message.body)
        is_collected = blob is not None and blob.collected_at is not None
        if output is None or not output.is_cut:
            return Original(message, body, is_collected=is_collected)
        if blob is None or is_collected or not is_wanted:
            return Original(message, body, is_truncated=True, is_collected=is_collected)
        data = b"".join([piece async for piece in self.pieces(conversation_id, blob)])
        piece = restored(message.body, FormatName(message.format), output, data)
        return Original(message, piece)

    async def pieces(
        self, conversation_id: str, blob: Blob, first: int = 0, at_once: int = CHUNKS_AT_ONCE
    ) -> AsyncGenerator[bytes]:
        """Yield the bytes of a blob from a chunk on, chunk by chunk, as `runs` does."""
        async with aclosing(self.runs(conversation_id, blob, first, at_once)) as runs:
            async for run in runs:
                for piece in run:
                    yield piece

    async def runs(
        self, conversation_id: str, blob: Blob, first: int = 0, at_once: int = CHUNKS_AT_ONCE
    ) -> AsyncGenerator[list[bytes]]:
        """Yield the chunks of a blob from one on, a few at a time, in constant memory.

        The first run has `at_once` of them. No session is open while one is in the caller's
        hands. Raises Gone when the blob is collected meanwhile.
        """
        at = first
        end = -(-blob.byte_size // CHUNK_BYTES)
        while at < end:
            async with self._database.session() as records:
                chunks = await records.blobs.chunks(conversation_id, blob.content_id, at, at_once)
            if not chunks:
                raise Gone(f"Output {blob.id} was collected", {"ref": blob.id})
            yield await self._opened(conversation_id, blob, chunks)
            at, at_once = chunks[-1].number + 1, CHUNKS_AT_ONCE

    async def _opened(
        self, conversation_id: str, blob: Blob, chunks: Sequence[StoredChunk]
    ) -> list[bytes]:
        try:
            return await self._store.read(blob.object_key, chunks)
        except ServiceUnavailable:
            # An object goes a moment after its rows, and nothing is wrong then.
            async with self._database.session() as records:
                if await records.blobs.holds_content(conversation_id, blob.content_id):
                    raise
            raise Gone(f"Output {blob.id} was collected", {"ref": blob.id}) from None


def _succeeded(found: _Found | BaseException) -> _Found:
    if isinstance(found, BaseException):
        raise found
    return found


def _wanted(message: StoredMessage, content: Content) -> int:
    """Return how many bytes of a cut result are wanted, 0 for its view."""
    output = message.output
    if output is None or not output.is_cut:
        return 0
    most = {Content.AUTO: INLINED_BYTES, Content.VIEW: 0, Content.FULL: MAX_WHOLE_BYTES}
    return output.byte_size if output.byte_size <= most[content] else 0
