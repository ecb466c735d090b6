"""Compression of chunks, and the blob store in rows [tool-output.compressed-chunks].

Each chunk is a zstd frame with its size and a checksum, so that a slice decompresses only the
chunks it needs. A damaged chunk, or one whose size differs from its row, is refused.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

import zstandard

from app.blobs.blobs import Chunk, StoredChunk
from app.common.concurrency import in_thread_if
from app.common.errors import ServiceUnavailable

ZSTD_LEVEL = 3
"""The default of zstd; higher levels are several times slower and gain little on text."""
THREAD_BYTES = 262_144
"""More bytes are compressed in a thread; this many take about a millisecond."""

Compressed = bytes | memoryview


async def compress(chunks: Sequence[Chunk]) -> list[StoredChunk]:
    """Return chunks with their compressed bytes."""
    return await in_thread_if(sum(len(c.data) for c in chunks) > THREAD_BYTES, _compress, chunks)


async def decompress(
    chunks: Sequence[StoredChunk], compressed: Sequence[Compressed]
) -> list[bytes]:
    """Return the bytes of compressed chunks; raises ServiceUnavailable for a damaged one."""
    is_large = sum(chunk.size for chunk in chunks) > THREAD_BYTES
    try:
        return await in_thread_if(is_large, _decompress, chunks, compressed)
    except (zstandard.ZstdError, ValueError) as exc:
        raise ServiceUnavailable(
            "A stored chunk is damaged", {"reason": type(exc).__name__}
        ) from exc


class BlobWriter:
    """Writes the chunks of one content, in order; here rows hold the bytes."""

    async def write(self, chunks: Sequence[Chunk]) -> list[StoredChunk]:
        """Write chunks, and return them as their rows store them."""
        return await compress(chunks)

    async def finish(self) -> str | None:
        """Complete the content; return the key of its object, None if rows hold the bytes."""
        return None


class BlobStore:
    """Stores the bytes of chunks: here in their rows, in a subclass in an object store.

    A failure of an object store raises ServiceUnavailable. Objects of an earlier configuration
    cannot be reached.
    """

    @asynccontextmanager
    async def writer(
        self, tenant_id: str, conversation_id: str, content_id: str
    ) -> AsyncIterator[BlobWriter]:
        """Open a writer for a content; without `finish`, nothing is stored."""
        yield BlobWriter()

    async def read(self, object_key: str | None, chunks: Sequence[StoredChunk]) -> list[bytes]:
        """Return the uncompressed bytes of consecutive chunks."""
        compressed = [chunk.data for chunk in chunks if chunk.data is not None]
        if len(compressed) < len(chunks):
            raise _no_object_store()
        return await decompress(chunks, compressed)

    async def copy(
        self, tenant_id: str, conversation_id: str, content_id: str, object_key: str
    ) -> str:
        """Copy an object to a content of another conversation, and return its key."""
        raise _no_object_store()

    async def remove(self, object_keys: Sequence[str]) -> None:
        """Delete objects; missing ones are no error."""

    async def delete_conversation(self, tenant_id: str, conversation_id: str) -> None:
        """Delete every object of a conversation."""

    async def drop_parts(self, older_than: datetime) -> int:
        """Delete parts of unfinished objects written before a time; return their number.

        A bucket cannot list such parts; it needs a lifecycle rule.
        """
        return 0

    async def orphans(self, older_than: datetime) -> AsyncIterator[tuple[str, str, str]]:
        """Yield the key, conversation id and content id of every object older than a time."""
        none: tuple[tuple[str, str, str], ...] = ()
        for orphan in none:
            yield orphan


def _no_object_store() -> ServiceUnavailable:
    return ServiceUnavailable(
        "The blob is in an object store, and no object store is configured",
        {"reason": "NoObjectStore"},
    )


def _compress(chunks: Sequence[Chunk]) -> list[StoredChunk]:
    compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True)
    return [
        StoredChunk(c.number, c.start, c.newlines, len(c.data), compressor.compress(c.data))
        for c in chunks
    ]


def _decompress(chunks: Sequence[StoredChunk], compressed: Sequence[Compressed]) -> list[bytes]:
    # The decompressor allocates the size in the frame, even above a given limit.
    if [zstandard.frame_content_size(data) for data in compressed] != [c.size for c in chunks]:
        raise ValueError("the size differs from its row")
    decompressor = zstandard.ZstdDecompressor()
    return [decompressor.decompress(data) for data in compressed]
