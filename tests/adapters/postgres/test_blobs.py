"""Blobs in Postgres: stored once, collected and back again, whoever comes at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

import asyncpg
import pytest
import pytest_asyncio
from uuid_utils import uuid7

from app.adapters.blobs.chunks import RowStore
from app.adapters.postgres.common.connections import Statement, Store
from app.adapters.postgres.database import PostgresDatabase
from app.adapters.postgres.tool_output import statements
from app.adapters.postgres.tool_output.blobs import append_parameters
from app.adapters.postgres.tool_output.statements import BLOB_CTES
from app.domain.common.errors import NotFound
from app.domain.conversations.settings import StoredSettings
from app.domain.tool_output.blobs import CHUNK_BYTES, TEXT, Blob, Chunker, StoredChunk
from app.services.ports import Repositories
from tests.conftest import lock_waiters
from tests.patience import PATIENCE_SECONDS

TENANT = "default"
NOW = datetime.now(UTC)
LATER = NOW + timedelta(hours=1)
EARLIER = NOW - timedelta(hours=1)

Stored = tuple[Blob, list[StoredChunk]]


def new_id() -> str:
    """Return a fresh id."""
    return str(uuid7())


async def blob_of(data: bytes, *, attached: bool = False) -> Stored:
    """Return the blob of these bytes with a new content id, and its chunks."""
    chunker = Chunker()
    chunks = [*chunker.feed(data), *chunker.finish()]
    async with RowStore().writer(TENANT, "any", "any") as writer:
        stored = await writer.write(chunks)
    blob = chunker.blob(TEXT, "shell", "call_1")
    return replace(blob, content_id=new_id(), attached=attached), stored


@pytest_asyncio.fixture
async def cid(database: PostgresDatabase) -> str:
    """The id of a new conversation."""
    return await conversation(database)


async def conversation(database: PostgresDatabase) -> str:
    """Create a conversation and return its id."""
    made = new_id()
    async with database.session() as session:
        assert await session.conversations.add(
            TENANT, made, None, "bytes_4", StoredSettings(), "{}"
        )
    return made


@pytest_asyncio.fixture
async def connection(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A plain connection to this test's database."""
    opened = await asyncpg.connect(database_url)
    yield opened
    await opened.close()


async def read(database: PostgresDatabase, conversation_id: str, ref: str) -> bytes:
    """Return a blob's bytes."""
    async with database.session() as session:
        blob = await session.blobs.find(conversation_id, ref)
        assert blob is not None and blob.collected_at is None
        chunks = await session.blobs.chunks(conversation_id, blob.content_id, 0, 1000)
    return b"".join(await RowStore().read(None, chunks))


async def put(
    database: PostgresDatabase, conversation_id: str, data: bytes, *, attached: bool = False
) -> Blob:
    """Store some bytes, and return the blob that was passed to the repository."""
    blob, chunks = await blob_of(data, attached=attached)
    async with database.session() as session:
        await upload(session, conversation_id, blob, chunks)
    return blob


async def upload(
    session: Repositories, conversation_id: str, blob: Blob, chunks: Sequence[StoredChunk]
) -> str:
    """Upload a blob, attach it if it is `attached`, and return the content id of its bytes."""
    await session.blobs.begin_upload(TENANT, conversation_id, blob.content_id)
    await session.blobs.add_chunks(conversation_id, blob.content_id, chunks)
    content_id = await session.blobs.end_upload(conversation_id, blob)
    await session.blobs.attach(conversation_id, [blob.id] if blob.attached else [])
    return content_id


async def collect(
    database: PostgresDatabase, conversation_id: str, refs: Sequence[str] | None = None
) -> list[str]:
    """Collect blobs as a collection does, by default all unattached ones; return their ids."""
    async with database.transaction() as session:
        assert await session.log.lock(TENANT, conversation_id, None) is not None
        if refs is None:
            found = await session.blobs.collectable(conversation_id, None, compacted=False)
            refs = [blob.id for blob in found]
        await session.blobs.collect(conversation_id, refs)
    return list(refs)


