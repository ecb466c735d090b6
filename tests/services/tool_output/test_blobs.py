"""Blobs over a real database: uploaded, read, shared, collected, whoever comes between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from random import Random
from typing import Any

import asyncpg
import pytest

from app.blobs.byte_store import BlobStore, ObjectStore
from app.blobs.chunks import CHUNK_BYTES, Chunker, decode_lossy
from app.common.errors import Gone, ServiceUnavailable
from app.conversations.messages.stored_results import Content
from app.repositories import Database
from tests.services.fakes import TENANT, new_id
from tests.services.tool_output.builders import HOUR, LARGE, Process, left, refused, summarising

DROP = {"collection": {"drop_compacted": True}}


@pytest.fixture
def rows(database: Database) -> Process:
    """One process's services with a model that summarises, whose bytes are in rows."""
    return summarising(database, BlobStore())


async def assert_whole(process: Process, cid: str) -> None:
    """Check that every message with a blob that is not collected can be read whole."""
    for shown in await process.transcript(cid, Content.FULL):
        ref = shown.message.output_ref
        if ref is not None and not shown.is_collected:
            assert not shown.is_truncated
            assert len(await process.read(cid, ref.id)) == ref.byte_size


# --- uploading --------------------------------------------------------------------------------


# --- reading ----------------------------------------------------------------------------------


def numbered(text: bytes, offset: int, limit: int, most: int) -> list[str]:
    """Return numbered lines, computed line by line."""
    lines = text.split(b"\n")
    lines = lines[:-1] if not lines[-1] else lines
    shown = []
    for number, line in enumerate(lines[offset : offset + limit], offset + 1):
        found = decode_lossy(line.removesuffix(b"\r"))
        shown.append(f"{number:6}\t{found[:most]}")
    return shown


async def test_a_slice_costs_what_it_returns(rows: Process) -> None:
    """A slice of 50 MB reads a few chunks in a few statements."""
    cid = await rows.harness.conversation()
    one_line = await rows.upload(cid, *([b"x" * CHUNK_BYTES] * 800), b"end")
    lines = await rows.upload(cid, *([b"a line of text\n" * 4000] * 800))

    async def cost(work: Awaitable[Any]) -> tuple[Any, int, int]:
        rows.store.opened.clear()
        rows.database.sessions = 0
        found = await work
        return found, len(rows.store.opened), rows.database.sessions

    read_lines, read_bytes = rows.blobs.read_lines, rows.blobs.read_bytes
    ref = one_line.id
    found, chunks, sessions = await cost(read_lines(TENANT, cid, ref, 0, 2000))
    assert found.text.startswith("     1\txxx") and found.next_offset is None
    assert chunks <= 4 and sessions <= 8
    for offset in (1, 2**40):
        _, chunks, _ = await cost(read_lines(TENANT, cid, ref, offset, 2000))
        assert chunks == 0
    found, chunks, sessions = await cost(read_bytes(TENANT, cid, ref, 40_000_000, 4096))
    assert (len(found.text), found.offset) == (4096, 40_000_000)
    assert chunks <= 2 and sessions <= 4
    for offset in (0, 1_600_000, 3_199_950):
        found, chunks, sessions = await cost(read_lines(TENANT, cid, lines.id, offset, 100))
        assert found.offset == offset and len(found.text.splitlines()) in (50, 100)
        assert chunks <= 2 and sessions <= 5
    found, chunks, _ = await cost(rows.read(cid, ref, 52_428_700, 52_428_803))
    assert found == b"x" * 100 + b"end" and chunks == 2


# --- collecting -------------------------------------------------------------------------------


async def test_unattached_uploads_are_collected(
    rows: Process, connection: asyncpg.Connection
) -> None:
    """Uploads without a message are collected and returned; a dry run collects none."""
    cid = await rows.harness.conversation()
    loose = [(await rows.upload(cid, b"%d" % n * 5000)).id for n in range(3)]
    ref = await rows.stored(cid, None, output_ref={"id": loose[1]})
    expected = [loose[0], loose[2]]
    before = await left(connection)
    assert await rows.collect(cid, dry_run=True) == expected
    assert (await left(connection), await rows.harness.events_of(cid)) == (before, [])
    assert await rows.collect(cid, uploaded_before=rows.now - HOUR) == []
    assert await rows.collect(cid) == expected
    assert await rows.harness.events_of(cid) == [
        ("collected", {"blob_count": 2, "byte_size": 10_000})
    ]
    assert await rows.collect(cid) == []
    assert len(await rows.harness.events_of(cid)) == 1
    for gone in expected:
        for work in (
            rows.blobs.read_lines(TENANT, cid, gone, 0, 1),
            rows.blobs.read_bytes(TENANT, cid, gone, 0, 1),
            rows.blobs.grep(TENANT, cid, gone, "x"),
            rows.blobs.find(TENANT, cid, gone),
        ):
            assert isinstance(await refused(work), Gone)
    assert await rows.read(cid, ref.id) == b"1" * 5000
    page = await rows.blobs.page(TENANT, cid, 10, None)
    assert [blob.id for blob in page] == [loose[1]]
    assert len(await rows.store.keys()) == isinstance(rows.store.kept, ObjectStore)


