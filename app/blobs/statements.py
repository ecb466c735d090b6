"""SQL statements for blobs, their chunks and uploads.

1. Equal bytes are one blob: the first to store them sets the content id; chunks stored later for
   the same blob are dropped [tool-output.same-content-once].
2. A collected blob keeps its row. Stored again, it takes the new content id and is readable again.
3. A statement that adds chunks locks the conversation's head or the upload's row FOR KEY SHARE. A
   collection and a deletion lock those rows, so that no chunks are left behind.
4. Only the statement that deletes an upload's row may end the upload or drop its chunks.
"""

from __future__ import annotations

from app.database.connections import Statement
from app.database.conversation_tables import NOT_EXPIRED

_BLOB_COLUMNS = """blob_id AS id, content_id, byte_size, line_count, sha256, media_type,
            tool_name, tool_call_id, object_key, attached, created_at, collected_at"""

_CONVERSATION = "conversation_id = :conversation_id"
_CONTENT = f"{_CONVERSATION} AND content_id = :content_id"
_REPLACE_IF_COLLECTED = ",\n                ".join(
    f"""{column} = CASE
                    WHEN stored.collected_at IS NULL THEN stored.{column} ELSE excluded.{column}
                END"""
    for column in ("content_id", "media_type", "tool_name", "tool_call_id", "object_key")
)


_CHUNK_COLUMNS = "content_id, number, start, newlines, size, data, object_start, object_size"


def _insert_chunks(source: str) -> str:
    """Return an INSERT of chunks; it needs a row of the CTE in `source`, such as `upload, `."""
    return f"""INSERT INTO blob_chunks (conversation_id, {_CHUNK_COLUMNS})
            SELECT :conversation_id, chunk.*
            FROM {source}unnest(
                CAST(:chunk_contents AS uuid[]), CAST(:chunk_number AS integer[]),
                CAST(:chunk_start AS bigint[]), CAST(:chunk_newlines AS bigint[]),
                CAST(:chunk_size AS integer[]), CAST(:chunk_data AS bytea[]),
                CAST(:chunk_object_start AS bigint[]), CAST(:chunk_object_size AS integer[])
            ) AS chunk ({_CHUNK_COLUMNS})"""


_INSERT_BLOB = """INSERT INTO blobs AS stored (
                conversation_id, blob_id, content_id, byte_size, line_count, sha256, media_type,
                tool_name, tool_call_id, object_key, attached
            )"""
# Storing an unattached blob again renews its age.
_OR_RENEW = f"""ON CONFLICT (conversation_id, blob_id) DO UPDATE
            SET {_REPLACE_IF_COLLECTED},
                created_at = CASE
                    WHEN stored.attached AND stored.collected_at IS NULL THEN stored.created_at
                    ELSE excluded.created_at
                END,
                attached = stored.attached OR excluded.attached,
                collected_at = NULL
            RETURNING stored.content_id"""


def _blobs_stored(source: str, attached: str) -> str:
    """Return a CTE that stores blobs; it needs a row of the CTE in `source`, as `ended, `."""
    return f"""blobs_stored AS (
            {_INSERT_BLOB}
            SELECT :conversation_id, blob.*, {attached}
            FROM {source}unnest(
                CAST(:blob_ids AS text[]), CAST(:blob_contents AS uuid[]),
                CAST(:blob_sizes AS bigint[]), CAST(:blob_lines AS bigint[]),
                CAST(:blob_hashes AS text[]), CAST(:blob_types AS text[]),
                CAST(:blob_tools AS text[]), CAST(:blob_calls AS text[]),
                CAST(:blob_keys AS text[])
            ) AS blob
            {_OR_RENEW}
        )"""


ADD_TO_MESSAGES = Statement(
    f"""
        WITH {_blobs_stored("", "true")}, chunks_stored AS (
            {_insert_chunks("")}
            WHERE chunk.content_id IN (SELECT content_id FROM blobs_stored)
            ON CONFLICT DO NOTHING
        )
        INSERT INTO blob_uses (conversation_id, blob_id, seq)
        SELECT :conversation_id, used.*
        FROM unnest(CAST(:use_ids AS text[]), CAST(:use_seqs AS bigint[])) AS used
        ON CONFLICT DO NOTHING
        """
)
BEGIN_UPLOAD = Statement(
    f"""
        WITH alive AS (
            SELECT h.conversation_id
            FROM heads h
            JOIN conversations c ON c.conversation_id = h.conversation_id
            WHERE h.conversation_id = :conversation_id
                AND c.tenant_id = :tenant_id AND {NOT_EXPIRED}
            FOR KEY SHARE OF h
        )
        INSERT INTO blob_uploads (conversation_id, content_id, tenant_id)
        SELECT conversation_id, :content_id, :tenant_id FROM alive
        """
)
ADD_CHUNKS = Statement(
    f"""
        WITH upload AS (
            SELECT content_id FROM blob_uploads
            WHERE {_CONTENT} FOR KEY SHARE
        )
        {_insert_chunks("upload, ")}
        """
)
END_UPLOAD = Statement(
    f"""
        WITH alive AS (
            SELECT conversation_id FROM heads
            WHERE {_CONVERSATION} FOR KEY SHARE
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
        """
)
DROP_UPLOAD = Statement(
    f"""
        WITH ended AS (
            DELETE FROM blob_uploads WHERE {_CONTENT}
            RETURNING content_id
        ), dropped AS (
            DELETE FROM blob_chunks c USING ended
            WHERE c.conversation_id = :conversation_id AND c.content_id = ended.content_id
        )
        SELECT content_id FROM ended
        """,
    is_long=True,
)
DROP_CHUNKS = Statement(
    f"""
        DELETE FROM blob_chunks WHERE {_CONTENT}
        """,
    is_long=True,
)
ATTACH = Statement(
    f"""
        UPDATE blobs SET attached = true
        WHERE {_CONVERSATION}
            AND blob_id = ANY (CAST(:refs AS text[])) AND NOT attached
        """
)