async def add_message(
    connection: asyncpg.Connection, conversation_id: str, seq: int, refs: list[str] | None
) -> None:
    """Insert a message that refers to blobs, without the checks of an append."""
    await connection.execute(
        """
        INSERT INTO messages (
            conversation_id, seq, message_id, turn, role, format, tokens, reasoning_tokens,
            total_tokens, has_media, continues, body
        ) VALUES ($1, $2, $3, 0, 'tool', 'openai_chat', 0, 0, 0, false, false, '{}')
        """,
        UUID(conversation_id),
        seq,
        f"m{seq}",
    )
    for ref in refs or ():
        await connection.execute(
            "INSERT INTO blob_uses (conversation_id, blob_id, seq) VALUES ($1, $2, $3)",
            UUID(conversation_id),
            ref,
            seq,
        )


async def hide(
    connection: asyncpg.Connection, conversation_id: str, start: int, end: int, kept: list[int]
) -> None:
    """Hide a range of the log as a compaction does."""
    await connection.execute(
        """
        UPDATE heads SET span_start = $2, span_end = $3, kept = $4, compaction_id = $1,
            view_version = view_version + 1
        WHERE conversation_id = $1
        """,
        UUID(conversation_id),
        start,
        end,
        kept,
    )


async def waited_for(database_url: str, how_many: int = 1) -> None:
    """Return once this number of statements in the database wait for a lock."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await lock_waiters(database_url) < how_many:
            pass


async def counts(connection: asyncpg.Connection) -> tuple[int, int, int]:
    """Return the numbers of blobs, chunks and uploads."""
    tables = ("blobs", "blob_chunks", "blob_uploads")
    numbers = [await connection.fetchval(f"SELECT count(*) FROM {name}") for name in tables]
    return numbers[0], numbers[1], numbers[2]


@pytest.mark.parametrize(
    "data", [b"", b"\x00", b"\xff\xed\xa0\x80\r\n", b"line\n" * 50_000, bytes(CHUNK_BYTES)]
)
async def test_a_blob_is_read_back_unchanged(
    database: PostgresDatabase, cid: str, data: bytes
) -> None:
    """All fields of a blob and all its bytes are stored and read back."""
    blob, chunks = await blob_of(data)
    async with database.session() as session:
        assert await upload(session, cid, blob, chunks) == blob.content_id
        found = await session.blobs.find(cid, blob.id)
        assert found is not None and found.created_at is not None
        assert replace(found, created_at=None) == blob
        assert await session.blobs.chunks(cid, blob.content_id, 0, 1000) == chunks
        assert await session.blobs.find(cid, "blob_unknown") is None
        assert await session.blobs.find(new_id(), blob.id) is None
    assert await read(database, cid, blob.id) == data


async def test_positions_in_an_object_are_stored(database: PostgresDatabase, cid: str) -> None:
    """The rows of a blob in an object store have the key and the positions."""
    blob, _ = await blob_of(b"text")
    blob = replace(blob, object_key="default/a/b", attached=True)
    chunks = [StoredChunk(n, n * CHUNK_BYTES, n, 9, None, n * 70, 70) for n in range(3)]
    async with database.session() as session:
        await upload(session, cid, blob, chunks)
        found = await session.blobs.find(cid, blob.id)
        assert found is not None
        assert replace(found, created_at=None) == blob
        assert await session.blobs.chunks(cid, blob.content_id, 1, 2) == chunks[1:]
        assert await session.blobs.chunks(cid, blob.content_id, 2, 50) == chunks[2:]
        assert await session.blobs.chunks(cid, blob.content_id, 3, 1) == []


async def test_names_with_invalid_characters_are_stored(
    database: PostgresDatabase, cid: str
) -> None:
    """NUL and lone surrogates are allowed in a tool's name and in a ref."""
    blob, chunks = await blob_of(b"text")
    strange = "a\x00b\ud800"
    blob = replace(blob, tool_name=strange, tool_call_id=strange, media_type=strange)
    async with database.session() as session:
        await upload(session, cid, blob, chunks)
        found = await session.blobs.find(cid, blob.id)
        assert found is not None
        assert {found.tool_name, found.tool_call_id, found.media_type} == {"a\ufffdb\ufffd"}
        assert await session.blobs.find(cid, strange) is None
        assert await session.blobs.page(cid, 10, strange) == []


