"""Redaction in PostgreSQL: a message's content is deleted wherever this database has it.

1. All statements but `COPIES` are about one conversation. They run in a transaction that has locked
   its head, against which every writer of copies is ordered: appends, compactions, new epochs,
   indexing and snapshots. An advisory lock orders it and forks, which lock no row of their source.
2. Summaries made since the first one that covers the message may be made of that one, so their
   texts are deleted as well.
3. The item of a provider's compaction is in the message after those that it stands for: without
   that message, or one of those, it is not sent any more.
4. Copies of the message in forks have its id, seq and time.
"""

from __future__ import annotations

from typing import Any

from app.common import json_text
from app.conversations.messages.redaction import NewRedaction, Redaction
from app.conversations.messages.tombstones import REDACTED_SUMMARY, Tombstone
from app.database.connections import Statement
from app.database.repository import Repository
from app.database.sql import equal, fields_of, insert, read

_CONVERSATION = equal("conversation_id")
_MESSAGE = equal("conversation_id", "seq")

# A fork names the conversation that all of its forks come from.
COPIES = Statement(
    """
        WITH message AS (
            SELECT coalesce(c.origin_id, c.conversation_id) AS origin_id, m.created_at
            FROM conversations c
            JOIN messages m ON m.conversation_id = c.conversation_id
                AND m.seq = :seq
            WHERE c.conversation_id = :conversation_id
        ), family AS (
            SELECT origin_id AS conversation_id FROM message
            UNION
            SELECT c.conversation_id
            FROM message JOIN conversations c ON c.origin_id = message.origin_id
        )
        SELECT m.conversation_id
        FROM message CROSS JOIN family
        JOIN messages m ON m.conversation_id = family.conversation_id
            AND m.seq = :seq
        WHERE m.message_id = :message_id AND m.created_at = message.created_at
            AND NOT EXISTS (
                SELECT FROM redactions done
                WHERE done.conversation_id = m.conversation_id AND done.seq = :seq
            )
        ORDER BY m.conversation_id LIMIT :limit
        """
)
REDACTION_LOCK = "hashtextextended('redaction:' || CAST(CAST(:conversation_id AS uuid) AS text), 0)"
"""The key of the advisory lock that a redaction takes against forks that end."""
LOCK_FORKS = Statement(f"SELECT pg_advisory_xact_lock({REDACTION_LOCK})")
LOCK = Statement(f"SELECT conversation_id FROM heads WHERE {_CONVERSATION} FOR UPDATE")
REPLACE = Statement(
    f"""
        UPDATE messages
        SET body = :body, fragment = :fragment,
            output = :output, reasoning_tokens = 0, has_media = false
        WHERE {_MESSAGE}
            AND NOT EXISTS (SELECT FROM redactions WHERE {_MESSAGE})
        """
)
# A message without a row is not indexed yet, and will be as its tombstone.
CLEAR_WORDS = Statement(f"UPDATE message_words SET words = '' WHERE {_MESSAGE}")
# A blob that another message refers to as well stays with that one.
REMOVE_BLOBS = Statement(
    f"""
        WITH unused AS (
            DELETE FROM blob_uses WHERE {_MESSAGE} RETURNING blob_id
        ), removed AS (
            DELETE FROM blobs b USING unused
            WHERE b.conversation_id = :conversation_id AND b.blob_id = unused.blob_id
                AND NOT EXISTS (
                    SELECT FROM blob_uses other
                    WHERE other.conversation_id = :conversation_id
                        AND other.blob_id = b.blob_id AND other.seq <> :seq
                )
            RETURNING b.content_id, b.object_key
        ), chunks AS (
            DELETE FROM blob_chunks c USING removed
            WHERE c.conversation_id = :conversation_id AND c.content_id = removed.content_id
        )
        SELECT object_key FROM removed
        """,
    is_long=True,
)
DROP_SUMMARIES = Statement(
    f"""
        WITH covering AS (
            SELECT compaction_id FROM compactions
            WHERE {_CONVERSATION} AND summary <> ''
                AND (span_start <= :seq AND span_end > :seq
                    OR trigger = 'provider' AND span_end = :seq)
            ORDER BY compaction_id LIMIT 1
        )
        UPDATE compactions made
        SET summary = CASE WHEN made.summary = '' THEN '' ELSE '{REDACTED_SUMMARY}' END,
            view = '', made = '[]', undone_at = least(made.undone_at, statement_timestamp())
        FROM covering
        WHERE made.conversation_id = :conversation_id
            AND made.compaction_id >= covering.compaction_id
        RETURNING made.compaction_id
        """,
    is_long=True,
)
# Without its summaries the whole window is shown, until it is compacted again.
SHOW_TOMBSTONE = Statement(
    f"""
        WITH shown AS (
            SELECT compaction_id = ANY (CAST(:dropped AS uuid[])) IS TRUE AS loses_summary
            FROM heads WHERE {_CONVERSATION}
        )
        UPDATE heads h
        SET view_version = view_version + 1, view_cause = 'redacted',
            redacted_version = view_version + 1,
            compaction_id = CASE WHEN NOT loses_summary THEN compaction_id END,
            span_start = CASE WHEN NOT loses_summary THEN span_start END,
            span_end = CASE WHEN NOT loses_summary THEN span_end END,
            kept = CASE WHEN loses_summary THEN '{{}}' ELSE kept END,
            trimmed_through = CASE WHEN loses_summary THEN 0 ELSE trimmed_through END,
            summary_tokens = CASE WHEN loses_summary THEN 0 ELSE summary_tokens END,
            hidden_tokens = CASE WHEN loses_summary THEN outside_tokens ELSE hidden_tokens END,
            hidden_messages = CASE WHEN loses_summary THEN outside_messages
                ELSE hidden_messages END,
            resume_at = CASE WHEN loses_summary THEN 0 ELSE resume_at END,
            failures = CASE WHEN loses_summary THEN 0 ELSE failures END
        FROM shown WHERE h.conversation_id = :conversation_id
        RETURNING loses_summary
        """
)
EPOCHS = Statement(
    f"""
        SELECT lane, epoch, frame FROM epochs
        WHERE {_CONVERSATION} AND (lane, epoch) > (:lane, :epoch)
        ORDER BY lane, epoch LIMIT :limit
        """
)
SET_FRAMES = Statement(
    """
        UPDATE epochs e SET frame = item.frame
        FROM unnest(CAST(:lanes AS text[]), CAST(:epochs AS bigint[]), CAST(:frames AS text[]))
            AS item (lane, epoch, frame)
        WHERE e.conversation_id = :conversation_id AND e.lane = item.lane AND e.epoch = item.epoch
        """
)
DROP_SNAPSHOT_SUMMARIES = Statement(
    f"""
        WITH naming AS (
            SELECT s.tenant_id, s.session_id
            FROM snapshot_parts p
            JOIN snapshots s ON s.tenant_id = p.tenant_id AND s.session_id = p.session_id
            WHERE p.conversation_id = :conversation_id AND p.spans[cardinality(p.spans)] > :seq
            ORDER BY s.session_id
            FOR UPDATE OF s
        )
        UPDATE snapshots s SET summary = '{REDACTED_SUMMARY}'
        FROM naming WHERE s.tenant_id = naming.tenant_id AND s.session_id = naming.session_id
        """
)
_RECORDED = ("conversation_id", "seq", "message_id", "reason", "key_id")
RECORD = Statement(
    f"""
        {insert("redactions", *_RECORDED, created_at="clock_timestamp()")}
        ON CONFLICT (conversation_id, seq) DO NOTHING
        """
)
FIND = Statement(
    f"SELECT seq, message_id, reason, key_id, created_at FROM redactions WHERE {_MESSAGE}"
)

