"""Archives as objects: what is written is read, or is named damaged. [operation.archive]"""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from app.adapters.blobs import archives
from app.adapters.blobs.archives import ArchiveObjects
from app.adapters.blobs.object_store import ObjectStore
from app.domain.common.errors import InsufficientStorage, ServiceUnavailable
from app.domain.conversations.archive import DamagedArchive

CID = "0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b"
CONTENT = "0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5c"
TENANT = "a tenant/with.dots"


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """Each kind of object store in turn."""
    return ObjectStore("memory:///" if request.param == "memory" else f"file://{tmp_path}/made")


async def put(objects: ArchiveObjects, *pieces: bytes) -> str:
    """Store a text, and return the key of its object."""
    async with objects.new_file() as file:
        for piece in pieces:
            await file.write(piece)
        size = await file.finish()
        assert size > 0
        return await objects.add(TENANT, CID, CONTENT, file)


async def text_of(objects: ArchiveObjects, key: str) -> bytes:
    """Return the text of an object."""
    async with objects.opened(key) as file:
        return b"".join([text async for text in file.texts()])


@pytest.mark.parametrize("size", [0, 1, 3 * archives.PIECE_BYTES + 7, archives.IN_MEMORY_BYTES * 3])
async def test_a_text_is_read_back(store: ObjectStore, size: int) -> None:
    """Texts of any size, twice from one object, and none once it is removed."""
    objects, text = ArchiveObjects(store), os.urandom(size)
    key = await put(objects, text[: size // 3], text[size // 3 :])
    assert await text_of(objects, key) == await text_of(objects, key) == text
    await objects.remove([key])
    await objects.remove([key])
    with pytest.raises(ServiceUnavailable):
        await text_of(objects, key)


@given(pieces=st.lists(st.binary(max_size=5_000), max_size=9))
def test_pieces_of_any_size_are_one_text(pieces: list[bytes]) -> None:
    """How a text is cut when it is written does not show."""

    async def there_and_back() -> bytes:
        objects = ArchiveObjects(ObjectStore("memory:///"))
        return await text_of(objects, await put(objects, *pieces))

    assert asyncio.run(there_and_back()) == b"".join(pieces)


async def test_texts_come_in_small_pieces(store: ObjectStore) -> None:
    """Memory holds a piece of a text, however well it compresses."""
    objects = ArchiveObjects(store)
    key = await put(objects, *([b"the same line\n" * 10_000] * 100))
    async with objects.opened(key) as file:
        sizes = [len(text) async for text in file.texts()]
    assert max(sizes) <= archives.PIECE_BYTES
    assert sum(sizes) == 14_000_000


async def test_an_object_is_a_zst_file(tmp_path: Path) -> None:
    """Operators can read an archive without the service; its folder is that of the blobs."""
    key = await put(ArchiveObjects(ObjectStore(f"file://{tmp_path}/made")), b"a line\n")
    assert key.endswith(f"/{CID}/{CONTENT}")
    (file,) = (item for item in (tmp_path / "made").rglob("*") if item.is_file())
    assert zstandard.ZstdDecompressor().stream_reader(file.read_bytes()).read() == b"a line\n"


@pytest.mark.parametrize("damage", ["flipped", "random"])
async def test_a_damaged_object_is_named(tmp_path: Path, damage: str) -> None:
    """Bytes that zstd does not accept raise DamagedArchive."""
    objects = ArchiveObjects(ObjectStore(f"file://{tmp_path}/made"))
    key = await put(objects, os.urandom(9_000))
    (file,) = (item for item in (tmp_path / "made").rglob("*") if item.is_file())
    whole = bytearray(file.read_bytes())
    whole[4_000] ^= 1
    file.write_bytes(whole if damage == "flipped" else os.urandom(900))
    with pytest.raises(DamagedArchive):
        await text_of(objects, key)


async def test_a_folder_is_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file and the folders above it are on the disk before its rows are deleted."""
    flushed: list[str] = []
    flush = os.fsync

    def noting(descriptor: int) -> None:
        flushed.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    await put(ArchiveObjects(ObjectStore(f"file://{tmp_path}/made")), b"a line\n")
    file, *folders = map(Path, flushed)
    assert file.name == CONTENT
    assert folders == list(file.parents[:3])


async def test_a_full_disk_is_named() -> None:
    """A temporary file that cannot be written is a full disk, not an error of the service."""

    def full() -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with ArchiveObjects(ObjectStore("memory:///")).new_file() as file:
        with pytest.raises(InsufficientStorage):
            await file.in_thread(full)


async def test_without_a_store_nothing_is_read() -> None:
    """A process without an object store says so."""
    with pytest.raises(ServiceUnavailable) as raised:
        await text_of(ArchiveObjects(None), "a/b/c")
    assert raised.value.facts == {"reason": "NoObjectStore"}