async def test_the_same_content_is_stored_once(
    database: PostgresDatabase, cid: str, connection: asyncpg.Connection
) -> None:
    """Equal bytes in a conversation are one blob with the first one's content and chunks."""
    data = b"line\n" * 50_000
    first = await put(database, cid, data)
    second, chunks = await blob_of(data, attached=True)
    async with database.session() as session:
        assert await upload(session, cid, second, chunks) == first.content_id
        assert await upload(session, cid, replace(second, attached=False), chunks)
        found = await session.blobs.find(cid, first.id)
    assert found is not None
    assert replace(found, created_at=None) == replace(first, attached=True)
    assert await counts(connection) == (1, 4, 0)
    other = await conversation(database)
    await put(database, other, data)
    assert await counts(connection) == (2, 8, 0)


async def test_concurrent_uploads_of_the_same_content_keep_one(
    database: PostgresDatabase, cid: str, connection: asyncpg.Connection
) -> None:
    """Of concurrent uploads of the same bytes, the chunks of one stay and all are readable."""
    data = b"line\n" * 50_000
    made = [await blob_of(data) for _ in range(8)]

    async def add(blob: Blob, chunks: list[StoredChunk]) -> str:
        async with database.session() as session:
            return await upload(session, cid, blob, chunks)

    contents = await asyncio.gather(*(add(blob, chunks) for blob, chunks in made))
    assert len(set(contents)) == 1
    assert await counts(connection) == (1, 4, 0)
    assert await read(database, cid, made[0][0].id) == data


async def test_find_all_returns_existing_blobs(database: PostgresDatabase, cid: str) -> None:
    """The existing blobs are returned, also collected ones. [tool-output.collect]"""
    made = [await put(database, cid, b"%d" % n) for n in range(4)]
    await collect(database, cid, [made[1].id])
    async with database.session() as session:
        found = await session.blobs.find_all(
            cid, [made[0].id, "blob_unknown", made[1].id, made[0].id]
        )
        assert await session.blobs.find_all(cid, []) == []
    assert {blob.id: blob.collected_at is not None for blob in found} == {
        made[0].id: False,
        made[1].id: True,
    }


async def test_pages_are_ordered_newest_first(database: PostgresDatabase, cid: str) -> None:
    """Every blob that was not collected is listed once, newest first. [api.lists]"""
    made = [(await put(database, cid, b"%d" % n)).id for n in range(7)]
    await put(database, await conversation(database), b"of another")
    await collect(database, cid, [made[2]])
    seen: list[str] = []
    async with database.session() as session:
        while page := await session.blobs.page(cid, 4, seen[-1] if seen else None):
            seen += [blob.id for blob in page]
        assert await session.blobs.page(cid, 4, "blob_unknown") == []
    assert seen == [ref for ref in reversed(made) if ref != made[2]]


async def test_a_collected_blob_leaves_a_tombstone(
    database: PostgresDatabase, cid: str, connection: asyncpg.Connection
) -> None:
    """A collection deletes the bytes and marks the row; a second one changes nothing."""
    blob = await put(database, cid, b"line\n" * 50_000)
    other = await put(database, cid, b"stays")
    await collect(database, cid, [blob.id])
    assert await counts(connection) == (2, 1, 0)
    async with database.session() as session:
        first = await session.blobs.find(cid, blob.id)
        assert first is not None and first.collected_at is not None
        assert first.ref == blob.ref
        assert not await session.blobs.holds_content(cid, blob.content_id)
        assert await session.blobs.holds_content(cid, other.content_id)
    await collect(database, cid, [blob.id, "blob_unknown"])
    async with database.session() as session:
        assert await session.blobs.find(cid, blob.id) == first
    assert await read(database, cid, other.id) == b"stays"


