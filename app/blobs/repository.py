"""Blobs in PostgreSQL, and what each statement has to keep.

1. Equal bytes are one blob: the first to store them sets the content id; chunks stored later for
   the same blob are dropped [tool-output.same-content-once].
2. A collected blob keeps its row. Stored again, it takes the new content id and is readable again.
3. A statement that adds chunks locks the conversation's state or the upload's row FOR KEY SHARE. A
   collection and a deletion lock those rows, so that no chunks are left behind.
4. Only the statement that deletes an upload's row may end the upload or drop its chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from app.blobs.chunks import Blob, Chunk
from app.common.errors import NotFound
from app.common.texts import sendable
from app.database.connections import Repository, Statement
from app.database.sql import arrays, read
from app.database.tables import NOT_EXPIRED

_NEW_BLOB = (
    *("blob_id", "content_id", "byte_size", "line_count", "sha256", "media_type"),
    *("tool_name", "tool_call_id", "object_key"),
)
_BLOB_COLUMNS = f"""{", ".join(_NEW_BLOB).replace("blob_id", "blob_id AS id")},
            attached, created_at, collected_at"""
_CHUNK = ("number", "start", "newlines", "size", "data", "object_start", "object_size")
_CHUNK_COLUMNS = ", ".join(("content_id", *_CHUNK))
_CONVERSATION = "conversation_id = :conversation_id"
_CONTENT = f"{_CONVERSATION} AND content_id = :content_id"
_REPLACE_IF_COLLECTED = ", ".join(
    f"{name} = CASE WHEN stored.collected_at IS NULL THEN stored.{name} ELSE excluded.{name} END"
    for name in ("content_id", "media_type", "tool_name", "tool_call_id", "object_key")
)


def _insert_chunks(source: str) -> str:
    """Return an INSERT of chunks; it needs a row of the CTE in `source`, such as `upload, `."""
    return f"""INSERT INTO blob_chunks (conversation_id, {_CHUNK_COLUMNS})
            SELECT :conversation_id, chunk.*
            FROM {source}unnest(
                {arrays("blob_chunks", "content_id", *_CHUNK, prefix="chunk_")}
            ) AS chunk ({_CHUNK_COLUMNS})"""


def _blobs_stored(source: str, attached: str) -> str:
    """Return a CTE that stores blobs; it needs a row of the CTE in `source`, as `ended, `.

    Storing an unattached blob again renews its age.
    """
    return f"""blobs_stored AS (
            INSERT INTO blobs AS stored (conversation_id, {", ".join(_NEW_BLOB)}, attached)
            SELECT :conversation_id, blob.*, {attached}
            FROM {source}unnest({arrays("blobs", *_NEW_BLOB, prefix="new_")}) AS blob
            ON CONFLICT (conversation_id, blob_id) DO UPDATE
            SET {_REPLACE_IF_COLLECTED},
                created_at = CASE
                    WHEN stored.attached AND stored.collected_at IS NULL THEN stored.created_at
                    ELSE excluded.created_at
                END,
                attached = stored.attached OR excluded.attached,
                collected_at = NULL
            RETURNING stored.content_id
        )"""


ADD_TO_MESSAGES = Statement(f"""
        WITH {_blobs_stored("", "true")}, chunks_stored AS (
            {_insert_chunks("")}
            WHERE chunk.content_id IN (SELECT content_id FROM blobs_stored)
            ON CONFLICT DO NOTHING
        )
        INSERT INTO blob_uses (conversation_id, blob_id, seq)
        SELECT :conversation_id, used.*
        FROM unnest(CAST(:use_ids AS text[]), CAST(:use_seqs AS bigint[])) AS used
        ON CONFLICT DO NOTHING
