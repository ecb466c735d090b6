"""Forks in PostgreSQL: the rows of a conversation, copied inside the database.

1. The copied rows of the source never change, except blobs, which may be collected and stored again
   with another content. One statement copies a blob with its chunks, if it is unchanged.
2. The source is not locked. Messages are copied last: their number shows whether the source was
   deleted meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.blobs.blobs import Blob
from app.common.errors import NotFound
from app.conversations.conversation import ConversationState
from app.conversations.messages.statements import REDACTION_LOCK
from app.database.connections import Statement
from app.database.repository import Repository
from app.database.tables import TABLES

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


def _copied(table: str, alias: str = "", *others: tuple[str, str]) -> str:
    """Return an INSERT of copies into a table; `others` are further columns and their values."""
    prefix = f"{alias}." if alias else ""
    into = ("conversation_id", *COPIED[table], *(column for column, _ in others))
    values = (
        "CAST(:fork_id AS uuid)",
        *(f"{prefix}{column}" for column in COPIED[table]),
        *(value for _, value in others),
    )
    return f"INSERT INTO {table} ({', '.join(into)}) SELECT {', '.join(values)}"


_METADATA = ("metadata", "coalesce(:metadata, source.metadata)")
_OWN_ID = ("own_id", ":own_id")
_ORIGIN = ("origin_id", "coalesce(source.origin_id, source.conversation_id)")
ADD = Statement(
    f"""
        WITH source AS (
            SELECT * FROM conversations
            WHERE conversation_id = CAST(:source_id AS uuid) AND tenant_id = :tenant_id
                AND (expires_at IS NULL OR expires_at > now())
        ), added AS (
            {_copied("conversations", "source", _METADATA, _OWN_ID, _ORIGIN)} FROM source
            ON CONFLICT (conversation_id) DO NOTHING
            RETURNING conversation_id
        ), versions AS (
            {_copied("conversation_versions", "v")}
            FROM added
            JOIN conversation_versions v ON v.conversation_id = CAST(:source_id AS uuid)
        ), head AS (
            INSERT INTO heads (conversation_id, counter)
            SELECT added.conversation_id, h.counter
            FROM added
            JOIN heads h ON h.conversation_id = CAST(:source_id AS uuid)
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

COPY_BLOBS = Statement(
    f"""
        WITH copied AS (
            {_copied("blobs", "b", ("object_key", "item.object_key"))}
            FROM unnest(
                CAST(:refs AS text[]), CAST(:contents AS uuid[]), CAST(:keys AS text[]),
                CAST(:collected AS boolean[])
            ) AS item (ref, content_id, object_key, is_collected)
            JOIN blobs b ON b.conversation_id = CAST(:source_id AS uuid) AND b.blob_id = item.ref
            WHERE b.content_id = item.content_id
                AND (b.collected_at IS NOT NULL) = item.is_collected
            RETURNING content_id
        ), chunks AS (
            {_copied("blob_chunks", "c")}
            FROM copied
            JOIN blob_chunks c ON c.conversation_id = CAST(:source_id AS uuid)
                AND c.content_id = copied.content_id
        )
        SELECT count(*) AS copied FROM copied
        """,
    is_long=True,
)


def _copy_through(table: str) -> Statement:
    """Return a copy of the rows of a table through a seq."""
    return Statement(
        f"""
        {_copied(table)} FROM {table}
        WHERE conversation_id = CAST(:source_id AS uuid) AND seq <= :through_seq
        """,
        is_long=True,
    )


COPY_MARKS = {table: _copy_through(table) for table in ("pins", "redactions", "blob_uses")}
CHAIN = Statement(
    """
        WITH RECURSIVE chain AS (
            SELECT compaction_id, parent_id FROM compactions
            WHERE conversation_id = CAST(:source_id AS uuid) AND compaction_id = :compaction_id
            UNION ALL
            SELECT parent.compaction_id, parent.parent_id
            FROM chain
            JOIN compactions parent ON parent.conversation_id = CAST(:source_id AS uuid)
                AND parent.compaction_id = chain.parent_id
        )
        SELECT compaction_id FROM chain
        """,
    is_long=True,
)
# A compaction of the chain that is undone meanwhile is copied as well.
COPY_COMPACTIONS = Statement(
    f"""
        {_copied("compactions")} FROM compactions
        WHERE conversation_id = CAST(:source_id AS uuid)
            AND compaction_id = ANY (CAST(:compaction_ids AS uuid[]))
        """,
    is_long=True,
)

COPY_MESSAGES = Statement(
    f"""
        {_copied("messages", "m")} FROM messages m
        WHERE m.conversation_id = CAST(:source_id AS uuid)
            AND m.seq > :after_seq AND m.seq <= :through_seq
        ORDER BY m.seq
        """,
    is_long=True,
)

# The sums of the log are those of its last row; promoted tools are promoted for one turn.
SET_HEAD = Statement(
    """
        UPDATE heads h
        SET head_seq = :head_seq,
            turns = coalesce(last.turn, 0), tokens = coalesce(last.total_tokens, 0),
            resume_at = :resume_at, promoted = CASE WHEN :promoted_turn <= last.turn
                THEN :promoted ELSE '{}' END,
            promoted_turn = CASE WHEN :promoted_turn <= last.turn
                THEN :promoted_turn ELSE 0 END,
            window_seconds = :window_seconds, cleared_at = :cleared_at, cleared_seq = :cleared_seq,
            newest_at = greatest(
                last.newest_at, :cleared_at + interval '1 microsecond')
        FROM (SELECT 1) AS this
        LEFT JOIN LATERAL (
            SELECT m.turn, m.total_tokens, coalesce(m.at, m.created_at) AS newest_at
            FROM messages m WHERE m.conversation_id = CAST(:fork_id AS uuid)
            ORDER BY m.seq DESC LIMIT 1
        ) last ON true
        WHERE h.conversation_id = CAST(:fork_id AS uuid)
        """
)


class ForkRepository(Repository):
    """Statements that copy a conversation into another one."""

    async def add(
        self,
        tenant_id: str,
        source_id: str,
        fork_id: str,
        metadata: str | None,
        own_id: str | None = None,
    ) -> bool:
        """Create a conversation with an empty log and the settings of the source.

        `metadata` replaces the metadata of the source. Returns False for a used key; raises
        NotFound for an unknown source.
        """
        row = await self._session.first(
            ADD,
            tenant_id=tenant_id,
            source_id=source_id,
            fork_id=fork_id,
            metadata=metadata,
            own_id=own_id,
        )
        if row is None or not row["is_there"]:
            raise NotFound.conversation(source_id)
        return bool(row["is_added"])

    async def refs(self, source_id: str, through_seq: int) -> list[str]:
        """Return the ids of the blobs that messages up to a seq refer to."""
        rows = await self._session.all(REFS, source_id=source_id, through_seq=through_seq)
        return [row["blob_id"] for row in rows]

    async def copy_blobs(self, source_id: str, fork_id: str, blobs: Sequence[Blob]) -> bool:
        """Copy blobs with their chunks, under the object keys of the copies.

        Returns False if one of them has changed.
        """
        row = await self._session.first(
            COPY_BLOBS,
            source_id=source_id,
            fork_id=fork_id,
            refs=[blob.id for blob in blobs],
            contents=[blob.content_id for blob in blobs],
            keys=[blob.object_key for blob in blobs],
            collected=[blob.collected_at is not None for blob in blobs],
        )
        return row is not None and row["copied"] == len(blobs)

    async def copy_pins_and_compactions(
        self, source_id: str, fork_id: str, through_seq: int, compaction_id: str | None
    ) -> None:
        """Copy pins and uses of blobs up to a seq, and a compaction with those before it."""
        keys = {"source_id": source_id, "fork_id": fork_id}
        for statement in COPY_MARKS.values():
            await self._session.run(statement, **keys, through_seq=through_seq)
        if compaction_id is None:
            return
        chain = await self._session.all(CHAIN, source_id=source_id, compaction_id=compaction_id)
        ids = [row["compaction_id"] for row in chain]
        await self._session.run(COPY_COMPACTIONS, **keys, compaction_ids=ids)

    async def copy_messages(
        self, source_id: str, fork_id: str, after_seq: int, through_seq: int
    ) -> int:
        """Copy the messages after one seq and up to another; return their number."""
        return await self._session.run(
            COPY_MESSAGES,
            source_id=source_id,
            fork_id=fork_id,
            after_seq=after_seq,
            through_seq=through_seq,
        )

    async def lock_source(self, source_id: str) -> int | None:
        """Wait for redactions in the source and hold up new ones, without locking its rows.

        Returns the view version of the last one, None for a deleted source.
        """
        key = {"conversation_id": source_id}
        await self._session.first(LOCK_REDACTIONS, **key)
        row = await self._session.first(REDACTED_VERSION, **key)
        return row["redacted_version"] if row is not None else None

    async def set_head(self, fork_id: str, state: ConversationState) -> None:
        """Set the head of a copied log, without its window and its view.

        Turns, tokens and the newest time are those of the last message of the log. Tools stay
        promoted if the log has the turn that promoted them.
        """
        await self._session.run(
            SET_HEAD,
            fork_id=fork_id,
            head_seq=state.head_seq,
            resume_at=state.resume_at_tokens,
            promoted=list(state.promoted),
            promoted_turn=state.promoted_turn,
            window_seconds=state.window_seconds,
            cleared_at=state.cleared_at,
            cleared_seq=state.cleared_seq,
        )