async def test_a_collected_blob_can_be_stored_again(
    database: PostgresDatabase, cid: str, connection: asyncpg.Connection
) -> None:
    """The same bytes stored again are readable under the new content id."""
    data = b"line\n" * 50_000
    first = await put(database, cid, data, attached=True)
    await collect(database, cid, [first.id])
    again, chunks = await blob_of(data)
    again = replace(again, object_key="default/x/y", tool_name="other")
    async with database.session() as session:
        assert await upload(session, cid, again, chunks) == again.content_id
        found = await session.blobs.find(cid, again.id)
    assert found is not None
    assert replace(found, created_at=None) == replace(again, attached=True)
    assert await read(database, cid, again.id) == data
    assert await counts(connection) == (1, 4, 0)


async def test_storing_waits_for_a_collection(
    database: PostgresDatabase, cid: str, connection: asyncpg.Connection, database_url: str
) -> None:
    """Bytes stored again during a collection keep their chunks."""
    data = b"line\n" * 50_000
    blob = await put(database, cid, data)
    async with database.transaction() as session:
        await session.log.lock(TENANT, cid, None)
        late = asyncio.create_task(put(database, cid, data))
        await waited_for(database_url)
        await session.blobs.collect(cid, [blob.id])
    again = await late
    assert await read(database, cid, blob.id) == data
    async with database.session() as session:
        assert not await session.blobs.holds_content(cid, blob.content_id)
        assert await session.blobs.holds_content(cid, again.content_id)
    assert await counts(connection) == (1, 4, 0)


async def test_a_collection_waits_for_an_upload(
    database: PostgresDatabase, cid: str, connection: asyncpg.Connection, database_url: str
) -> None:
    """A collection sees the blob of a concurrent upload, and leaves no chunk."""
    blob, chunks = await blob_of(b"line\n" * 50_000)
    async with database.transaction() as session:
        await upload(session, cid, blob, chunks)
        late = asyncio.create_task(collect(database, cid))
        await waited_for(database_url)
    assert await late == [blob.id]
    assert await counts(connection) == (1, 0, 0)


async def test_nothing_is_stored_for_a_deleted_conversation(
    database: PostgresDatabase, cid: str, connection: asyncpg.Connection, database_url: str
) -> None:
    """Statements that wait for a deletion find no conversation, and store nothing."""
    content_id = new_id()
    blob = replace((await blob_of(b"an upload"))[0], content_id=content_id)
    _, chunks = await blob_of(b"more")

    async def begin(new_content_id: str) -> bool:
        async with database.session() as session:
            return await session.blobs.begin_upload(TENANT, cid, new_content_id)

    assert await begin(content_id)

    async def add_chunks() -> None:
        async with database.session() as session:
            await session.blobs.add_chunks(cid, content_id, chunks)

    async def end() -> None:
        async with database.session() as session:
            await session.blobs.end_upload(cid, blob)

    async with database.transaction() as session:
        await session.log.lock(TENANT, cid, None)
        await session.conversations.remove(cid)
        works = (begin(new_id()), end(), add_chunks())
        tasks = [asyncio.create_task(work) for work in works]
        await waited_for(database_url, 3)
    begun, ended, added = await asyncio.gather(*tasks, return_exceptions=True)
    assert (begun, type(ended), added) == (False, NotFound, None)
    assert await counts(connection) == (0, 0, 0)
    assert not await begin(new_id())


async def test_deleting_a_conversation_deletes_its_blobs(
    database: PostgresDatabase, cid: str, connection: asyncpg.Connection
) -> None:
    """Blobs, tombstones, chunks and uploads are deleted and counted."""
    other = await conversation(database)
    for conversation_id in (cid, other):
        await put(database, conversation_id, b"line\n" * 50_000)
        gone = await put(database, conversation_id, b"gone")
        await collect(database, conversation_id, [gone.id])
        async with database.session() as session:
            await session.blobs.begin_upload(TENANT, conversation_id, new_id())
    async with database.transaction() as session:
        removed = await session.conversations.remove(cid)
    assert (removed["blobs"], removed["blob_chunks"], removed["blob_uploads"]) == (2, 4, 1)
    assert await counts(connection) == (2, 4, 1)


