"""Where the bytes of blobs are: in rows, or in S3, GCS, Azure or a folder.

1. Each chunk is a zstd frame with its size and a checksum, so that a slice decompresses only the
   chunks it needs. A damaged chunk, or one whose size differs from its row, is refused
   [tool-output.compressed-chunks].
2. In an object store a content is one object with its compressed chunks; their rows have the
   positions. The key is `{tenant_id}/{conversation_id}/{content_id}`, below the path of the store's
   URL [tool-output.object-layout].
3. An object is whole or absent: it is written in parts, and exists once the last part is written.
   What a killed process leaves of an unfinished one is for a lifecycle rule of the bucket. In a
   folder it is a file `{content_id}#1`.
4. A failure, a timeout or an incomplete read raises ServiceUnavailable [tool-output.store-failure].
5. Credentials come from the environment, in the variables of the store's own tools.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from errno import ENOSPC
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit
from uuid import UUID

import zstandard

from app.blobs.chunks import Chunk
from app.common.concurrency import in_thread_if
from app.common.errors import ServiceUnavailable

ZSTD_LEVEL = 3
"""The default of zstd; higher levels are several times slower and gain little on text."""
THREAD_BYTES = 262_144
"""More bytes are compressed in a thread; this many take about a millisecond."""
PART_BYTES = 5_242_880
"""Bytes of a part of an upload: the minimum of S3."""
PARTS_AT_ONCE = 2
"""Parts sent at the same time; memory holds these and the one being filled."""
SCHEMES = ("s3", "gs", "az", "file", "memory")
"""The supported URL schemes."""
_LIST_PAGE = 1000
_IS_FULL = f"os error {ENOSPC}"


Compressed = bytes | memoryview


async def compress(chunks: Sequence[Chunk]) -> list[Chunk]:
    """Return chunks with their compressed bytes."""
    is_large = sum(chunk.size for chunk in chunks) > THREAD_BYTES
    return await in_thread_if(is_large, _compress, chunks)


async def decompress(chunks: Sequence[Chunk], compressed: Sequence[Compressed]) -> list[bytes]:
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

    async def write(self, chunks: Sequence[Chunk]) -> list[Chunk]:
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

    async def read(self, object_key: str | None, chunks: Sequence[Chunk]) -> list[bytes]:
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

    async def orphans(self, older_than: datetime) -> AsyncIterator[tuple[str, str, str]]:
        """Yield the key, conversation id and content id of every object older than a time."""
        for orphan in list[tuple[str, str, str]]():
            yield orphan


def _no_object_store() -> ServiceUnavailable:
    return ServiceUnavailable(
        "The blob is in an object store, and no object store is configured",
        {"reason": "NoObjectStore"},
    )


def _compress(chunks: Sequence[Chunk]) -> list[Chunk]:
    compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True)
    return [replace(chunk, data=compressor.compress(chunk.data or b"")) for chunk in chunks]


def _decompress(chunks: Sequence[Chunk], compressed: Sequence[Compressed]) -> list[bytes]:
    # The decompressor allocates the size in the frame, even above a given limit.
    if [zstandard.frame_content_size(data) for data in compressed] != [c.size for c in chunks]:
        raise ValueError("the size differs from its row")
    decompressor = zstandard.ZstdDecompressor()
    return [decompressor.decompress(data) for data in compressed]


class ObjectWriter(BlobWriter):
    """Writes the chunks of one content to one object."""

    def __init__(self, store: ObjectStore, key: str) -> None:
        self._store = store
        self._key = key
        self._sink: Any = None
        self._size = 0

    async def write(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        """Write chunks, and return them with their positions in the object."""
        stored, compressed = [], bytearray()
        for chunk in await compress(chunks):
            data, start = chunk.data or b"", self._size + len(compressed)
            stored.append(replace(chunk, data=None, object_start=start, object_size=len(data)))
            compressed += data
        self._size += len(compressed)
        if compressed:
            async with self._store.client() as opened:
                if self._sink is None:
                    from obstore import open_writer_async

                    self._sink = open_writer_async(
                        opened, self._key, buffer_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
                    )
                await self._sink.write(bytes(compressed))
        return stored

    async def finish(self) -> str | None:
        """Complete the object, and return its key; None if nothing was written."""
        if self._sink is None:
            return None
        async with self._store.client():
            await self._sink.close()
        self._sink = None
        return self._key

    async def abort(self) -> None:
        """Abort the object unless it is complete; an unavailable store keeps its parts."""
        if self._sink is not None:
            with suppress(ServiceUnavailable):
                async with self._store.client():
                    await self._sink.__aexit__(RuntimeError, RuntimeError(), None)


class ObjectStore(BlobStore):
    """Stores chunks with obstore, which is imported when it is first used."""

    def __init__(self, url: str, *, timeout_seconds: float = 30.0) -> None:
        """Take the URL of a bucket or folder, with an optional path; else raise ValueError."""
        scheme, separator, _ = url.partition("://")
        if not separator or scheme not in SCHEMES:
            raise ValueError(f"An object store's URL begins with one of {', '.join(SCHEMES)}")
        self._url = url
        self._timeout_seconds = timeout_seconds
        self._opening = asyncio.Lock()
        self._opened: Any = None

    @asynccontextmanager
    async def writer(
        self, tenant_id: str, conversation_id: str, content_id: str
    ) -> AsyncIterator[ObjectWriter]:
        """Return a writer; without `finish`, its object is aborted."""
        writer = ObjectWriter(self, _key(tenant_id, conversation_id, content_id))
        try:
            yield writer
        finally:
            await writer.abort()

    async def read(self, object_key: str | None, chunks: Sequence[Chunk]) -> list[bytes]:
        """Return the bytes of consecutive chunks, with one request.

        Rows from before the store was configured hold their own bytes.
        """
        if object_key is None or all(chunk.data is not None for chunk in chunks):
            return await super().read(object_key, chunks)
        ranges = [(chunk.object_start or 0, chunk.object_size or 0) for chunk in chunks]
        start, end = ranges[0][0], sum(ranges[-1])
        async with self.client() as opened:
            compressed = await opened.get_range_async(object_key, start=start, end=end)
        view = memoryview(compressed)
        return await decompress(
            chunks, [view[at - start : at - start + size] for at, size in ranges]
        )

    async def copy(
        self, tenant_id: str, conversation_id: str, content_id: str, object_key: str
    ) -> str:
        """Copy an object to a content of another conversation, and return its key."""
        key = _key(tenant_id, conversation_id, content_id)
        async with self.client() as opened:
            if self._url.startswith("file:"):
                # obstore makes a hard link. With the age of the object a deletion of orphans could
                # delete it before a row names it.
                _, *place = object_key.split("/")
                for file in _folder_of(self._url).glob("/".join(("*", *place))):
                    file.touch()
            await opened.copy_async(object_key, key)
        return key

    async def remove(self, object_keys: Sequence[str]) -> None:
        """Delete objects; missing ones are no error."""
        if object_keys and not await self._delete(object_keys):
            # Some stores stop at the first missing object.
            for key in object_keys:
                await self._delete([key])

    async def delete_conversation(self, tenant_id: str, conversation_id: str) -> None:
        """Delete every object of a conversation, a page at a time."""
        async for page in self._pages(_folder(tenant_id, conversation_id)):
            await self.remove([item["path"] for item in page])

    async def orphans(self, older_than: datetime) -> AsyncIterator[tuple[str, str, str]]:
        """Yield the key, conversation id and content id of every object older than a time.

        Objects with other keys than this service's are ignored.
        """
        async for page in self._pages():
            for item in page:
                ids = _ids(item["path"])
                if ids is not None and item["last_modified"] < older_than:
                    yield (item["path"], *ids)

    async def _pages(self, folder: str | None = None) -> AsyncIterator[list[dict[str, Any]]]:
        """Yield the objects of a folder, or of the whole store, a page at a time."""
        async with self.client() as opened:
            pages = opened.list(folder, chunk_size=_LIST_PAGE)
        while True:
            async with self.client():
                page = await anext(pages, None)
            if page is None:
                return
            yield page

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Any]:
        """Yield the store, with a timeout, and convert errors to ServiceUnavailable."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                async with self._opening:
                    if self._opened is None:
                        self._opened = await asyncio.to_thread(
                            _open, self._url, self._timeout_seconds
                        )
                yield self._opened
        except _failures() as exc:
            reason = "disk_full" if _IS_FULL in str(exc) else type(exc).__name__
            raise ServiceUnavailable(
                "The object store does not answer", {"reason": reason}
            ) from exc

    async def _delete(self, object_keys: Sequence[str]) -> bool:
        async with self.client() as opened:
            with suppress(FileNotFoundError):
                await opened.delete_async(list(object_keys))
                return True
        return False


