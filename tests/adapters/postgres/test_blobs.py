"""Blobs in Postgres: stored once, collected and back again, whoever comes at the same time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import asyncpg
import pytest
import pytest_asyncio
from uuid_utils import uuid7

from app.blobs import repository as statements
from app.blobs.byte_store import BlobStore
from app.blobs.chunks import TEXT, Blob, Chunk, Chunker
from app.common.errors import NotFound
from app.conversations.conversation import StoredSettings
from app.database.connections import Statement
from app.repositories import Database, Repositories

TENANT = "default"
NOW = datetime.now(UTC)

Stored = tuple[Blob, list[Chunk]]


def new_id() -> str:
    """Return a fresh id."""
    return str(uuid7())


async def blob_of(data: bytes, *, attached: bool = False) -> Stored:
    """Return the blob of these bytes with a new content id, and its chunks."""
    chunker = Chunker()
    chunks = [*chunker.feed(data), *chunker.finish()]
    async with BlobStore().writer(TENANT, "any", "any") as writer:
        stored = await writer.write(chunks)
    blob = chunker.blob(TEXT, "shell", "call_1")
    return replace(blob, content_id=new_id(), attached=attached), stored


@pytest_asyncio.fixture
async def cid(database: Database) -> str:
    """The id of a new conversation."""
    return await conversation(database)


async def conversation(database: Database) -> str:
    """Create a conversation and return its id."""
    made = new_id()
    async with database.session() as session:
        assert await session.conversations.add(TENANT, made, None, "bytes_4", StoredSettings())
    return made


@pytest_asyncio.fixture
async def connection(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A plain connection to this test's database."""
    opened = await asyncpg.connect(database_url)
    yield opened
    await opened.close()


async def read(database: Database, conversation_id: str, ref: str) -> bytes:
    """Return a blob's bytes."""
    async with database.session() as session:
        blob = await session.blobs.find(conversation_id, ref)
        assert blob is not None and blob.collected_at is None
        chunks = await session.blobs.chunks(conversation_id, blob.content_id, 0, 1000)
    return b"".join(await BlobStore().read(None, chunks))


async def put(
    database: Database, conversation_id: str, data: bytes, *, attached: bool = False
) -> Blob:
    """Store some bytes, and return the blob that was passed to the repository."""
    blob, chunks = await blob_of(data, attached=attached)
    async with database.session() as session:
        await upload(session, conversation_id, blob, chunks)
    return blob


async def upload(
    session: Repositories, conversation_id: str, blob: Blob, chunks: Sequence[Chunk]
) -> str:
    """Upload a blob, attach it if it is `attached`, and return the content id of its bytes."""
    await session.blobs.begin_upload(TENANT, conversation_id, blob.content_id)
    await session.blobs.add_chunks(conversation_id, blob.content_id, chunks)
    content_id = await session.blobs.end_upload(conversation_id, blob)
    await session.blobs.attach(conversation_id, [blob.id] if blob.attached else [])
    return content_id


async def collect(
    database: Database, conversation_id: str, refs: Sequence[str] | None = None
) -> list[str]:
    """Collect blobs as a collection does, by default all unattached ones; return their ids."""
    async with database.transaction() as session:
        await session.conversations.get(TENANT, conversation_id, lock=True)
        if refs is None:
            own = {"conversation_id": conversation_id, "uploaded_before": None}
            found = await session.session.all(statements.COLLECTABLE, **own, compacted=False)
            refs = [row["id"] for row in found]
        await session.session.run(statements.COLLECT, conversation_id=conversation_id, refs=refs)
    return list(refs)


async def counts(connection: asyncpg.Connection) -> tuple[int, int, int]:
    """Return the numbers of blobs, chunks and uploads."""
    tables = ("blobs", "blob_chunks", "blob_uploads")
    numbers = [await connection.fetchval(f"SELECT count(*) FROM {name}") for name in tables]
    return numbers[0], numbers[1], numbers[2]


async def test_a_dropped_upload_cannot_continue(
    database: Database, cid: str, connection: asyncpg.Connection
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


async def test_reads_use_their_indexes(
    database: Database, cid: str, connection: asyncpg.Connection
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
    for index in ("blobs_unattached", "blob_uploads_by_time", "states_uncollected"):
        assert index in due
    hidden = await plan(statements.COLLECTABLE, compacted=True, uploaded_before=NOW)
    assert "using blob_uses_pkey" in hidden
    assert "blobs_by_content" in await plan(statements.HOLDS_CONTENT)


ADVANCE = Statement(
    """
        UPDATE states SET head_seq = head_seq + 1
        WHERE conversation_id = :conversation_id AND head_seq = CAST(:expected_seq AS bigint)
        RETURNING head_seq
        """
)


async def append(
    database: Database, conversation_id: str, expected_seq: int, stored: Sequence[Stored]
) -> bool:
    """Advance a head and store blobs with it, as an append does."""
    async with database.transaction() as session:
        row = await session.session.first(
            ADVANCE, conversation_id=UUID(conversation_id), expected_seq=expected_seq
        )
        if row is not None:
            uses = [(blob.id, row["head_seq"]) for blob, _ in stored]
            await session.blobs.add_to_messages(conversation_id, stored, uses)
    return row is not None