async def test_an_upload_becomes_a_blob(
    database: PostgresDatabase, cid: str, connection: asyncpg.Connection
) -> None:
    """Chunks are stored before the hash is known; the blob appears at the end."""
    blob, chunks = await blob_of(b"line\n" * 50_000)
    async with database.session() as session:
        assert not await session.blobs.begin_upload("another", cid, blob.content_id)
        assert await session.blobs.begin_upload(TENANT, cid, blob.content_id)
        for first in range(0, len(chunks), 3):
            await session.blobs.add_chunks(cid, blob.content_id, chunks[first : first + 3])
        assert await session.blobs.find(cid, blob.id) is None
        assert await session.blobs.holds_content(cid, blob.content_id)
        assert await session.blobs.end_upload(cid, blob) == blob.content_id
        assert await session.blobs.holds_content(cid, blob.content_id)
    assert await read(database, cid, blob.id) == b"line\n" * 50_000
    assert await counts(connection) == (1, 4, 0)


async def test_an_upload_revives_a_collected_blob(
    database: PostgresDatabase, cid: str, connection: asyncpg.Connection
) -> None:
    """An upload of collected bytes makes them readable again. [tool-output.collected-gone]"""
    data = b"line\n" * 50_000
    blob = await put(database, cid, data)
    await collect(database, cid)
    again, chunks = await blob_of(data)
    async with database.session() as session:
        assert await upload(session, cid, again, chunks) == again.content_id
    assert await read(database, cid, blob.id) == data
    assert await counts(connection) == (1, 4, 0)


async def test_a_dropped_upload_cannot_continue(
    database: PostgresDatabase, cid: str, connection: asyncpg.Connection
) -> None:
    """A dropped upload takes no more chunks and cannot end; an ended one stays."""
    blob, chunks = await blob_of(b"line\n" * 50_000)
    async with database.session() as session:
        await session.blobs.begin_upload(TENANT, cid, blob.content_id)
        await session.blobs.add_chunks(cid, blob.content_id, chunks[:2])
        await session.blobs.drop_upload(cid, blob.content_id)
        assert await counts(connection) == (0, 0, 0)
        await session.blobs.add_chunks(cid, blob.content_id, chunks[2:])
        with pytest.raises(NotFound, match="dropped"):
            await session.blobs.end_upload(cid, blob)
        assert await counts(connection) == (0, 0, 0)
        again, chunks = await blob_of(b"line\n" * 50_000)
        await upload(session, cid, again, chunks)
        await session.blobs.drop_upload(cid, again.content_id)
        await session.blobs.drop_upload(cid, new_id())
    assert await counts(connection) == (1, 4, 0)


async def test_dropping_an_upload_deletes_concurrent_chunks(
    database: PostgresDatabase, cid: str, connection: asyncpg.Connection, database_url: str
) -> None:
    """Chunks that are added while their upload is dropped are deleted."""
    blob, chunks = await blob_of(b"line\n" * 50_000)

    async def drop() -> None:
        async with database.session() as session:
            await session.blobs.drop_upload(cid, blob.content_id)

    async with database.session() as session:
        await session.blobs.begin_upload(TENANT, cid, blob.content_id)
    async with database.transaction() as session:
        await session.blobs.add_chunks(cid, blob.content_id, chunks)
        late = asyncio.create_task(drop())
        await waited_for(database_url)
    await late
    assert await counts(connection) == (0, 0, 0)


