"""Forks in PostgreSQL: the rows of a conversation, copied inside the database.

1. The copied rows of the source never change, except blobs, which may be collected and stored again
   with another content. One statement copies a blob with its chunks, if it is unchanged.
2. The source is not locked. Messages are copied last: their number shows whether the source was
   deleted meanwhile.
"""

from __future__ import annotations

from app.conversations.messages.repository import REDACTION_LOCK
from app.database.connections import Statement
from app.database.tables import NOT_EXPIRED, TABLES

COPIED = {
    table: tuple(TABLES[table].without("conversation_id", *own))
    for table, own in {
        "conversations": ("metadata", "own_id", "origin_id", "created_at", "updated_at"),
        "conversation_versions": (),
        "messages": (),
        "pins": (),
        "redactions": (),
        "compactions": ("undone_at",),
        "blobs": ("object_key",),
        "blob_uses": (),
        "blob_chunks": (),
    }.items()
}
"""The columns that are copied to a fork, by table: all but those that a fork has of its own."""


def _copied(table: str, rows: str, **others: str) -> str:
    """Return an INSERT of copies; `rows` begins with FROM, and names the table `source`."""
    columns = ", ".join((*COPIED[table], *others))
    values = ", ".join((*(f"source.{name}" for name in COPIED[table]), *others.values()))
    return f"""INSERT INTO {table} (conversation_id, {columns})
        SELECT CAST(:fork_id AS uuid), {values} {rows}"""


def _from(table: str) -> str:
    return f"FROM {table} source WHERE source.conversation_id = CAST(:source_id AS uuid)"


_ORIGIN = "coalesce(source.origin_id, source.conversation_id)"
_METADATA = "coalesce(:metadata, source.metadata)"
_OWN = {"metadata": _METADATA, "own_id": ":own_id", "origin_id": _ORIGIN}
_VERSIONS = """
    FROM added
    JOIN conversation_versions source ON source.conversation_id = CAST(:source_id AS uuid)
"""
ADD = Statement(
    f"""
        WITH source AS (
            SELECT * FROM conversations c
            WHERE c.conversation_id = CAST(:source_id AS uuid) AND c.tenant_id = :tenant_id
                AND {NOT_EXPIRED}
        ), added AS (
            {_copied("conversations", "FROM source", **_OWN)}
            ON CONFLICT (conversation_id) DO NOTHING
            RETURNING conversation_id
        ), versions AS (
            {_copied("conversation_versions", _VERSIONS)}
        ), head AS (
            INSERT INTO heads (conversation_id, counter)
            SELECT added.conversation_id, 'tokenizer' FROM added
        )
        SELECT EXISTS (SELECT FROM source) AS is_there, EXISTS (SELECT FROM added) AS is_added
        """
)
# An advisory lock orders the end of a fork and a redaction of a message that it has copied: a fork
# waits for no lock on its source's rows.
LOCK_REDACTIONS = Statement(f"SELECT pg_advisory_xact_lock_shared({REDACTION_LOCK})")
REDACTED_VERSION = Statement(
    "SELECT redacted_version FROM heads WHERE conversation_id = :conversation_id"
)
REFS = Statement(
    """
        SELECT DISTINCT blob_id FROM blob_uses
        WHERE conversation_id = CAST(:source_id AS uuid) AND seq <= :through_seq
        """
)
_UNCHANGED = """
    FROM unnest(
        CAST(:refs AS text[]), CAST(:contents AS uuid[]), CAST(:keys AS text[]),
        CAST(:collected AS boolean[])
    ) AS item (ref, content_id, object_key, is_collected)
    JOIN blobs source ON source.conversation_id = CAST(:source_id AS uuid)
        AND source.blob_id = item.ref AND source.content_id = item.content_id
        AND (source.collected_at IS NOT NULL) = item.is_collected
"""
_CHUNKS = """
    FROM copied
    JOIN blob_chunks source ON source.conversation_id = CAST(:source_id AS uuid)
        AND source.content_id = copied.content_id
"""
COPY_BLOBS = Statement(
    f"""
        WITH copied AS (
            {_copied("blobs", _UNCHANGED, object_key="item.object_key")}
            RETURNING content_id
        ), chunks AS ({_copied("blob_chunks", _CHUNKS)})
        SELECT count(*) AS copied FROM copied
        """,
    is_long=True,
)
# Of compactions a fork has those that were not undone, up to the one that it shows. That one is
# copied as well if it is undone meanwhile.
_ROWS = {
    **dict.fromkeys(("pins", "redactions", "blob_uses"), "source.seq <= :through_seq"),
    "compactions": "source.created_at <= :created_at AND source.span_end <= :through_seq + 1"
    " AND (source.undone_at IS NULL OR source.compaction_id = :compaction_id)",
    "messages": "source.seq > :after_seq AND source.seq <= :through_seq ORDER BY source.seq",
}
COPIES = {
    table: Statement(_copied(table, f"{_from(table)} AND {rows}"), is_long=True)
    for table, rows in _ROWS.items()
}
