"""Where the bytes of blobs lie: in rows, in memory and in a folder, behind one interface.

[tool-output.byte-exact]
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from uuid_utils import uuid7

from app.adapters.blobs import object_store
from app.adapters.blobs.chunks import RowStore
from app.adapters.blobs.object_store import ObjectStore
from app.domain.common.errors import ServiceUnavailable
from app.domain.tool_output.blobs import CHUNK_BYTES, Chunk, Chunker, StoredChunk
from app.services.ports import BlobStore

TENANT = "default"
CID = "0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b"

CONTENTS = {
    "nothing": b"",
    "one byte": b"x",
    "NUL": b"\x00" * 1000,
    "invalid UTF-8": b"\xff\xfe\x80 lone \xed\xa0\x80 surrogate\r\n\xc3",
    "a chunk": b"a" * CHUNK_BYTES,
    "a chunk and a byte": b"a\n" * (CHUNK_BYTES // 2) + b"b",
    "no compression": os.urandom(9 * CHUNK_BYTES + 7),
    "one line": b"line" * 200_000,
}


def new_id() -> str:
    """Return a fresh id."""
    return str(uuid7())


def chunks_of(data: bytes) -> list[Chunk]:
    """Return the chunks of some bytes."""
    chunker = Chunker()
    return [*chunker.feed(data), *chunker.finish()]


@pytest.fixture(params=["rows", "memory", "folder"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    """Each kind of store in turn."""
    made: dict[str, BlobStore] = {
        "rows": RowStore(),
        "memory": ObjectStore("memory:///"),
        "folder": ObjectStore(f"file://{tmp_path}/not there yet"),
    }
    return made[request.param]


async def put(
    store: BlobStore, data: bytes, content_id: str, *, tenant: str = TENANT, at_once: int = 3
) -> tuple[str | None, list[StoredChunk]]:
    """Store some bytes, and return the object's key and what the rows hold."""
    chunks, stored = chunks_of(data), []
    async with store.writer(tenant, CID, content_id) as writer:
        for first in range(0, len(chunks), at_once):
            stored += await writer.write(chunks[first : first + at_once])
        return await writer.finish(), stored


async def keys(store: BlobStore) -> list[str]:
    """Return the keys of all objects."""
    later = datetime.now(UTC) + timedelta(hours=1)
    return sorted([key async for key, _, _ in store.orphans(later)])