async def test_the_chunk_of_a_line_is_found(database: PostgresDatabase, cid: str) -> None:
    """The chunk of a line is the one with the newline before it."""
    text = b"a" * (CHUNK_BYTES + 5) + b"\n" + b"b\n" * CHUNK_BYTES + b"c" * 3 * CHUNK_BYTES
    blob = await put(database, cid, text)
    empty = await put(database, cid, b"")
    async with database.session() as session:
        find = session.blobs.chunk_before_line
        assert await find(cid, blob.content_id, 1) == (1, 0)
        last = await find(cid, blob.content_id, CHUNK_BYTES + 1)
        assert last == (3, CHUNK_BYTES + 1 - 3)
        assert await find(cid, blob.content_id, CHUNK_BYTES + 2) == (6, CHUNK_BYTES + 1)
        assert await find(cid, blob.content_id, 10**15) == (6, CHUNK_BYTES + 1)
        assert await find(cid, empty.content_id, 1) is None
        assert await find(cid, new_id(), 1) is None


def expected_chunk(text: bytes, line: int) -> tuple[int, int] | None:
    """Return the chunk before a line, found newline by newline."""
    if not text:
        return None
    at = -1
    for _ in range(line):
        following = text.find(b"\n", at + 1)
        if following < 0:
            at = len(text) - 1  # past the last newline: the last chunk
            break
        at = following
    number = max(at, 0) // CHUNK_BYTES
    return number, text.count(b"\n", 0, number * CHUNK_BYTES)


def any_text(chance: Random) -> bytes:
    """Return a random text of up to a few chunks, with lines of any length."""
    units = (b"\n", b"x", b"xy\n", b"\r\n", b"a longer line\n")
    pieces = (chance.choice(units) * chance.randint(0, 60_000) for _ in range(chance.randint(0, 4)))
    return b"".join(pieces)


async def test_the_chunk_of_any_line_is_found(database: PostgresDatabase, cid: str) -> None:
    """The index of lines agrees with counting the newlines, for random texts."""
    for seed in range(12):
        chance = Random(seed)
        text = any_text(chance)
        blob = await put(database, cid, text)
        few = [chance.randint(0, blob.line_count + 1) for _ in range(12)]
        async with database.session() as session:
            for line in (1, 2, blob.line_count, blob.line_count + 1, *few):
                found = await session.blobs.chunk_before_line(cid, blob.content_id, line)
                assert found == expected_chunk(text, line), (seed, line)


async def test_reads_use_their_indexes(
    database: PostgresDatabase, cid: str, connection: asyncpg.Connection
) -> None:
    """Chunks are read by number and line, and due blobs by age, through an index each."""
    blob = await put(database, cid, b"line\n" * 50_000)
    await connection.execute("SET enable_seqscan = off")

    async def plan(statement: Statement, **values: Any) -> str:
        values |= {"conversation_id": UUID(cid), "content_id": UUID(blob.content_id)}
        arguments = statement.arguments(values)
        rows = await connection.fetch(f"EXPLAIN {statement.sql}", *arguments)
        return "\n".join(row[0] for row in rows)

    by_line = await plan(statements.CHUNK_BEFORE_LINE, line=20_000)
    assert "Backward using blob_chunks_by_line" in by_line and "Sort" not in by_line
    by_number = await plan(statements.CHUNKS, first=1, count=2)
    assert "using blob_chunks_pkey" in by_number and "Sort" not in by_number
    listed = await plan(statements.PAGE, before=None, limit=50)
    assert "Backward using blobs_by_content" in listed
    due = await plan(statements.LIST_DUE, uploaded_before=NOW, limit=10)
    for index in ("blobs_unattached", "blob_uploads_by_time", "heads_unswept"):
        assert index in due
    hidden = await plan(statements.COLLECTABLE, compacted=True, uploaded_before=NOW)
    assert "using blob_uses_pkey" in hidden
    assert "blobs_by_content" in await plan(statements.HOLDS_CONTENT)


async def test_chunks_are_not_compressed_again(connection: asyncpg.Connection) -> None:
    """PostgreSQL does not compress the compressed chunks again."""
    storage = await connection.fetchval(
        "SELECT attstorage FROM pg_attribute"
        " WHERE attrelid = 'blob_chunks'::regclass AND attname = 'data'"
    )
    assert storage == b"e"


