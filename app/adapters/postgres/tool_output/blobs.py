"""Blobs in Postgres: a row for each, its chunks by number and by line, uploads under way (F).

1. The same bytes are one blob: whoever stores them first decides which content holds them, and
   who comes later keeps none of his own chunks (F6).
2. A collected blob keeps its row. Stored again it takes the new content, and is there again (F7).
3. What adds chunks holds the head's key, or its upload's row, so that a collection and a deletion,
   which lock those, leave none behind.
4. Only who takes an upload's row away may end it or drop its chunks: one of the two happens.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from app.adapters.postgres.common.connections import Session, Statement
from app.domain.common.errors import NotFound
from app.domain.common.messages import sendable
from app.domain.tool_output.blobs import Blob, StoredChunk

_BLOB_COLUMNS = """blob_id, content_id, byte_size, line_count, sha256, media_type, tool_name,
            tool_call_id, object_key, attached, created_at, collected_at"""

_ALIVE = """alive AS (
            SELECT conversation_id FROM heads
            WHERE conversation_id = CAST(:conversation_id AS uuid) FOR KEY SHARE
        )"""

_REVIVED = ",\n                ".join(
    f"{column} = CASE WHEN kept.collected_at IS NULL THEN kept.{column} ELSE excluded.{column} END"
    for column in ("content_id", "media_type", "tool_name", "tool_call_id", "object_key")
)
_CHUNK_ARRAYS = """
                CAST(:chunk_contents AS uuid[]), CAST(:chunk_numbers AS integer[]),
                CAST(:chunk_starts AS bigint[]), CAST(:chunk_newlines AS bigint[]),
                CAST(:chunk_sizes AS integer[]), CAST(:chunk_datas AS bytea[]),
                CAST(:chunk_object_starts AS bigint[]), CAST(:chunk_object_sizes AS integer[])
            ) AS chunk (
                content_id, number, start, newlines, size, data, object_start, object_size
            )"""


# While nobody refers to a blob, each time it comes again makes it as young as a new one.
def _blobs_stored(guard: str, attached: str) -> str:
    """Return the CTE that stores blobs while the CTE `guard` has its row (rules 1 and 2)."""
    return f"""blobs_stored AS (
            INSERT INTO blobs AS kept (
                conversation_id, blob_id, content_id, byte_size, line_count, sha256, media_type,
                tool_name, tool_call_id, object_key, attached
            )
            SELECT CAST(:conversation_id AS uuid), blob.*, {attached}
            FROM {guard}, unnest(
                CAST(:blob_ids AS text[]), CAST(:blob_contents AS uuid[]),
                CAST(:blob_sizes AS bigint[]), CAST(:blob_lines AS bigint[]),
                CAST(:blob_hashes AS text[]), CAST(:blob_types AS text[]),
                CAST(:blob_tools AS text[]), CAST(:blob_calls AS text[]),
                CAST(:blob_keys AS text[])
            ) AS blob
            ON CONFLICT (conversation_id, blob_id) DO UPDATE
            SET {_REVIVED},
                created_at = CASE
                    WHEN kept.attached AND kept.collected_at IS NULL THEN kept.created_at
                    ELSE excluded.created_at
                END,
                attached = kept.attached OR excluded.attached,
                collected_at = NULL
            RETURNING kept.content_id
        )"""


_CHUNKS_STORED = f"""chunks_stored AS (
            INSERT INTO blob_chunks (
                conversation_id, content_id, number, start, newlines, size, data,
                object_start, object_size
            )
            SELECT CAST(:conversation_id AS uuid), chunk.*
            FROM unnest({_CHUNK_ARRAYS}
            WHERE chunk.content_id IN (SELECT content_id FROM blobs_stored)
            ON CONFLICT DO NOTHING
        )"""

_USES_STORED = """uses_stored AS (
            INSERT INTO blob_uses (conversation_id, blob_id, seq)
            SELECT CAST(:conversation_id AS uuid), used.blob_id,
                moved.head_seq - cardinality(CAST(:ids AS text[])) + used.position
            FROM moved, unnest(CAST(:use_ids AS text[]), CAST(:use_positions AS bigint[]))
                AS used (blob_id, position)
            ON CONFLICT DO NOTHING
        )"""

BLOB_CTES = f"{_blobs_stored('moved', 'true')}, {_CHUNKS_STORED}, {_USES_STORED}"
"""What an append adds to store its messages' blobs with them, if `moved` has a row (F1)."""

ADD = Statement(
    f"""
        WITH {_ALIVE}, {_blobs_stored("alive", "CAST(:attached AS boolean)")}, {_CHUNKS_STORED}
        SELECT content_id FROM blobs_stored
        """
)

BEGIN_UPLOAD = Statement(
    """
        WITH alive AS (
            SELECT h.conversation_id
            FROM heads h
            JOIN conversations c ON c.conversation_id = h.conversation_id
            WHERE h.conversation_id = CAST(:conversation_id AS uuid)
                AND c.tenant_id = CAST(:tenant_id AS text)
            FOR KEY SHARE OF h
        )
        INSERT INTO blob_uploads (conversation_id, content_id, tenant_id)
        SELECT conversation_id, CAST(:content_id AS uuid), CAST(:tenant_id AS text) FROM alive
        """
)
ADD_CHUNKS = Statement(
    f"""
        WITH upload AS (
            SELECT content_id FROM blob_uploads
            WHERE conversation_id = CAST(:conversation_id AS uuid)
                AND content_id = CAST(:content_id AS uuid) FOR KEY SHARE
        )
        INSERT INTO blob_chunks (
            conversation_id, content_id, number, start, newlines, size, data,
            object_start, object_size
        )
        SELECT CAST(:conversation_id AS uuid), chunk.*
        FROM upload, unnest({_CHUNK_ARRAYS}
        """
)
END_UPLOAD = Statement(
    f"""
        WITH {_ALIVE}, ended AS (
            DELETE FROM blob_uploads u USING alive
            WHERE u.conversation_id = CAST(:conversation_id AS uuid)
                AND u.content_id = CAST(:content_id AS uuid)
            RETURNING u.content_id
        ), {_blobs_stored("ended", "CAST(:attached AS boolean)")}, dropped AS (
            DELETE FROM blob_chunks c USING blobs_stored
            WHERE c.conversation_id = CAST(:conversation_id AS uuid)
                AND c.content_id = CAST(:content_id AS uuid)
                AND blobs_stored.content_id <> CAST(:content_id AS uuid)
        )
        SELECT (SELECT content_id FROM blobs_stored) AS content_id,
            EXISTS (SELECT FROM alive) AS is_alive
        """
)
DROP_UPLOAD = Statement(
    """
        WITH ended AS (
            DELETE FROM blob_uploads
            WHERE conversation_id = CAST(:conversation_id AS uuid)
                AND content_id = CAST(:content_id AS uuid)
            RETURNING content_id
        ), dropped AS (
            DELETE FROM blob_chunks c USING ended
            WHERE c.conversation_id = CAST(:conversation_id AS uuid)
                AND c.content_id = ended.content_id
        )
        SELECT content_id FROM ended
        """,
    is_long=True,
)
DROP_CHUNKS = Statement(
    """
        DELETE FROM blob_chunks
        WHERE conversation_id = CAST(:conversation_id AS uuid)
            AND content_id = CAST(:content_id AS uuid)
        """,
    is_long=True,
)
ATTACH = Statement(
    """
        UPDATE blobs SET attached = true
        WHERE conversation_id = CAST(:conversation_id AS uuid)
            AND blob_id = ANY (CAST(:refs AS text[])) AND NOT attached
        """
)

FIND = Statement(
    f"""
        SELECT {_BLOB_COLUMNS} FROM blobs
        WHERE conversation_id = CAST(:conversation_id AS uuid)
            AND blob_id = ANY (CAST(:refs AS text[]))
        """
)
PAGE = Statement(
    f"""
        SELECT {_BLOB_COLUMNS} FROM blobs
        WHERE conversation_id = CAST(:conversation_id AS uuid) AND collected_at IS NULL
            AND (CAST(:before AS text) IS NULL OR content_id < (
                SELECT last.content_id FROM blobs last
                WHERE last.conversation_id = CAST(:conversation_id AS uuid)
                    AND last.blob_id = CAST(:before AS text)
            ))
        ORDER BY content_id DESC
        LIMIT CAST(:limit AS bigint)
        """
)
CHUNKS = Statement(
    """
        SELECT number, start, newlines, size, data, object_start, object_size FROM blob_chunks
        WHERE conversation_id = CAST(:conversation_id AS uuid)
            AND content_id = CAST(:content_id AS uuid)
            AND number >= CAST(:first AS bigint)
            AND number < CAST(:first AS bigint) + CAST(:count AS bigint)
        ORDER BY number
        """
)
FIRST_CHUNK = Statement(
    """
        SELECT number, newlines FROM blob_chunks
        WHERE conversation_id = CAST(:conversation_id AS uuid)
            AND content_id = CAST(:content_id AS uuid)
        ORDER BY number
        LIMIT 1
        """
)
CHUNK_BEFORE_LINE = Statement(
    """
        SELECT number, newlines FROM blob_chunks
        WHERE conversation_id = CAST(:conversation_id AS uuid)
            AND content_id = CAST(:content_id AS uuid)
            AND newlines < CAST(:line AS bigint)
        ORDER BY newlines DESC, number DESC
        LIMIT 1
        """
)

# What is outside the active window was not compacted, though it may lie between what was.
# A seq lies in one of a part's spans when it is past an odd number of their edges.
COLLECTABLE = Statement(
    f"""
        WITH hidden AS (
            SELECT used.blob_id
            FROM heads h
            JOIN blob_uses used ON used.conversation_id = h.conversation_id
            WHERE CAST(:compacted AS boolean) AND h.span_start IS NOT NULL
                AND h.conversation_id = CAST(:conversation_id AS uuid)
                AND used.conversation_id = CAST(:conversation_id AS uuid)
            GROUP BY used.blob_id
            HAVING bool_and(
                used.seq >= h.span_start AND used.seq < h.span_end AND used.seq <> ALL (h.kept)
                AND used.seq >= h.since
                AND NOT EXISTS (
                    SELECT FROM snapshot_parts part
                    WHERE part.conversation_id = CAST(:conversation_id AS uuid)
                        AND width_bucket(used.seq, part.spans) % 2 = 1
                )
            )
        )
        SELECT {_BLOB_COLUMNS} FROM blobs
        WHERE conversation_id = CAST(:conversation_id AS uuid) AND collected_at IS NULL
            AND (
                NOT attached AND (
                    CAST(:uploaded_before AS timestamptz) IS NULL
                    OR created_at < CAST(:uploaded_before AS timestamptz)
                )
                OR blob_id IN (SELECT blob_id FROM hidden)
            )
        ORDER BY content_id
        """
)
COLLECT = Statement(
    """
        WITH collected AS (
            UPDATE blobs SET collected_at = clock_timestamp()
            WHERE conversation_id = CAST(:conversation_id AS uuid)
                AND blob_id = ANY (CAST(:refs AS text[])) AND collected_at IS NULL
            RETURNING content_id
        )
        DELETE FROM blob_chunks c USING collected
        WHERE c.conversation_id = CAST(:conversation_id AS uuid)
            AND c.content_id = collected.content_id
        """,
    is_long=True,
)
LIST_DUE = Statement(
    """
        SELECT c.tenant_id, c.conversation_id
        FROM (
            (
                SELECT conversation_id FROM blobs
                WHERE NOT attached AND collected_at IS NULL
                    AND created_at < CAST(:uploaded_before AS timestamptz)
                ORDER BY created_at
                LIMIT CAST(:limit AS bigint)
            ) UNION (
                SELECT conversation_id FROM blob_uploads
                WHERE begun_at < CAST(:uploaded_before AS timestamptz)
                ORDER BY begun_at
                LIMIT CAST(:limit AS bigint)
            ) UNION (
                SELECT conversation_id FROM heads
                WHERE view_version > swept_version AND compaction_id IS NOT NULL
                LIMIT CAST(:limit AS bigint)
            )
        ) AS found
        JOIN conversations c ON c.conversation_id = found.conversation_id
        LIMIT CAST(:limit AS bigint)
        """
)
STALE_UPLOADS = Statement(
    """
        SELECT content_id FROM blob_uploads
        WHERE conversation_id = CAST(:conversation_id AS uuid)
            AND begun_at < CAST(:begun_before AS timestamptz)
        ORDER BY begun_at
        """
)
SWEPT = Statement(
    """
        UPDATE heads SET swept_version = view_version
        WHERE conversation_id = CAST(:conversation_id AS uuid) AND swept_version < view_version
        """
)
HOLDS_CONTENT = Statement(
    """
        SELECT EXISTS (
            SELECT FROM blobs
            WHERE conversation_id = CAST(:conversation_id AS uuid)
                AND content_id = CAST(:content_id AS uuid) AND collected_at IS NULL
        ) OR EXISTS (
            SELECT FROM blob_uploads
            WHERE conversation_id = CAST(:conversation_id AS uuid)
                AND content_id = CAST(:content_id AS uuid)
        ) AS is_held
        """
)


class BlobRepository:
    """Sentences about the blobs of one conversation."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def find(self, conversation_id: str, ref: str) -> Blob | None:
        """Return a blob, a collected one too; None for an unknown ref."""
        found = await self.find_all(conversation_id, [ref])
        return found[0] if found else None

    async def find_all(self, conversation_id: str, refs: Sequence[str]) -> list[Blob]:
        """Return those of the blobs that there are, collected ones too."""
        known = [ref for ref in refs if sendable(ref) is ref]
        rows = await self._session.all(FIND, conversation_id=UUID(conversation_id), refs=known)
        return [_blob_from(row) for row in rows]

    async def page(self, conversation_id: str, limit: int, before: str | None) -> list[Blob]:
        """Return blobs that were not collected, newest first, from after the id `before` on."""
        rows = await self._session.all(
            PAGE, conversation_id=UUID(conversation_id), limit=limit, before=_sendable(before)
        )
        return [_blob_from(row) for row in rows]

    async def add(self, conversation_id: str, blob: Blob, chunks: Sequence[StoredChunk]) -> str:
        """Store a blob, or find it stored, and return the content id that holds its bytes.

        `chunks` are stored only if that is the blob's own; a collected one comes back to life.
        For a deleted conversation nothing is stored.
        """
        row = await self._session.first(
            ADD,
            conversation_id=UUID(conversation_id),
            attached=blob.attached,
            **blob_parameters([(blob, chunks)]),
        )
        return str(row["content_id"]) if row is not None else blob.content_id

    async def begin_upload(self, tenant_id: str, conversation_id: str, content_id: str) -> bool:
        """Note that chunks of a content are coming; False without such a conversation."""
        begun = await self._session.run(
            BEGIN_UPLOAD,
            tenant_id=tenant_id,
            conversation_id=UUID(conversation_id),
            content_id=UUID(content_id),
        )
        return begun == 1

    async def add_chunks(
        self, conversation_id: str, content_id: str, chunks: Sequence[StoredChunk]
    ) -> None:
        """Store more chunks of an upload under way; of one that was dropped, none."""
        await self._session.run(
            ADD_CHUNKS,
            conversation_id=UUID(conversation_id),
            content_id=UUID(content_id),
            **_chunk_parameters([(content_id, chunk) for chunk in chunks]),
        )

    async def end_upload(self, conversation_id: str, blob: Blob) -> str:
        """Store the blob of an upload, or find it stored; returns as `add` does.

        The upload's own chunks are dropped where the blob was stored already. Raises NotFound
        when the conversation is gone, or the upload was dropped meanwhile (rule 4).
        """
        row = await self._session.first(
            END_UPLOAD,
            conversation_id=UUID(conversation_id),
            content_id=UUID(blob.content_id),
            attached=blob.attached,
            **_blob_parameters([blob]),
        )
        if row is None or not row["is_alive"]:
            raise NotFound.conversation(conversation_id)
        if row["content_id"] is None:
            raise NotFound(
                "The upload took too long and was dropped", {"conversation_id": conversation_id}
            )
        return str(row["content_id"])

    async def drop_upload(self, conversation_id: str, content_id: str) -> None:
        """Forget an upload that did not end, and its chunks."""
        upload = {"conversation_id": UUID(conversation_id), "content_id": UUID(content_id)}
        if await self._session.first(DROP_UPLOAD, **upload) is not None:
            # The first statement does not see chunks that came while it waited for the upload.
            await self._session.run(DROP_CHUNKS, **upload)

    async def attach(self, conversation_id: str, refs: Sequence[str]) -> None:
        """Note that messages refer to these blobs; call it under the head's lock."""
        await self._session.run(ATTACH, conversation_id=UUID(conversation_id), refs=list(refs))

    async def chunks(
        self, conversation_id: str, content_id: str, first: int, count: int
    ) -> list[StoredChunk]:
        """Return up to `count` chunks from number `first` on, in order."""
        rows = await self._session.all(
            CHUNKS,
            conversation_id=UUID(conversation_id),
            content_id=UUID(content_id),
            first=first,
            count=count,
        )
        return [StoredChunk(*row) for row in rows]

    async def chunk_before_line(
        self, conversation_id: str, content_id: str, line: int
    ) -> tuple[int, int] | None:
        """Return the number, and the newlines before it, of the chunk with that many newlines.

        It is the last chunk with fewer than `line` newlines before it, the first for line 0;
        None where there are no chunks.
        """
        content = {"conversation_id": UUID(conversation_id), "content_id": UUID(content_id)}
        if line == 0:
            row = await self._session.first(FIRST_CHUNK, **content)
        else:
            row = await self._session.first(CHUNK_BEFORE_LINE, **content, line=line)
        return (row["number"], row["newlines"]) if row is not None else None

    async def collectable(
        self, conversation_id: str, uploaded_before: datetime | None, *, compacted: bool
    ) -> list[Blob]:
        """Return what a collection would take, the oldest first (F7).

        Blobs no message was attached to, uploaded before that time if one is given; and with
        `compacted` those whose messages are all hidden by the active compaction, and in no
        snapshot's part.
        """
        rows = await self._session.all(
            COLLECTABLE,
            conversation_id=UUID(conversation_id),
            uploaded_before=uploaded_before,
            compacted=compacted,
        )
        return [_blob_from(row) for row in rows]

    async def collect(self, conversation_id: str, refs: Sequence[str]) -> None:
        """Delete the bytes of blobs and leave their tombstones (decision 29).

        Call it under the head's lock, which `collectable` was asked under as well.
        """
        await self._session.run(COLLECT, conversation_id=UUID(conversation_id), refs=list(refs))

    async def list_due(self, uploaded_before: datetime, limit: int) -> list[tuple[str, str]]:
        """Return tenant and conversation ids where a scheduled collection may find something.

        Those with uploads from before that time that were not attached or did not end, the oldest
        uploads first, and those compacted since the last collection. Ask again after collecting:
        a conversation with many uploads may leave no room for others.
        """
        rows = await self._session.all(LIST_DUE, uploaded_before=uploaded_before, limit=limit)
        return [(row["tenant_id"], str(row["conversation_id"])) for row in rows]

    async def stale_uploads(self, conversation_id: str, begun_before: datetime) -> list[str]:
        """Return the content ids of uploads that did not end, begun before that time."""
        rows = await self._session.all(
            STALE_UPLOADS, conversation_id=UUID(conversation_id), begun_before=begun_before
        )
        return [str(row["content_id"]) for row in rows]

    async def swept(self, conversation_id: str) -> None:
        """Note, under the head's lock, that a collection has seen the last compaction."""
        await self._session.run(SWEPT, conversation_id=UUID(conversation_id))

    async def holds_content(self, conversation_id: str, content_id: str) -> bool:
        """Whether a blob that was not collected, or an upload under way, has this content."""
        row = await self._session.first(
            HOLDS_CONTENT, conversation_id=UUID(conversation_id), content_id=UUID(content_id)
        )
        return row is not None and row["is_held"]


def append_parameters(
    stored: Sequence[tuple[Blob, Sequence[StoredChunk]]], uses: Sequence[Sequence[str]]
) -> dict[str, Any]:
    """Return the parameters of `BLOB_CTES`; `uses` are the ids each message refers to."""
    places = [(ref, place) for place, refs in enumerate(uses, start=1) for ref in refs]
    return blob_parameters(stored) | {
        "use_ids": [ref for ref, _ in places],
        "use_positions": [place for _, place in places],
    }


def blob_parameters(stored: Sequence[tuple[Blob, Sequence[StoredChunk]]]) -> dict[str, Any]:
    """Return the parameters that store distinct blobs, each with its chunks."""
    # One order for everybody: statements that store the same blobs never wait for each other.
    ordered = sorted(stored, key=lambda pair: pair[0].id)
    chunks = [(blob.content_id, chunk) for blob, chunks in ordered for chunk in chunks]
    return {**_blob_parameters([blob for blob, _ in ordered]), **_chunk_parameters(chunks)}


def _blob_parameters(blobs: Sequence[Blob]) -> dict[str, Any]:
    return {
        "blob_ids": [blob.id for blob in blobs],
        "blob_contents": [UUID(blob.content_id) for blob in blobs],
        "blob_sizes": [blob.byte_size for blob in blobs],
        "blob_lines": [blob.line_count for blob in blobs],
        "blob_hashes": [blob.sha256 for blob in blobs],
        "blob_types": [sendable(blob.media_type) for blob in blobs],
        "blob_tools": [_sendable(blob.tool_name) for blob in blobs],
        "blob_calls": [_sendable(blob.tool_call_id) for blob in blobs],
        "blob_keys": [blob.object_key for blob in blobs],
    }


def _chunk_parameters(chunks: Sequence[tuple[str, StoredChunk]]) -> dict[str, Any]:
    return {
        "chunk_contents": [UUID(content_id) for content_id, _ in chunks],
        "chunk_numbers": [chunk.number for _, chunk in chunks],
        "chunk_starts": [chunk.start for _, chunk in chunks],
        "chunk_newlines": [chunk.newlines for _, chunk in chunks],
        "chunk_sizes": [chunk.size for _, chunk in chunks],
        "chunk_datas": [chunk.data for _, chunk in chunks],
        "chunk_object_starts": [chunk.object_start for _, chunk in chunks],
        "chunk_object_sizes": [chunk.object_size for _, chunk in chunks],
    }


def _sendable(text: str | None) -> str | None:
    return sendable(text) if text is not None else None


def _blob_from(row: Any) -> Blob:
    return Blob(
        id=row["blob_id"],
        content_id=str(row["content_id"]),
        byte_size=row["byte_size"],
        line_count=row["line_count"],
        sha256=row["sha256"],
        media_type=row["media_type"],
        tool_name=row["tool_name"],
        tool_call_id=row["tool_call_id"],
        object_key=row["object_key"],
        attached=row["attached"],
        created_at=row["created_at"],
        collected_at=row["collected_at"],
    )