""")
BEGIN_UPLOAD = Statement(f"""
        WITH alive AS (
            SELECT h.conversation_id
            FROM states h
            JOIN conversations c ON c.conversation_id = h.conversation_id
            WHERE h.conversation_id = :conversation_id
                AND c.tenant_id = :tenant_id AND {NOT_EXPIRED}
            FOR KEY SHARE OF h
        )
        INSERT INTO blob_uploads (conversation_id, content_id, tenant_id)
        SELECT conversation_id, :content_id, :tenant_id FROM alive
""")
ADD_CHUNKS = Statement(f"""
        WITH upload AS (
            SELECT content_id FROM blob_uploads WHERE {_CONTENT} FOR KEY SHARE
        )
        {_insert_chunks("upload, ")}
""")
END_UPLOAD = Statement(f"""
        WITH alive AS (
            SELECT conversation_id FROM states WHERE {_CONVERSATION} FOR KEY SHARE
        ), ended AS (
            DELETE FROM blob_uploads u USING alive
            WHERE u.conversation_id = :conversation_id AND u.content_id = :content_id
            RETURNING u.content_id
        ), {_blobs_stored("ended, ", "false")}, dropped AS (
            DELETE FROM blob_chunks c USING blobs_stored
            WHERE c.conversation_id = :conversation_id AND c.content_id = :content_id
                AND blobs_stored.content_id <> :content_id
        )
        SELECT (SELECT content_id FROM blobs_stored) AS content_id,
            EXISTS (SELECT FROM alive) AS is_alive
""")
_DROP_UPLOAD = f"""
        WITH ended AS (
            DELETE FROM blob_uploads WHERE {_CONTENT} RETURNING content_id
        ), dropped AS (
            DELETE FROM blob_chunks c USING ended
            WHERE c.conversation_id = :conversation_id AND c.content_id = ended.content_id
        )
        SELECT content_id FROM ended
"""
DROP_UPLOAD = Statement(_DROP_UPLOAD, is_long=True)
DROP_CHUNKS = Statement(f"DELETE FROM blob_chunks WHERE {_CONTENT}", is_long=True)
ATTACH = Statement(f"""
        UPDATE blobs SET attached = true
        WHERE {_CONVERSATION} AND blob_id = ANY (CAST(:refs AS text[])) AND NOT attached
""")

FIND = Statement(f"""
        SELECT {_BLOB_COLUMNS} FROM blobs
        WHERE {_CONVERSATION} AND blob_id = ANY (CAST(:refs AS text[]))
""")
PAGE = Statement(f"""
        SELECT {_BLOB_COLUMNS} FROM blobs
        WHERE {_CONVERSATION} AND collected_at IS NULL
            AND (CAST(:before AS text) IS NULL OR content_id < (
                SELECT last.content_id FROM blobs last
                WHERE last.conversation_id = :conversation_id
                    AND last.blob_id = CAST(:before AS text)
            ))
        ORDER BY content_id DESC LIMIT :limit
""")
CHUNKS = Statement(f"""
        SELECT {", ".join(_CHUNK)} FROM blob_chunks
        WHERE {_CONTENT} AND number >= CAST(:first AS bigint)
            AND number < CAST(:first AS bigint) + CAST(:count AS bigint)
        ORDER BY number
""")
CHUNK_BEFORE_LINE = Statement(f"""
        SELECT number, newlines FROM blob_chunks
        WHERE {_CONTENT} AND newlines < CAST(:line AS bigint)
        ORDER BY newlines DESC, number DESC LIMIT 1
