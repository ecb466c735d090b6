"""Reading stored outputs: by line, by byte, by pattern, and as raw content.

1. A ref is the id of a blob, or the ref of a message without one: both are read in the same way.
2. No session is open while bytes are sent to a client or searched.
3. A slice costs what it returns; a search and a download need constant memory
   [tool-output.slice-cost].
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from hashlib import sha256

from app.blobs.chunks import CHUNK_BYTES, TEXT, Blob, count_lines
from app.blobs.repository import CHUNK_BEFORE_LINE, PAGE
from app.blobs.stored_output import SEQ_REF, message_ref, output_text, stored_output_from
from app.common.errors import Gone, NotFound
from app.common.pages import Page, first_of
from app.common.texts import sendable
from app.conversations.conversation import Conversation
from app.conversations.messages.row import StoredMessage, parse_stored
from app.conversations.messages.stored_results import (
    CHUNKS_PER_READ,
    CHUNKS_PER_SMALL_READ,
    StoredResults,
)
from app.conversations.partial_messages import readable_text
from app.conversations.settings_resolver import SettingsResolver
from app.database.sql import read
from app.formats.message import FormatName, Role
from app.repositories import Database, Repositories
from app.tool_output.grep import Grep, GrepResult
from app.tool_output.slices import LineReader, OutputBytes, OutputLines, byte_slice, bytes_to_fetch

MAX_GREP_LINES = 10_000
"""The largest number of lines in a search result, context lines included."""
MAX_CONCURRENT_SEARCHES = 2
"""Searches run in threads; more at a time would take the threads that other work needs."""
_THREAD_BYTES = 262_144
"""A larger row is parsed in a thread."""
_SEQ = re.compile(rf"{SEQ_REF}([1-9][0-9]{{0,14}})")


@dataclass(frozen=True, slots=True)
class ReadableOutput:
    """An output that can be read: a blob, or one in a row of the log, with its bytes in `data`."""

    conversation: Conversation
    blob: Blob
    data: bytes | None = None


class BlobReader:
    """Reads the outputs of conversations."""

    def __init__(
        self, database: Database, resolver: SettingsResolver, outputs: StoredResults
    ) -> None:
        self._database = database
        self._resolver = resolver
        self._outputs = outputs
        self._searches = asyncio.Semaphore(MAX_CONCURRENT_SEARCHES)

    async def page(
        self, tenant_id: str, conversation_id: str, limit: int, before: str | None
    ) -> Page[Blob]:
        """Return blobs, newest first, after the one with the id `before`."""
        async with self._database.session() as session:
            await session.conversations.get(tenant_id, conversation_id)
            rows = await session.session.all(
                PAGE,
                conversation_id=conversation_id,
                limit=limit + 1,
                before=before and sendable(before),
            )
        return first_of([read(Blob, row) for row in rows], limit)

    async def check(self, tenant_id: str, conversation_id: str) -> None:
        """Raise NotFound if the conversation does not exist."""
        async with self._database.session() as session:
            await session.conversations.get(tenant_id, conversation_id)

    async def find(self, tenant_id: str, conversation_id: str, ref: str) -> ReadableOutput:
        """Return the output of a ref; raises NotFound, or Gone if it was collected."""
        async with self._database.session() as session:
            conversation = await session.conversations.get(tenant_id, conversation_id)
            blob = await session.blobs.find(conversation_id, ref)
            message = None
            if blob is None:
                message = await find_message(session, conversation_id, ref)
                # Only an offloaded result has a stored output with a ref to a blob.
                if message is not None and message.stored_output is not None:
                    blob_ref = stored_output_from(message.stored_output).ref
                    if blob_ref is not None:
                        blob = await session.blobs.find(conversation_id, blob_ref)
        if blob is not None:
            if blob.collected_at is not None:
                raise Gone(f"Output {ref} was collected", {"ref_id": ref})
            return ReadableOutput(conversation, blob)
        if message is None:
            raise NotFound(f"No output {ref!r} in this conversation", {"ref_id": ref})
        if len(message.body) <= _THREAD_BYTES:
            data = _bytes_of(message)
        else:
            data = await asyncio.to_thread(_bytes_of, message)
        own_ref, digest = message_ref(message.id, message.seq), sha256(data).hexdigest()
        blob = Blob(own_ref, "", len(data), count_lines(data), digest, TEXT, attached=True)
        return ReadableOutput(conversation, blob, data)

    async def content(self, source: ReadableOutput, start: int, end: int) -> AsyncGenerator[bytes]:
        """Yield the bytes in `[start, end)` of an output, piece by piece."""
        if source.data is not None:
            yield source.data[start:end]
            return
        if start >= end:
            return
        first = start // CHUNK_BYTES
        position = first * CHUNK_BYTES
        count = min(CHUNKS_PER_READ, (end - 1) // CHUNK_BYTES - first + 1)
        async with aclosing(self._chunks(source, first, count)) as chunks:
            async for chunk in chunks:
                yield chunk[max(0, start - position) : end - position]
                position += len(chunk)
                if position >= end:
                    return

    async def read_lines(
        self, tenant_id: str, conversation_id: str, ref: str, offset: int, limit: int
    ) -> OutputLines:
        """Return numbered lines from `offset` on, as many as `max_message_bytes` allows."""
        source = await self.find(tenant_id, conversation_id, ref)
        policy = await self._resolver.tool_output_of(source.conversation)
        number, newlines = await self._chunk_of(source, offset)
        reader = LineReader(
            offset,
            limit,
            max_line_length=policy.max_line_length,
            max_bytes=policy.max_message_bytes,
            line_count=source.blob.line_count,
            start=number * CHUNK_BYTES,
            newlines=newlines,
        )
        if source.data is not None:
            await asyncio.to_thread(reader.feed, source.data)
            return reader.finish()
        async with aclosing(self._chunks(source, number, CHUNKS_PER_SMALL_READ)) as chunks:
            while not reader.is_done and (chunk := await anext(chunks, None)) is not None:
                reader.feed(chunk)
        return reader.finish()

    async def read_bytes(
        self, tenant_id: str, conversation_id: str, ref: str, offset: int, limit: int
    ) -> OutputBytes:
        """Return the text of a slice of bytes; no character is split."""
        source = await self.find(tenant_id, conversation_id, ref)
        total = source.blob.byte_size
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
        """Return the lines that match a regular expression.

        `limit` is lowered so that the result has at most MAX_GREP_LINES lines. Raises
        ValidationError for an invalid pattern.
        """
        source = await self.find(tenant_id, conversation_id, ref)
        search = Grep(
            pattern,
            ignore_case=ignore_case,
            before=before,
            after=after,
            limit=min(limit, max(1, MAX_GREP_LINES // (before + 1 + after))),
            max_line_length=self._resolver.policy_of(
                source.conversation
            ).tool_output.max_line_length,
        )
        async with self._searches:
            async with aclosing(self._batches(source)) as batches:
                async for batch in batches:
                    await asyncio.to_thread(search.feed, b"".join(batch))
                    if search.is_done:
                        break
            return await asyncio.to_thread(search.finish)

    async def _chunk_of(self, source: ReadableOutput, line: int) -> tuple[int, int]:
        """Return the number of the chunk in which a line begins, and the newlines before it."""
        if source.data is not None or line == 0:
            return 0, 0
        async with self._database.session() as session:
            chunk = await session.session.first(
                CHUNK_BEFORE_LINE,
                conversation_id=source.conversation.conversation_id,
                content_id=source.blob.content_id,
                line=line,
            )
        return tuple(chunk) if chunk is not None else (0, 0)

    async def _batches(self, source: ReadableOutput) -> AsyncGenerator[list[bytes]]:
        """Yield all of an output, a few chunks at a time."""
        if source.data is not None:
            yield [source.data]
            return
        conversation_id = source.conversation.conversation_id
        async with aclosing(self._outputs.batches(conversation_id, source.blob)) as batches:
            async for batch in batches:
                yield batch

    def _chunks(self, source: ReadableOutput, first: int, count: int) -> AsyncGenerator[bytes]:
        """Return a blob's bytes from a chunk on; `count` chunks are read first."""
        conversation_id = source.conversation.conversation_id
        return self._outputs.chunks(conversation_id, source.blob, first, count)


async def find_message(
    session: Repositories, conversation_id: str, ref: str
) -> StoredMessage | None:
    """Return the message of a ref, which has its seq or its id."""
    if match := _SEQ.fullmatch(ref):
        seq = int(match[1])
        page = await session.log.page(conversation_id, seq - 1, seq + 1, "asc", 1)
        if page and (page[0].role == Role.TOOL or message_ref(page[0].id, seq) == ref):
            return page[0]
    page = await session.log.by_ids(conversation_id, [ref])
    return page[0] if page else None


def _bytes_of(message: StoredMessage) -> bytes:
    stored = parse_stored(message.body.encode(), FormatName(message.format))
    return output_text(stored) if stored.role is Role.TOOL else readable_text(stored)