FIND = Statement(
    f"""
        SELECT {_BLOB_COLUMNS} FROM blobs
        WHERE {_CONVERSATION}
            AND blob_id = ANY (CAST(:refs AS text[]))
        """
)
PAGE = Statement(
    f"""
        SELECT {_BLOB_COLUMNS} FROM blobs
        WHERE {_CONVERSATION} AND collected_at IS NULL
            AND (CAST(:before AS text) IS NULL OR content_id < (
                SELECT last.content_id FROM blobs last
                WHERE last.conversation_id = :conversation_id
                    AND last.blob_id = CAST(:before AS text)
            ))
        ORDER BY content_id DESC LIMIT :limit
        """
)
CHUNKS = Statement(
    f"""
        SELECT number, start, newlines, size, data, object_start, object_size FROM blob_chunks
        WHERE {_CONTENT}
            AND number >= CAST(:first AS bigint)
            AND number < CAST(:first AS bigint) + CAST(:count AS bigint)
        ORDER BY number
        """
)
CHUNK_BEFORE_LINE = Statement(
    f"""
        SELECT number, newlines FROM blob_chunks
        WHERE {_CONTENT}
            AND newlines < CAST(:line AS bigint)
        ORDER BY newlines DESC, number DESC LIMIT 1
        """
)

# Messages outside the active window are not compacted, even between compacted ones.
# `width_bucket` is odd for a seq inside one of a part's spans.
COLLECTABLE = Statement(
    f"""
        WITH hidden AS (
            SELECT used.blob_id
            FROM heads h
            JOIN blob_uses used ON used.conversation_id = h.conversation_id
            WHERE CAST(:compacted AS boolean) AND h.span_start IS NOT NULL
                AND h.conversation_id = :conversation_id
                AND used.conversation_id = :conversation_id
            GROUP BY used.blob_id
            HAVING bool_and(
                used.seq >= h.span_start AND used.seq < h.span_end AND used.seq <> ALL (h.kept)
                AND used.seq >= h.since
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
        """
)
COLLECT = Statement(
    f"""
        WITH collected AS (
            UPDATE blobs SET collected_at = statement_timestamp()
            WHERE {_CONVERSATION}
                AND blob_id = ANY (CAST(:refs AS text[])) AND collected_at IS NULL
            RETURNING content_id
        )
        DELETE FROM blob_chunks c USING collected
        WHERE c.conversation_id = :conversation_id AND c.content_id = collected.content_id
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
                ORDER BY created_at LIMIT :limit
            ) UNION (
                SELECT conversation_id FROM blob_uploads
                WHERE begun_at < CAST(:uploaded_before AS timestamptz)
                ORDER BY begun_at LIMIT :limit
            ) UNION (
                SELECT conversation_id FROM heads
                WHERE view_version > swept_version AND compaction_id IS NOT NULL
                LIMIT :limit
            )
        ) AS found
        JOIN conversations c ON c.conversation_id = found.conversation_id
        LIMIT :limit
        """
)
STALE_UPLOADS = Statement(
    f"""
        SELECT content_id FROM blob_uploads
        WHERE {_CONVERSATION}
            AND begun_at < CAST(:begun_before AS timestamptz)
        ORDER BY begun_at
        """
)
SWEPT = Statement(
    f"""
        UPDATE heads SET swept_version = view_version
        WHERE {_CONVERSATION} AND swept_version < view_version
        """
)
HOLDS_CONTENT = Statement(
    f"""
        SELECT EXISTS (
            SELECT FROM blobs
            WHERE {_CONTENT} AND collected_at IS NULL
        ) OR EXISTS (
            SELECT FROM blob_uploads
            WHERE {_CONTENT}
        ) AS is_held
        """
)
