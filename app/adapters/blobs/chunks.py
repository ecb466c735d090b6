"""Chunks as they are stored: compressed one by one, so that a slice opens only what it needs (F4).

1. A chunk is a zstd frame that tells its size and carries a checksum: one that is damaged, or
   claims to be larger than its row says, is not opened.
2. A few are compressed where they are asked for; many go to a thread, for the event loop must not
   wait for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TypeVar

import zstandard

from app.domain.common.errors import ServiceUnavailable
from app.domain.tool_output.blobs import Chunk, StoredChunk

LEVEL = 3
"""zstd's own default: higher ones cost several times more and gain little on text."""
INLINE_BYTES = 262_144
"""Up to so many raw bytes are done on the event loop, in about a millisecond (rule 2)."""

Packed = bytes | memoryview
_Result = TypeVar("_Result")


async def pack(chunks: Sequence[Chunk]) -> list[bytes]:
    """Compress chunks."""
    return await _beside(sum(len(chunk.data) for chunk in chunks), lambda: _packed(chunks))


async def unpack(chunks: Sequence[StoredChunk], packed: Sequence[Packed]) -> list[bytes]:
    """Return the raw bytes of compressed chunks; ServiceUnavailable where one is damaged."""
    size = sum(chunk.size for chunk in chunks)
    try:
        return await _beside(size, lambda: _unpacked(chunks, packed))
    except (zstandard.ZstdError, ValueError) as exc:
        raise ServiceUnavailable(
            "A stored chunk is damaged", {"reason": type(exc).__name__}
        ) from exc


class RowWriter:
    """Takes the chunks of a content whose rows hold the bytes."""

    async def write(self, chunks: Sequence[Chunk]) -> list[StoredChunk]:
        """Compress chunks, and return them with their bytes."""
        packed = await pack(chunks)
        return [
            StoredChunk(chunk.number, chunk.start, chunk.newlines, len(chunk.data), data=data)
            for chunk, data in zip(chunks, packed, strict=True)
        ]

    async def finish(self) -> None:
        """Tell that no object holds the bytes: they last as long as the rows."""


class RowStore:
    """Fulfils the services' `BlobStore` where there is no other: the rows hold the bytes."""

    @asynccontextmanager
    async def writer(
        self, tenant_id: str, conversation_id: str, content_id: str
    ) -> AsyncIterator[RowWriter]:
        """Open a content for writing; nothing of it stays unless its rows are stored."""
        yield RowWriter()

    async def read(self, object_key: str | None, chunks: Sequence[StoredChunk]) -> list[bytes]:
        """Return the raw bytes of chunks; ServiceUnavailable where only an object has them."""
        packed = [chunk.data for chunk in chunks if chunk.data is not None]
        if len(packed) < len(chunks):
            raise _no_object_store()
        return await unpack(chunks, packed)

    async def copy(
        self, tenant_id: str, conversation_id: str, content_id: str, object_key: str
    ) -> str:
        """Refuse to copy what an earlier setting put elsewhere, which cannot be reached."""
        raise _no_object_store()

    async def remove(self, object_keys: Sequence[str]) -> None:
        """Do nothing: what an earlier setting put elsewhere cannot be reached."""

    async def forget(self, tenant_id: str, conversation_id: str) -> None:
        """Do nothing: the rows go with the conversation."""

    async def drop_parts(self, older_than: datetime) -> int:
        """Do nothing: rows are written whole or not at all."""
        return 0

    async def orphans(self, older_than: datetime) -> AsyncIterator[tuple[str, str, str]]:
        """Yield nothing: there are no objects."""
        found: tuple[tuple[str, str, str], ...] = ()
        for orphan in found:
            yield orphan


def _no_object_store() -> ServiceUnavailable:
    return ServiceUnavailable(
        "The blob lies in an object store, and no object store is configured",
        {"reason": "NoObjectStore"},
    )


async def _beside(size: int, work: Callable[[], _Result]) -> _Result:
    return work() if size <= INLINE_BYTES else await asyncio.to_thread(work)


def _packed(chunks: Sequence[Chunk]) -> list[bytes]:
    compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
    return [compressor.compress(chunk.data) for chunk in chunks]


def _unpacked(chunks: Sequence[StoredChunk], packed: Sequence[Packed]) -> list[bytes]:
    decompressor = zstandard.ZstdDecompressor()
    return [_opened(decompressor, chunk, data) for chunk, data in zip(chunks, packed, strict=True)]


def _opened(decompressor: zstandard.ZstdDecompressor, chunk: StoredChunk, data: Packed) -> bytes:
    # The decompressor makes room for as much as the frame claims, whatever limit it is given.
    if zstandard.frame_content_size(data) != chunk.size:
        raise ValueError("not the size of its row")
    return decompressor.decompress(data)