async def test_a_scheduled_collection_visits_due_conversations(
    process: Process, connection: asyncpg.Connection
) -> None:
    """The worker's collection finds old and unfinished uploads and compacted blobs."""
    cid, refs = await process.compacted(DROP)
    loose = await process.harness.conversation()
    ref = (await process.upload(loose, b"x" * 5000)).id
    async with process.database.session() as session:
        assert await session.blobs.begin_upload(TENANT, loose, new_id())
    assert await process.collection.collect_all() == 2
    for gone in refs[:2]:
        assert isinstance(await refused(process.read(cid, gone)), Gone)
    assert await process.read(loose, ref) == b"x" * 5000
    assert (await left(connection))[2] == 1
    process.now += 2 * HOUR
    assert await process.collection.collect_all() == 1
    assert (await left(connection))[2] == 0
    assert isinstance(await refused(process.read(loose, ref)), Gone)
    assert await process.collection.collect_all() == 0
    await assert_whole(process, cid)


async def test_objects_without_a_row_are_swept(database: Database) -> None:
    """Objects of unfinished appends and deleted conversations are deleted, others stay."""
    process = Process(database, ObjectStore("memory:///"))
    cid, deleted, while_away = [await process.harness.conversation() for _ in range(3)]
    for conversation_id in (deleted, while_away):
        await process.stored(conversation_id, LARGE)
    kept = await process.stored(cid, LARGE)
    chunker = Chunker()  # of an append that its process did not end
    async with process.store.writer(TENANT, cid, new_id()) as writer:
        await writer.write([*chunker.feed(b"other\n" * 2000), *chunker.finish()])
        await writer.finish()
    removed = await process.harness.conversations.remove(TENANT, deleted)
    assert (removed["blobs"], removed["blob_chunks"], removed["blob_uploads"]) == (1, 1, 0)
    process.store.is_away = True
    await process.harness.conversations.remove(TENANT, while_away)
    process.store.is_away = False
    assert len(await process.store.keys()) == 3
    await process.collection.collect_all()
    assert len(await process.store.keys()) == 3  # they may belong to an append under way
    process.now += 2 * HOUR
    await process.collection.collect_all()
    assert len(await process.store.keys()) == 1
    assert await process.read(cid, kept.id) == LARGE.encode()


# --- at the same time -------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["attach", "store", "upload"])
async def test_concurrent_collections_and_appends_lose_no_blob(
    process: Process, connection: asyncpg.Connection, way: str
) -> None:
    """However collections and appends of the same bytes interleave, no message lacks its blob.

    An upload that is collected before a message names it is refused then, with nothing stored.

    [tool-output.collect]
    """
    chance = Random(way)
    cid = await process.harness.conversation()
    ref = ""

    async def come() -> Any:
        for _ in range(chance.randint(0, 6)):
            await asyncio.sleep(0)
        if way == "attach":
            return await process.stored(cid, None, output_ref={"id": ref})
        if way == "upload":
            return await process.upload(cid, data)
        return await process.stored(cid, data.decode())

    async def collection() -> Any:
        for _ in range(chance.randint(0, 6)):
            await asyncio.sleep(0)
        return await process.collect(cid)

    outcomes = set()
    for number in range(10):
        data = b"%d line\n" % number * 1000
        ref = (await process.upload(cid, data)).id
        works = [come(), collection(), come(), collection()]
        chance.shuffle(works)
        found = await asyncio.gather(*map(refused, works))
        outcomes |= {type(item) for item in found}
        assert not any(isinstance(item, ServiceUnavailable) for item in found), found
        await assert_whole(process, cid)
    shown = [item.message for item in await process.transcript(cid)]
    assert len(shown) == 2 * sum(item.role == "tool" for item in shown)
    if way == "store":
        assert outcomes == {list, type(shown[-1].output_ref)}
    kept = await connection.fetchval(
        "SELECT count(*) FROM blob_chunks c WHERE NOT EXISTS (SELECT FROM blobs b"
        " WHERE b.conversation_id = c.conversation_id AND b.content_id = c.content_id"
        " AND b.collected_at IS NULL)"
    )
    assert (kept, (await left(connection))[2]) == (0, 0)
    if isinstance(process.store.kept, ObjectStore):
        process.now += 2 * HOUR
        await process.collection.collect_all()
        held = await connection.fetch("SELECT object_key FROM blobs WHERE collected_at IS NULL")
        assert sorted(row[0] for row in held) == sorted(await process.store.keys())


# --- when something fails ---------------------------------------------------------------------


async def test_blobs_are_unavailable_while_the_store_is(
    database: Database, connection: asyncpg.Connection
) -> None:
    """Blobs in an unavailable store are 503; rows and inline results are read."""
    process = Process(database, ObjectStore("memory:///"))
    cid = await process.harness.conversation()
    earlier = await process.stored(cid, LARGE)
    loose = (await process.upload(cid, b"loose" * 2000)).id
    small = await process.stored(cid, "small")
    before = await left(connection)
    process.store.is_away = True
    for work in (
        process.blobs.read_lines(TENANT, cid, earlier.id, 0, 1),
        process.blobs.read_bytes(TENANT, cid, earlier.id, 0, 1),
        process.blobs.grep(TENANT, cid, earlier.id, "x"),
        process.read(cid, earlier.id),
        process.upload(cid, b"y" * 5000),
        process.stored(cid, None, output_ref={"id": loose}),
        process.read(cid, loose),
    ):
        assert isinstance(await refused(work), ServiceUnavailable)
    assert await left(connection) == before
    assert await process.read(cid, small.id) == b"small"
    assert (await process.blobs.find(TENANT, cid, earlier.id)).blob.ref == earlier
    # What cannot be deleted now is an orphan, and goes later.
    assert await process.collect(cid) == [loose]
    process.store.is_away = False
    assert len(await process.store.keys()) == 2
    process.now += 2 * HOUR
    await process.collection.collect_all()
    assert len(await process.store.keys()) == 1
    await assert_whole(process, cid)
