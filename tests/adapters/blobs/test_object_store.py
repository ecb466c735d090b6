"""Where the bytes of blobs lie: in rows, in memory and in a folder, behind one interface.

[tool-output.byte-exact]
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from uuid_utils import uuid7

from app.blobs import byte_store as object_store
from app.blobs.byte_store import BlobStore, ObjectStore
from app.blobs.chunks import CHUNK_BYTES, Chunk, Chunker
from app.common.errors import ServiceUnavailable

TENANT = "default"
CID = "0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b"


def new_id() -> str:
    """Return a fresh id."""
    return str(uuid7())


def chunks_of(data: bytes) -> list[Chunk]:
    """Return the chunks of these bytes."""
    chunker = Chunker()
    return [*chunker.feed(data), *chunker.finish()]


@pytest.fixture(params=["rows", "memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    """Each kind of store in turn."""
    made: dict[str, BlobStore] = {
        "rows": BlobStore(),
        "memory": ObjectStore("memory:///"),
        "folder": ObjectStore(f"file://{tmp_path}/not there yet"),
    }
    return made[request.param]


async def put(
    store: BlobStore, data: bytes, content_id: str, *, tenant: str = TENANT, at_once: int = 3
) -> tuple[str | None, list[Chunk]]:
    """Store bytes, and return the key of the object and the chunks of the rows."""
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
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All objects of a conversation are deleted, page by page, and no other's."""
    monkeypatch.setattr(object_store, "_LIST_PAGE", 3)
    for _ in range(8):
        await put(store, b"some output", new_id())
    neighbour, _ = await put(store, b"some output", new_id(), tenant=TENANT + "s")
    await store.delete_conversation(TENANT, CID)
    assert await keys(store) == ([neighbour] if neighbour is not None else [])
    await store.delete_conversation(TENANT, CID)


@pytest.mark.parametrize("size", [10, 3 * object_store.PART_BYTES])
async def test_an_unfinished_object_is_not_stored(
    store: BlobStore, size: int, tmp_path: Path
) -> None:
    """A writer that is left early, with or without an error, leaves nothing, in parts or whole.

    So a crash between the object and its rows never makes an object look complete.
    [tool-output.object-layout]
    """
    chunks = chunks_of(os.urandom(size))
    async with store.writer(TENANT, CID, new_id()) as writer:
        await writer.write(chunks)
    with pytest.raises(ZeroDivisionError):
        async with store.writer(TENANT, CID, new_id()) as writer:
            await writer.write(chunks)
            raise ZeroDivisionError
    async with store.writer(TENANT, CID, new_id()):
        pass
    assert await keys(store) == []
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


async def test_orphans_are_listed_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing of any length is read page by page. [tool-output.orphans]"""
    monkeypatch.setattr(object_store, "_LIST_PAGE", 3)
    store = ObjectStore(f"file://{tmp_path}")
    made = [(await put(store, b"text", new_id()))[0] for _ in range(10)]
    assert await keys(store) == sorted(key for key in made if key)


async def failures(store: BlobStore, stored: Sequence[Chunk]) -> list[ServiceUnavailable]:
    """Return the errors of all calls of a store; each of them must fail."""
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


async def test_calls_fail_while_the_store_is_unreachable(tmp_path: Path) -> None:
    """Every call raises SERVICE_UNAVAILABLE with a reason."""
    stored = [Chunk(0, 0, 0, 4, None, 0, 20)]
    (tmp_path / "file").write_text("a file, not a folder")
    store = ObjectStore(f"file://{tmp_path}/file/below")
    found = await failures(store, stored)
    with pytest.raises(ServiceUnavailable) as caught:
        await store.remove([f"{TENANT}/{CID}/{new_id()}"])
    for error in [*found, caught.value]:
        assert error.facts["reason"] == "OSError"
        assert error.__cause__ is not None


async def test_damaged_objects_are_not_read(tmp_path: Path) -> None:
    """Damaged bytes are never returned, not even in part."""
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
