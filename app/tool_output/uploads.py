"""Uploads of blobs: streams of any size, in constant memory [tool-output.upload].

No session is open while bytes come from the client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace

from app.blobs.chunks import Blob, Chunk, Chunker
from app.blobs.preview import Preview, PreviewBuilder
from app.common.errors import NotFound, PayloadTooLarge, ServiceUnavailable
from app.conversations.messages.stored_results import StoredResults
from app.conversations.settings_resolver import SettingsResolver
from app.repositories import Database

_DROP_TIMEOUT_SECONDS = 5
_log = logging.getLogger("app.blobs")


@dataclass(eq=False, repr=False)
class BlobUploads:
    """Stores uploads as blobs."""

    _database: Database
    _resolver: SettingsResolver
    _outputs: StoredResults
    _new_id: Callable[[], str]
    _max_blob_bytes: int

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
    ) -> tuple[Blob, Preview]:
        """Store a stream of bytes as a blob, and return it with its preview.

        Raises NotFound, PayloadTooLarge or ServiceUnavailable. An upload that fails or is cancelled
        leaves nothing stored. One whose declared size is too large is refused before it is read.
        """
        async with self._database.session() as session:
            conversation = await session.conversations.get(tenant_id, conversation_id)
        self._check_size(declared_bytes)
        content_id = self._new_id()
        async with self._database.session() as session:
            if not await session.blobs.begin_upload(tenant_id, conversation_id, content_id):
                raise NotFound.conversation(conversation_id)
        try:
            policy = await self._resolver.tool_output_of(conversation)
            chunker, preview = Chunker(), PreviewBuilder(policy)

            async def checked() -> AsyncIterator[bytes]:
                async for piece in pieces:
                    self._check_size(chunker.byte_size + len(piece))
                    preview.feed(piece)
                    yield piece

            async def add(chunks: Sequence[Chunk]) -> None:
                async with self._database.session() as session:
                    await session.blobs.add_chunks(conversation_id, content_id, chunks)

            place = tenant_id, conversation_id, content_id
            key = await self._outputs.write(place, checked(), chunker, add)
            blob = chunker.blob(media_type, tool_name, tool_call_id)
            blob = replace(blob, content_id=content_id, object_key=key)
            async with self._database.session() as session:
                stored_content_id = await session.blobs.end_upload(conversation_id, blob)
        except BaseException:
            await self._drop(conversation_id, content_id)
            raise
        if stored_content_id != content_id:
            await self._outputs.delete_objects(key)
        # A blob with the same bytes may have been stored before, with another tool's name.
        async with self._database.session() as session:
            blob = await session.blobs.find(conversation_id, blob.id) or blob
        return blob, preview.finish(blob.ref, blob.tool_name)

    def _check_size(self, byte_size: int) -> None:
        if byte_size > self._max_blob_bytes:
            detail = f"A blob holds at most {self._max_blob_bytes:,} bytes"
            raise PayloadTooLarge(detail, {"limit": self._max_blob_bytes})

    async def _drop(self, conversation_id: str, content_id: str) -> None:
        """Drop an unfinished upload; if that fails, a collection drops it later."""
        try:
            async with asyncio.timeout(_DROP_TIMEOUT_SECONDS), self._database.session() as session:
                await session.blobs.drop_upload(conversation_id, content_id)
        except (ServiceUnavailable, TimeoutError):
            _log.warning("upload_not_dropped")