def _failures() -> tuple[type[Exception], ...]:
    from obstore.exceptions import BaseError

    return (BaseError, OSError, ValueError)


def _open(url: str, timeout_seconds: float) -> Any:
    from obstore.store import from_url

    if url.startswith("file:"):
        with suppress(OSError):  # reported by the first call
            _folder_of(url).mkdir(mode=0o700, parents=True, exist_ok=True)
        return from_url(url, mkdir=True, automatic_cleanup=True)
    # Client options stay unset, because they would override those of the environment.
    limit = timedelta(seconds=timeout_seconds)
    return from_url(url, retry_config={"max_retries": 3, "retry_timeout": limit})


def _folder_of(url: str) -> Path:
    return Path(unquote(urlsplit(url).path))


def _key(tenant_id: str, conversation_id: str, content_id: str) -> str:
    return f"{_folder(tenant_id, conversation_id)}/{content_id}"


def _folder(tenant_id: str, conversation_id: str) -> str:
    # A tenant's id may have any character; quoted and without dots it is one path segment.
    tenant = quote(tenant_id, safe="").replace(".", "%2E")
    return f"{tenant}/{conversation_id}"


def _ids(key: str) -> tuple[str, str] | None:
    """Return the conversation and content ids of a key, None for another key."""
    try:
        _, conversation_id, content_id = key.split("/")
        return str(UUID(conversation_id)), str(UUID(content_id))
    except ValueError:
        return None
