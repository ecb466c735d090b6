"""Archives in an object store: one zstd frame each, beside the blobs.

1. The key is that of a blob's content, so that the objects of a deleted conversation and objects
   that no row names are deleted like those of blobs.
2. An archive is written to a temporary file first, and read from one: no database session waits for
   the store, and memory holds about a mebibyte. A small file stays in memory.
3. A damaged frame raises DamagedArchive.
4. In a folder, an object is flushed to the disk before its rows are deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from tempfile import SpooledTemporaryFile

import zstandard

from app.adapters.blobs.object_store import ObjectStore
from app.domain.common.errors import InsufficientStorage, ServiceUnavailable
from app.domain.conversations.archive import DamagedArchive
from app.services.ports import ArchiveFile

PIECE_BYTES = 2**20
"""Bytes that are compressed or read at once, in a thread, within a few milliseconds."""
IN_MEMORY_BYTES = 2**22
"""The largest file that stays in memory."""
ZSTD_LEVEL = 3
_MAX_WINDOW_BYTES = 2**23


class CompressedFile:
    """Fulfils `ArchiveFile`."""

    def __init__(self) -> None:
        self.file = SpooledTemporaryFile[bytes](IN_MEMORY_BYTES)
        self._frame = zstandard.ZstdCompressor(ZSTD_LEVEL, write_checksum=True).compressobj()
        self._waiting = bytearray()

    async def write(self, text: bytes) -> None:
        """Add a piece of the text."""
        self._waiting += text
        if len(self._waiting) >= PIECE_BYTES:
            text, self._waiting = bytes(self._waiting), bytearray()
            await self.in_thread(lambda: self.file.write(self._frame.compress(text)))

    async def finish(self) -> int:
        """Complete the file, and return its size in bytes."""
        text = bytes(self._waiting)
        await self.in_thread(
            lambda: self.file.write(self._frame.compress(text) + self._frame.flush())
        )
        return self.file.tell()

    async def in_thread(self, write: Callable[[], int]) -> None:
        """Write to the file in a thread; raises InsufficientStorage if that is not possible."""
        try:
            await asyncio.to_thread(write)
        except OSError as error:
            raise InsufficientStorage(
                "The temporary file of an archive cannot be written",
                {"reason": type(error).__name__},
            ) from error

    async def texts(self) -> AsyncIterator[bytes]:
        """Yield the text in pieces of about a mebibyte; raises DamagedArchive."""
        self.file.seek(0)
        decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
        reader = decompressor.stream_reader(self.file, closefd=False)
        try:
            while text := await asyncio.to_thread(reader.read, PIECE_BYTES):
                yield text
        except zstandard.ZstdError as error:
            raise DamagedArchive(str(error)) from error


class ArchiveObjects:
    """Fulfils `ArchiveStore`; without an object store, archives cannot be read."""

    def __init__(self, store: ObjectStore | None) -> None:
        self._store = store

    @asynccontextmanager
    async def new_file(self) -> AsyncIterator[CompressedFile]:
        """Yield a file to write an archive to; it is deleted at the end of the block."""
        written = CompressedFile()
        with written.file:
            yield written

    async def add(
        self, tenant_id: str, conversation_id: str, content_id: str, file: ArchiveFile
    ) -> str:
        """Store a complete file as an object, and return its key."""
        store = self._required()
        if not isinstance(file, CompressedFile):
            raise TypeError("the file is of another store")
        async with store.writer(tenant_id, conversation_id, content_id) as writer:
            file.file.seek(0)
            while piece := await asyncio.to_thread(file.file.read, PIECE_BYTES):
                await writer.send(piece)
            key = await writer.finish()
        if key is None:
            raise ValueError("the file is empty")
        await store.flush(key)
        return key

    @asynccontextmanager
    async def opened(self, object_key: str) -> AsyncIterator[CompressedFile]:
        """Yield an object as a file; raises ServiceUnavailable."""
        async with self.new_file() as file:
            async for piece in self._required().pieces(object_key):
                await file.in_thread(partial(file.file.write, piece))
            yield file

    async def remove(self, object_keys: Sequence[str]) -> None:
        """Delete objects; missing ones are no error."""
        await self._required().remove(object_keys)

    def _required(self) -> ObjectStore:
        if self._store is None:
            raise ServiceUnavailable(
                "The conversation is archived, and no object store is configured",
                {"reason": "NoObjectStore"},
            )
        return self._store