async def test_uploads_without_a_message_are_collectable(
    database: PostgresDatabase, cid: str, connection: asyncpg.Connection
) -> None:
    """Blobs that were never attached are collectable, with an optional time limit."""
    made = [await put(database, cid, b"%d" % n) for n in range(4)]
    await connection.execute(
        "UPDATE blobs SET created_at = $1 WHERE blob_id = ANY ($2)",
        EARLIER - timedelta(hours=1),
        [made[1].id, made[2].id],
    )
    async with database.session() as session:
        await session.blobs.attach(cid, [made[2].id, "blob_unknown"])
        await session.blobs.attach(cid, [])
        found = await session.blobs.collectable(cid, None, compacted=False)
        assert [blob.id for blob in found] == [made[n].id for n in (0, 1, 3)]
        old = await session.blobs.collectable(cid, EARLIER, compacted=True)
        assert [blob.id for blob in old] == [made[1].id]
        await collect(database, cid, [made[1].id])
        assert await session.blobs.collectable(cid, EARLIER, compacted=False) == []


async def test_a_repeated_upload_has_a_new_age(
    database: PostgresDatabase, cid: str, connection: asyncpg.Connection
) -> None:
    """A repeated upload of an unattached blob renews its age."""
    await put(database, cid, b"unattached")
    await put(database, cid, b"attached", attached=True)
    await connection.execute("UPDATE blobs SET created_at = $1", EARLIER - timedelta(hours=1))
    for data in (b"unattached", b"attached"):
        await put(database, cid, data)
    async with database.session() as session:
        assert await session.blobs.collectable(cid, EARLIER, compacted=False) == []
    ages = "SELECT created_at < $1 FROM blobs ORDER BY content_id"
    assert [row[0] for row in await connection.fetch(ages, EARLIER)] == [False, True]


COMPACTED = [
    ([3], [], True),
    ([2, 5], [], True),
    ([3, 6], [], False),
    ([1, 3], [], False),
    ([3, 4], [4], False),
    ([3], [4], True),
    ([6], [], False),
    ([], [], False),
]
"""Seqs of the messages with a blob, those kept of the hidden `[2, 6)`, whether the blob goes."""


async def test_compacted_blobs_are_collectable(
    database: PostgresDatabase, connection: asyncpg.Connection
) -> None:
    """A blob is collectable when it has messages and all of them are hidden."""
    for seqs, kept, hidden in COMPACTED:
        cid = await conversation(database)
        blob = await put(database, cid, b"text", attached=True)
        other = await put(database, cid, b"of others", attached=True)
        for seq in range(1, 8):
            refs = [other.id, *([blob.id] if seq in seqs else [])]
            await add_message(connection, cid, seq, refs if seq in {1, *seqs} else None)
        async with database.session() as session:
            assert await session.blobs.collectable(cid, None, compacted=True) == []
            await hide(connection, cid, 2, 6, kept)
            assert await session.blobs.collectable(cid, None, compacted=False) == []
            found = await session.blobs.collectable(cid, EARLIER, compacted=True)
        assert [item.id for item in found] == ([blob.id] if hidden else []), (seqs, kept)


async def test_due_conversations_are_listed(
    database: PostgresDatabase, connection: asyncpg.Connection
) -> None:
    """Due are old uploads, unfinished uploads, and each new compaction."""
    made = [await conversation(database) for _ in range(5)]
    await put(database, made[0], b"unattached")
    await put(database, made[1], b"attached", attached=True)
    await hide(connection, made[3], 1, 2, [])
    content = new_id()
    async with database.session() as session:
        await session.blobs.begin_upload(TENANT, made[2], content)
        due = session.blobs.list_due
        assert await due(EARLIER, 10) == [(TENANT, made[3])]
        found = await due(LATER, 10)
        assert sorted(found) == [(TENANT, made[n]) for n in (0, 2, 3)]
        assert len(await due(LATER, 2)) == 2
        assert await session.blobs.stale_uploads(made[2], LATER) == [content]
        assert await session.blobs.stale_uploads(made[2], EARLIER) == []
        assert await session.blobs.stale_uploads(made[0], LATER) == []

        await session.blobs.drop_upload(made[2], content)
        await session.blobs.mark_swept(made[3])
        await collect(database, made[0])
        assert await due(LATER, 10) == []
        await hide(connection, made[3], 1, 3, [])
        assert await due(LATER, 10) == [(TENANT, made[3])]