_EPOCHS_PER_READ = 100


class RedactionRepository(Repository):
    """Deletes the content of messages."""

    async def copies(
        self, conversation_id: str, seq: int, message_id: str, limit: int
    ) -> list[str]:
        """Return conversations in which this message, or its copy by a fork, is not redacted."""
        message = {"conversation_id": conversation_id, "seq": seq, "message_id": message_id}
        rows = await self._session.all(COPIES, **message, limit=limit)
        return [str(row["conversation_id"]) for row in rows]

    async def find(self, conversation_id: str, seq: int) -> Redaction | None:
        """Return the record of a redaction, or None."""
        row = await self._session.first(FIND, conversation_id=conversation_id, seq=seq)
        return read(Redaction, row, redacted_at=row["created_at"]) if row is not None else None

    async def replace(self, conversation_id: str, seq: int, tombstone: Tombstone) -> bool:
        """Lock the conversation, and replace a message in its log and its search index.

        False for a message that is redacted already, and for a deleted conversation.
        """
        key = {"conversation_id": conversation_id, "seq": seq}
        if await self._session.first(LOCK, conversation_id=conversation_id) is None:
            return False
        await self._session.first(LOCK_FORKS, conversation_id=conversation_id)
        replaced = await self._session.run(REPLACE, **key, **fields_of(tombstone))
        if replaced:
            await self._session.run(CLEAR_WORDS, **key)
        return replaced == 1

    async def remove_blobs(self, conversation_id: str, seq: int) -> list[str]:
        """Delete the blobs that only this message refers to; return the keys of their objects."""
        rows = await self._session.all(REMOVE_BLOBS, conversation_id=conversation_id, seq=seq)
        return [row["object_key"] for row in rows if row["object_key"] is not None]

    async def drop_summaries(self, conversation_id: str, seq: int) -> bool:
        """Delete the summaries that used a message, and begin a new version of the view.

        Returns whether the shown summary was one of them: the whole window is shown then.
        """
        key = {"conversation_id": conversation_id, "seq": seq}
        rows = await self._session.all(DROP_SUMMARIES, **key)
        await self._session.run(DROP_SNAPSHOT_SUMMARIES, **key)
        dropped = [row["compaction_id"] for row in rows]
        return bool(
            await self._session.value(
                SHOW_TOMBSTONE, conversation_id=conversation_id, dropped=dropped
            )
        )

    async def drop_epoch_texts(self, conversation_id: str) -> None:
        """Delete the summaries from the starts of all epochs."""
        lane, epoch = "", 0
        while True:
            rows = await self._session.all(
                EPOCHS,
                conversation_id=conversation_id,
                lane=lane,
                epoch=epoch,
                limit=_EPOCHS_PER_READ,
            )
            if not rows:
                return
            changed = [
                (row["lane"], row["epoch"], frame)
                for row in rows
                if (frame := _without_texts(row["frame"])) != row["frame"]
            ]
            if changed:
                lanes, epochs, frames = zip(*changed, strict=True)
                await self._session.run(
                    SET_FRAMES,
                    conversation_id=conversation_id,
                    lanes=list(lanes),
                    epochs=list(epochs),
                    frames=list(frames),
                )
            lane, epoch = rows[-1]["lane"], rows[-1]["epoch"]

    async def record(self, conversation_id: str, new: NewRedaction) -> None:
        """Store the record of a redaction."""
        await self._session.run(RECORD, conversation_id=conversation_id, **fields_of(new))


def _without_texts(frame: str) -> str:
    """Return the start of an epoch without the texts of its summaries."""
    start: dict[str, Any] = json_text.loads(frame)
    view = start["view"]
    if not view.get("summaries") and not view.get("summary") and view.get("retain") is None:
        return frame
    emptied = [{**summary, "text": ""} for summary in view.get("summaries") or ()]
    view = view | {"retain": None} | ({"summaries": emptied} if "summaries" in view else {})
    if "summary" in view:
        view["summary"] = ""
    return json_text.dumps(start | {"view": view})