""")

# Messages outside the active window are not compacted, even between compacted ones.
# `width_bucket` is odd for a seq inside one of a part's spans.
COLLECTABLE = Statement(f"""
        WITH hidden AS (
            SELECT used.blob_id
            FROM states h
            JOIN blob_uses used ON used.conversation_id = h.conversation_id
            WHERE CAST(:compacted AS boolean) AND h.hidden_start IS NOT NULL
                AND h.conversation_id = :conversation_id
                AND used.conversation_id = :conversation_id
            GROUP BY used.blob_id
            HAVING bool_and(
                used.seq >= h.hidden_start AND used.seq < h.hidden_end
                AND used.seq <> ALL (h.protected_seqs) AND used.seq >= h.since
                AND NOT EXISTS (
                    SELECT FROM snapshot_parts part
                    WHERE part.conversation_id = :conversation_id
                        AND width_bucket(used.seq, part.spans) % 2 = 1
                )
            )
        )
        SELECT {_BLOB_COLUMNS} FROM blobs
        WHERE {_CONVERSATION} AND collected_at IS NULL
            AND (
                NOT attached AND (
                    CAST(:uploaded_before AS timestamptz) IS NULL
                    OR created_at < CAST(:uploaded_before AS timestamptz)
                )
                OR blob_id IN (SELECT blob_id FROM hidden)
            )
        ORDER BY content_id
""")
_COLLECT = f"""
        WITH collected AS (
            UPDATE blobs SET collected_at = statement_timestamp()
            WHERE {_CONVERSATION} AND blob_id = ANY (CAST(:refs AS text[]))
                AND collected_at IS NULL
            RETURNING content_id
        )
        DELETE FROM blob_chunks c USING collected
        WHERE c.conversation_id = :conversation_id AND c.content_id = collected.content_id
"""
COLLECT = Statement(_COLLECT, is_long=True)
LIST_DUE = Statement("""
        SELECT c.tenant_id, c.conversation_id
        FROM (
            (
                SELECT conversation_id FROM blobs
                WHERE NOT attached AND collected_at IS NULL
                    AND created_at < CAST(:uploaded_before AS timestamptz)
                ORDER BY created_at LIMIT :limit
            ) UNION (
                SELECT conversation_id FROM blob_uploads
                WHERE begun_at < CAST(:uploaded_before AS timestamptz)
                ORDER BY begun_at LIMIT :limit
            ) UNION (
                SELECT conversation_id FROM states
                WHERE view_version > collected_version AND compaction_id IS NOT NULL LIMIT :limit
            )
        ) AS found
        JOIN conversations c ON c.conversation_id = found.conversation_id
        LIMIT :limit
""")
STALE_UPLOADS = Statement(f"""
        SELECT content_id FROM blob_uploads
        WHERE {_CONVERSATION} AND begun_at < CAST(:begun_before AS timestamptz) ORDER BY begun_at
""")
SET_COLLECTED = Statement(f"""
        UPDATE states SET collected_version = view_version
        WHERE {_CONVERSATION} AND collected_version < view_version
""")
HOLDS_CONTENT = Statement(f"""
        SELECT EXISTS (SELECT FROM blobs WHERE {_CONTENT} AND collected_at IS NULL)
            OR EXISTS (SELECT FROM blob_uploads WHERE {_CONTENT}) AS is_held