async def test_objects_of_a_deleted_conversation_are_deleted(
    kept: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All objects of a conversation go, page by page, and no other's with them."""
    monkeypatch.setattr(object_store, "_LIST_PAGE", 3)
    for _ in range(8):
        await put(kept, b"some output", new_id())
    neighbour, _ = await put(kept, b"some output", new_id(), tenant=TENANT + "s")
    await kept.delete_conversation(TENANT, CID)
    assert await keys(kept) == ([neighbour] if neighbour is not None else [])
    await kept.delete_conversation(TENANT, CID)


@pytest.mark.parametrize("data", CONTENTS.values(), ids=CONTENTS.keys())
async def test_stored_objects_are_read_back(kept: BlobStore, data: bytes) -> None:
    """Bytes of every kind and size come back identical, whatever holds them."""
    key, stored = await put(kept, data, new_id())
    assert b"".join(await kept.read(key, stored)) == data
    expected = [(c.number, c.start, c.newlines, len(c.data)) for c in chunks_of(data)]
    assert [(c.number, c.start, c.newlines, c.size) for c in stored] == expected


async def test_a_slice_reads_its_chunks_only(kept: BlobStore) -> None:
    """Any run of neighbouring chunks is read by itself. [tool-output.slice-cost]"""
    data = CONTENTS["no compression"]
    key, stored = await put(kept, data, new_id())
    for first in range(len(stored)):
        for end in range(first, len(stored) + 1):
            got = b"".join(await kept.read(key, stored[first:end]))
            assert got == data[first * CHUNK_BYTES : end * CHUNK_BYTES]


@given(pieces=st.lists(st.binary(max_size=3 * CHUNK_BYTES), max_size=5), at_once=st.integers(1, 4))
def test_bytes_in_pieces_come_back(pieces: list[bytes], at_once: int) -> None:
    """However content comes in, an object gives it back byte for byte."""
    data = b"".join(pieces)

    async def there_and_back() -> bytes:
        store = ObjectStore("memory:///")
        key, stored = await put(store, data, new_id(), at_once=at_once)
        return b"".join(await store.read(key, stored))

    assert asyncio.run(there_and_back()) == data


async def test_an_object_is_named_after_its_content(kept: BlobStore) -> None:
    """An object's key leads to its conversation and content; rows need none."""
    content_id = new_id()
    key, _ = await put(kept, b"some text", content_id)
    if isinstance(kept, RowStore):
        assert key is None
        assert await keys(kept) == []
    else:
        assert key == f"{TENANT}/{CID}/{content_id}"
        later = datetime.now(UTC) + timedelta(hours=1)
        assert [found async for found in kept.orphans(later)] == [(key, CID, content_id)]
        assert [found async for found in kept.orphans(later - timedelta(hours=2))] == []


async def test_an_empty_content_has_no_object(kept: BlobStore) -> None:
    """A blob of 0 bytes has no chunk, and no object. [tool-output.object-layout]"""
    assert await put(kept, b"", new_id()) == (None, [])
    assert await kept.read(None, []) == []
    assert await keys(kept) == []


@pytest.mark.parametrize("size", [10, 3 * object_store.PART_BYTES])
async def test_an_unfinished_object_is_not_stored(
    kept: BlobStore, size: int, tmp_path: Path
) -> None:
    """A writer that is left early, with or without an error, leaves nothing, in parts or whole.

    So a crash between the object and its rows never makes an object look complete.
    """
    chunks = chunks_of(os.urandom(size))
    async with kept.writer(TENANT, CID, new_id()) as writer:
        await writer.write(chunks)
    with pytest.raises(ZeroDivisionError):
        async with kept.writer(TENANT, CID, new_id()) as writer:
            await writer.write(chunks)
            raise ZeroDivisionError
    async with kept.writer(TENANT, CID, new_id()):
        pass
    assert await keys(kept) == []
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


async def test_a_cancelled_upload_does_not_stay(tmp_path: Path) -> None:
    """A client that goes away in the middle leaves no parts behind. [tool-output.object-layout]"""
    store, begun = ObjectStore(f"file://{tmp_path}"), asyncio.Event()

    async def upload() -> None:
        async with store.writer(TENANT, CID, new_id()) as writer:
            await writer.write(chunks_of(os.urandom(2 * object_store.PART_BYTES)))
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(upload())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


async def test_removing_missing_objects_is_no_error(kept: BlobStore) -> None:
    """Of the objects named those that are there go, and no others. [tool-output.orphans]"""
    made = [(await put(kept, b"text", new_id()))[0] for _ in range(4)]
    there = [key for key in made if key is not None]
    unknown = [f"{TENANT}/{CID}/{new_id()}" for _ in range(30)]
    await kept.remove([*unknown, *there[1:], *unknown])
    assert await keys(kept) == there[:1]
    await kept.remove([])
    await kept.remove(there)
    assert await keys(kept) == []


@pytest.mark.parametrize("tenant", ["..", ".", "a/b", "a b", "ü%2F", "#?*", "a\x00b"])
async def test_any_tenants_name_makes_a_key(kept: BlobStore, tenant: str) -> None:
    """A tenant's objects lie below its name, and never elsewhere. [tenancy.every-table]"""
    content_id = new_id()
    key, stored = await put(kept, b"text", content_id, tenant=tenant)
    assert await kept.read(key, stored) == [b"text"]
    if key is not None:
        assert key.count("/") == 2
        assert await keys(kept) == [key]


async def test_foreign_objects_are_left_alone(tmp_path: Path) -> None:
    """What others keep in the same place is no orphan. [tool-output.orphans]"""
    store = ObjectStore(f"file://{tmp_path}")
    key, _ = await put(store, b"text", new_id())
    (tmp_path / "README").write_text("not ours")
    (tmp_path / TENANT / CID / "notes").write_text("not ours")
    (tmp_path / TENANT / CID / "more").mkdir()
    (tmp_path / TENANT / CID / "more" / new_id()).write_text("not ours")
    assert await keys(store) == [key]


async def test_many_orphans_come_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing of any length is read page by page. [tool-output.orphans]"""
    monkeypatch.setattr(object_store, "_LIST_PAGE", 3)
    store = ObjectStore(f"file://{tmp_path}")
    made = [(await put(store, b"text", new_id()))[0] for _ in range(10)]
    assert await keys(store) == sorted(key for key in made if key)


async def test_rows_are_readable_with_every_store(tmp_path: Path) -> None:
    """With an object store set up later, what rows hold is still there; not the other way."""
    rows, folder = RowStore(), ObjectStore(f"file://{tmp_path}")
    _, in_rows = await put(rows, b"in rows", new_id())
    assert await folder.read(None, in_rows) == [b"in rows"]
    assert await folder.read("default/elsewhere", in_rows) == [b"in rows"]
    key, in_folder = await put(folder, b"in a folder", new_id())
    with pytest.raises(ServiceUnavailable, match="no object store is configured"):
        await rows.read(key, in_folder)


async def failures(store: BlobStore, stored: Sequence[StoredChunk]) -> list[ServiceUnavailable]:
    """Return what each of a store's calls raises; all of them have to fail."""
    found = []
    with pytest.raises(ServiceUnavailable) as caught:
        await put(store, b"text", new_id())
    found.append(caught.value)
    with pytest.raises(ServiceUnavailable) as caught:
        await store.read(f"{TENANT}/{CID}/{new_id()}", stored)
    found.append(caught.value)
    with pytest.raises(ServiceUnavailable) as caught:
        await keys(store)
    found.append(caught.value)
    return found


async def test_a_store_that_fails(tmp_path: Path) -> None:
    """Where the store cannot be reached, every call is SERVICE_UNAVAILABLE with a reason."""
    stored = [StoredChunk(0, 0, 0, 4, object_start=0, object_size=20)]
    (tmp_path / "file").write_text("a file, not a folder")
    store = ObjectStore(f"file://{tmp_path}/file/below")
    found = await failures(store, stored)
    with pytest.raises(ServiceUnavailable) as caught:
        await store.remove([f"{TENANT}/{CID}/{new_id()}"])
    for error in [*found, caught.value]:
        assert error.facts["reason"] == "OSError"
        assert error.__cause__ is not None


async def test_a_store_that_fails_in_the_middle(tmp_path: Path) -> None:
    """A store that goes away during an upload fails it, and the writer still ends."""
    folder = tmp_path / "folder"
    store = ObjectStore(f"file://{folder}")
    key, stored = await put(store, b"text", new_id())
    with pytest.raises(ServiceUnavailable):
        async with store.writer(TENANT, CID, new_id()) as writer:
            await writer.write(chunks_of(b"more text"))
            folder.rename(tmp_path / "elsewhere")
            folder.write_text("a file, not a folder")
            await writer.finish()
    with pytest.raises(ServiceUnavailable):
        await store.read(key, stored)


async def test_a_store_that_hangs(tmp_path: Path) -> None:
    """A store that does not answer in time is one that fails. [tool-output.store-failure]"""
    store = ObjectStore(f"file://{tmp_path}", timeout_seconds=0)
    with pytest.raises(ServiceUnavailable) as caught:
        await put(store, b"text", new_id())
    assert caught.value.facts["reason"] == "TimeoutError"


async def test_an_object_that_is_damaged(tmp_path: Path) -> None:
    """Bytes that are not what was written are never returned, not even in part."""
    store = ObjectStore(f"file://{tmp_path}")
    key, stored = await put(store, os.urandom(CHUNK_BYTES * 2), new_id())
    assert key is not None
    path, whole = tmp_path / key, (tmp_path / key).read_bytes()
    for damaged in (whole[:-1], whole[:1000], whole[:-9] + b"!" + whole[-8:], b"\0" * len(whole)):
        path.write_bytes(damaged)
        with pytest.raises(ServiceUnavailable):
            await store.read(key, stored)
    path.unlink()
    with pytest.raises(ServiceUnavailable) as caught:
        await store.read(key, stored)
    assert caught.value.facts["reason"] == "FileNotFoundError"


async def test_a_chunk_larger_than_its_row_is_refused() -> None:
    """A frame that claims to be huge is refused before room is made for it."""
    bomb = zstandard.ZstdCompressor().compress(b"\0" * 50_000_000)
    for data in (bomb, b"", b"not compressed at all"):
        chunk = StoredChunk(0, 0, 0, CHUNK_BYTES, data=data)
        with pytest.raises(ServiceUnavailable):
            await RowStore().read(None, [chunk])
    _, (honest,) = await put(RowStore(), b"text", new_id())
    with pytest.raises(ServiceUnavailable):
        await RowStore().read(None, [replace(honest, size=3)])


@pytest.mark.parametrize("url", ["", "folder", "/folder", "http://host/x", "ftp://host", "s3:b"])
def test_urls_of_no_store(url: str) -> None:
    """A URL that names no object store is refused where it is given."""
    with pytest.raises(ValueError, match="begins with"):
        ObjectStore(url)


async def test_a_store_that_is_not_set_up() -> None:
    """A store whose environment lacks what it needs fails as one that is away."""
    with pytest.raises(ServiceUnavailable):
        await put(ObjectStore("az://container/path"), b"text", new_id())


UPLOADING = """
import asyncio, sys
from app.adapters.blobs.object_store import PART_BYTES, ObjectStore

async def upload():
    async with ObjectStore(sys.argv[1]).writer(*sys.argv[2:5]) as writer:
        await writer.send(bytes(3 * PART_BYTES))
        print("under way", flush=True)
        await asyncio.Event().wait()

asyncio.run(upload())
"""


async def test_parts_of_a_killed_upload_are_dropped(tmp_path: Path) -> None:
    """What kill -9 leaves of an upload to a folder goes once it is old, and nothing else does."""
    url = f"file://{tmp_path}/kept here"
    store, content_id = ObjectStore(url), new_id()
    async with store.writer(TENANT, CID, new_id()) as writer:
        await writer.write(chunks_of(b"finished"))
        await writer.finish()
    command = (sys.executable, "-c", UPLOADING, url, TENANT, CID, content_id)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as uploading:
        assert uploading.stdout is not None
        assert uploading.stdout.readline() == "under way\n"
        uploading.kill()
    foreign = tmp_path / "kept here" / "notes#1"
    foreign.write_text("mine")
    parts = [file for file in tmp_path.rglob(f"{content_id}*") if file.is_file()]
    assert parts
    now = datetime.now(UTC)
    assert await store.drop_parts(now - timedelta(hours=1)) == 0
    assert all(part.exists() for part in parts)
    assert await store.drop_parts(now + timedelta(seconds=5)) == len(parts)
    left = sorted(file.name for file in tmp_path.rglob("*") if file.is_file())
    assert len(left) == 2
    assert "notes#1" in left


@pytest.mark.parametrize("url", ["memory:///", None])
async def test_other_stores_have_no_parts_to_drop(url: str | None) -> None:
    """A store whose parts cannot be listed, and rows, drop nothing and do not fail."""
    store: BlobStore = ObjectStore(url) if url else RowStore()
    assert await store.drop_parts(datetime.now(UTC)) == 0