APPEND = Statement(
    f"""
        WITH moved AS (
            UPDATE heads h SET head_seq = h.head_seq + 1
            WHERE h.conversation_id = CAST(:conversation_id AS uuid)
                AND h.head_seq = CAST(:expected_seq AS bigint)
            RETURNING h.head_seq
        ), {BLOB_CTES}
        SELECT head_seq FROM moved
        """
)


async def append(
    store: Store, conversation_id: str, expected_seq: int, stored: Sequence[Stored]
) -> bool:
    """Advance a head and store blobs with it, as an append does."""
    async with store.session() as session:
        row = await session.first(
            APPEND,
            conversation_id=UUID(conversation_id),
            expected_seq=expected_seq,
            ids=["m"],
            **append_parameters(stored, [[blob.id for blob, _ in stored]]),
        )
    return row is not None


async def test_an_append_stores_its_blobs(
    store: Store, database: PostgresDatabase, cid: str, connection: asyncpg.Connection
) -> None:
    """Blobs are stored with their messages in one statement, or not at all."""
    stored = [await blob_of(b"%d\n" % n * 50_000) for n in range(3)]
    assert not await append(store, cid, 7, stored)
    assert await counts(connection) == (0, 0, 0)
    assert await append(store, cid, 0, stored)
    assert await append(store, cid, 1, [])
    again = [await blob_of(b"%d\n" % n * 50_000) for n in (2, 1)]
    assert await append(store, cid, 2, [*again, await blob_of(b"")])
    assert await counts(connection) == (4, 6, 0)
    assert await connection.fetchval("SELECT bool_and(attached) FROM blobs")
    for n, (blob, _) in enumerate(stored):
        assert await read(database, cid, blob.id) == b"%d\n" % n * 50_000


async def test_an_append_restores_a_blob_that_is_being_collected(
    store: Store,
    database: PostgresDatabase,
    cid: str,
    connection: asyncpg.Connection,
    database_url: str,
) -> None:
    """An append that waits for a collection stores the collected blob again."""
    data = b"line\n" * 50_000
    blob = await put(database, cid, data)
    offered = await blob_of(data)
    async with database.transaction() as session:
        await session.log.lock(TENANT, cid, None)
        late = asyncio.create_task(append(store, cid, 0, [offered]))
        await waited_for(database_url)
        await session.blobs.collect(cid, [blob.id])
    assert await late
    assert await read(database, cid, blob.id) == data
    assert await counts(connection) == (1, 4, 0)
    async with database.session() as session:
        assert await session.blobs.collectable(cid, None, compacted=True) == []


async def test_appends_and_uploads_of_the_same_blobs_at_once(
    store: Store, database: PostgresDatabase, connection: asyncpg.Connection, cid: str
) -> None:
    """Concurrent appends and uploads in any order store each blob once."""
    texts = [b"%d\n" % n * 50_000 for n in range(4)]

    async def appended(order: Sequence[bytes]) -> None:
        offered = [await blob_of(text) for text in order]
        seq = 0
        while not await append(store, cid, seq, offered):
            seq += 1

    uploads = [put(database, cid, text) for text in texts]
    await asyncio.gather(appended(texts), *uploads, appended(texts[::-1]), appended(texts[1:]))
    assert await counts(connection) == (4, 8, 0)
    for text in texts:
        blob, _ = await blob_of(text)
        assert await read(database, cid, blob.id) == text