""")


class BlobRepository(Repository):
    """The blobs of one conversation."""

    async def find(self, conversation_id: str, ref: str) -> Blob | None:
        """Return a blob, collected or not; None for an unknown ref."""
        found = await self.find_all(conversation_id, [ref])
        return found[0] if found else None

    async def find_all(self, conversation_id: str, refs: Sequence[str]) -> list[Blob]:
        """Return the blobs that exist, collected or not."""
        sendable_refs = [ref for ref in refs if sendable(ref) is ref]
        rows = await self._session.all(FIND, conversation_id=conversation_id, refs=sendable_refs)
        return [read(Blob, row) for row in rows]

    async def begin_upload(self, tenant_id: str, conversation_id: str, content_id: str) -> bool:
        """Record an upload with this content id; False if there is no such conversation."""
        upload = {"conversation_id": conversation_id, "content_id": content_id}
        return await self._session.run(BEGIN_UPLOAD, tenant_id=tenant_id, **upload) == 1

    async def add_chunks(
        self, conversation_id: str, content_id: str, chunks: Sequence[Chunk]
    ) -> None:
        """Store more chunks of an unfinished upload; none if it was dropped."""
        added = _chunk_parameters([(content_id, chunk) for chunk in chunks])
        upload = {"conversation_id": conversation_id, "content_id": content_id}
        await self._session.run(ADD_CHUNKS, **upload, **added)

    async def end_upload(self, conversation_id: str, blob: Blob) -> str:
        """Finish an upload, and return the content id of the blob's bytes.

        The upload's chunks are dropped if the blob was stored before. Raises NotFound if the
        conversation was deleted, or the upload was dropped meanwhile.
        """
        upload = {"conversation_id": conversation_id, "content_id": blob.content_id}
        row = await self._session.first(END_UPLOAD, **upload, **_blob_parameters([blob]))
        if row is None or not row["is_alive"]:
            raise NotFound.conversation(conversation_id)
        if row["content_id"] is None:
            facts = {"conversation_id": conversation_id}
            raise NotFound("The upload took too long and was dropped", facts)
        return str(row["content_id"])

    async def drop_upload(self, conversation_id: str, content_id: str) -> None:
        """Delete an unfinished upload and its chunks."""
        upload = {"conversation_id": UUID(conversation_id), "content_id": UUID(content_id)}
        if await self._session.first(DROP_UPLOAD, **upload) is not None:
            # The first statement does not see chunks added while it waited for the upload's lock.
            await self._session.run(DROP_CHUNKS, **upload)

    async def add_to_messages(
        self,
        conversation_id: str,
        stored: Sequence[tuple[Blob, Sequence[Chunk]]],
        uses: Sequence[tuple[str, int]],
    ) -> None:
        """Store blobs with their chunks, and which blob is used at which seq.

        The conversation must be locked.
        """
        # The same order in every statement prevents deadlocks.
        ordered = sorted(stored, key=lambda pair: pair[0].id)
        await self._session.run(
            ADD_TO_MESSAGES,
            conversation_id=UUID(conversation_id),
            **_blob_parameters([blob for blob, _ in ordered]),
            **_chunk_parameters(
                [(blob.content_id, chunk) for blob, chunks in ordered for chunk in chunks]
            ),
            use_ids=[ref for ref, _ in uses],
            use_seqs=[seq for _, seq in uses],
        )

    async def attach(self, conversation_id: str, refs: Sequence[str]) -> None:
        """Mark blobs as referred to by messages; the conversation must be locked."""
        await self._session.run(ATTACH, conversation_id=UUID(conversation_id), refs=list(refs))

    async def chunks(
        self, conversation_id: str, content_id: str, first: int, count: int
    ) -> list[Chunk]:
        """Return up to `count` chunks from number `first` on, in order."""
        content = {"conversation_id": conversation_id, "content_id": content_id}
        rows = await self._session.all(CHUNKS, **content, first=first, count=count)
        return [read(Chunk, row) for row in rows]

    async def holds_content(self, conversation_id: str, content_id: str) -> bool:
        """Whether a blob that is not collected or an unfinished upload has this id."""
        content = {"conversation_id": conversation_id, "content_id": content_id}
        row = await self._session.first(HOLDS_CONTENT, **content)
        return row is not None and row["is_held"]


def _blob_parameters(blobs: Sequence[Blob]) -> dict[str, Any]:
    columns = {
        f"new_{name}": [getattr(blob, name.removeprefix("blob_")) for blob in blobs]
        for name in _NEW_BLOB
    }
    columns["new_content_id"] = [UUID(blob.content_id) for blob in blobs]
    for name in ("media_type", "tool_name", "tool_call_id"):
        columns[f"new_{name}"] = [_sendable(getattr(blob, name)) for blob in blobs]
    return columns


def _chunk_parameters(chunks: Sequence[tuple[str, Chunk]]) -> dict[str, Any]:
    return {
        "chunk_content_id": [UUID(content_id) for content_id, _ in chunks],
        **{f"chunk_{name}": [getattr(chunk, name) for _, chunk in chunks] for name in _CHUNK},
    }


def _sendable(text: str | None) -> str | None:
    return sendable(text) if text is not None else None
