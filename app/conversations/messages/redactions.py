"""Redaction: the content of a message is replaced by a tombstone, for good.

1. The message and all that was made of its content change in one transaction: log, search index,
   blobs, summaries, starts of epochs, snapshots. The view has a new version then, so that every
   process renders the next payload anew.
2. That transaction holds the lock of the state, against which every writer of copies is ordered:
   appends, compactions, new epochs, indexing and snapshots. An advisory lock orders it and forks,
   which lock no row of their source.
3. Copies of the message in forks have its id, seq and time. They are redacted afterwards, each
   conversation in a transaction of its own. A repeated request continues where an interrupted one
   has stopped.
4. Summaries made since the first one that covers the message may be made of that one, so their
   texts are deleted as well. The item of a provider's compaction is in the message after those that
   it stands for: without that message, or one of those, it is not sent any more.
5. A tombstone has the role, format and tool calls of its message, so that pairs and payloads stay
   valid: the ids and names of calls stay, their arguments and all other content are gone. It keeps
   the token count without reasoning, which running totals of later rows contain.
6. Objects are deleted after the rows that name them; after a failure a worker does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from app.blobs.stored_output import inline_output
from app.common import json_text
from app.common.answer_schemas import answer
from app.common.errors import NotFound
from app.conversations.events import EventType
from app.conversations.messages.repository import REDACTION_LOCK
from app.conversations.messages.row import LogRow
from app.conversations.messages.stored_results import StoredResults
from app.conversations.pressure import make_compaction_due
from app.conversations.settings_resolver import SettingsResolver
from app.conversations.turns import MAX_PLACEHOLDER_TOKENS
from app.conversations.view import Span
from app.database.connections import Statement
from app.database.sql import equal, insert, read
from app.formats import LOG_PROVIDER, PROVIDERS
from app.formats.media import clean
from app.formats.message import LOG_FORMAT, Role
from app.repositories import Database

REDACTED = "[redacted]"
"""The text of a tombstone."""
REDACTED_SUMMARY = "(the summary told of a message that was redacted)"
"""The summary of a receipt or a snapshot that used a redacted message."""
_CONVERSATION = equal("conversation_id")
_MESSAGE = equal("conversation_id", "seq")
_EPOCH = equal("conversation_id", "epoch_id")

# A fork names the conversation that all of its forks come from.
COPIES = Statement("""
    WITH own AS (
        SELECT coalesce(origin_id, conversation_id) AS origin_id
        FROM conversations WHERE conversation_id = :conversation_id
    ), family AS (
        SELECT origin_id AS conversation_id FROM own
        UNION
        SELECT c.conversation_id FROM own JOIN conversations c ON c.origin_id = own.origin_id
    )
    SELECT m.conversation_id
    FROM family
    JOIN messages m ON m.conversation_id = family.conversation_id AND m.seq = :seq
    WHERE m.message_id = :message_id AND m.created_at = :created_at AND NOT EXISTS (
        SELECT FROM redactions done
        WHERE done.conversation_id = m.conversation_id AND done.seq = :seq
    )
    LIMIT 100
""")
LOCK_FORKS = Statement(f"SELECT pg_advisory_xact_lock({REDACTION_LOCK})")
LOCK = Statement(f"SELECT compaction_id, view_version FROM states WHERE {_CONVERSATION} FOR UPDATE")
REPLACE = Statement(f"""
    UPDATE messages
    SET body = :body, chat_item = :chat_item,
        output = :output, reasoning_tokens = 0, needs_body = false
    WHERE {_MESSAGE}
        AND NOT EXISTS (SELECT FROM redactions WHERE {_MESSAGE})
""")
# The words of the other messages of its block stay.
REMOVE_WORDS = Statement(f"""
    UPDATE message_words SET words = CAST(coalesce((
        SELECT string_agg(format('%L:%s', lexeme, array_to_string(others, ',')), ' ')
        FROM (
            SELECT lexeme, array_remove(positions, CAST(:seq - first_seq + 1 AS smallint)) AS others
            FROM unnest(words)
        ) AS kept
        WHERE cardinality(others) > 0
    ), '') AS tsvector)
    WHERE {_CONVERSATION} AND first_seq <= :seq AND first_seq + cardinality(sizes) > :seq
""")
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
                AND (hidden_start <= :seq AND hidden_end > :seq
                    OR trigger = 'provider' AND hidden_end = :seq)
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
SHOW_TOMBSTONE = Statement(f"""
    UPDATE states
    SET view_version = view_version + 1, view_cause = 'redacted',
        redacted_version = view_version + 1
    WHERE {_CONVERSATION}
""")
STARTS = Statement(f"SELECT epoch_id, start_json FROM epochs WHERE {_CONVERSATION}")
SET_START = Statement(f"UPDATE epochs SET start_json = :start_json WHERE {_EPOCH}")
DROP_SNAPSHOT_SUMMARIES = Statement(f"""
    WITH naming AS (
        SELECT s.tenant_id, s.snapshot_id
        FROM snapshot_parts p
        JOIN snapshots s ON s.tenant_id = p.tenant_id AND s.snapshot_id = p.snapshot_id
        WHERE p.conversation_id = :conversation_id AND p.spans[cardinality(p.spans)] > :seq
        ORDER BY s.snapshot_id
        FOR UPDATE OF s
    )
    UPDATE snapshots s SET summary = '{REDACTED_SUMMARY}'
    FROM naming WHERE s.tenant_id = naming.tenant_id AND s.snapshot_id = naming.snapshot_id
""")
_RECORDED = ("conversation_id", "seq", "message_id", "reason", "key_id")
RECORD = Statement(f"""
    {insert("redactions", *_RECORDED, created_at="clock_timestamp()")}
    ON CONFLICT (conversation_id, seq) DO NOTHING
""")
FIND = Statement(f"""
    SELECT message_id, seq, created_at AS redacted_at, reason, key_id
    FROM redactions WHERE {_MESSAGE}
""")


@answer()
@dataclass(frozen=True, slots=True)
class Redacted:
    """The record of a redaction."""

    message_id: str
    """Id of the message."""
    seq: int
    """Its position in the log."""
    redacted_at: datetime
    """When it was redacted first."""
    reason: str | None
    """As the first request gave it."""
    key_id: str | None
    """The API key of that request; null while the service has no keys."""
    conversation_count: int
    """In how many conversations this request redacted it, forks included; 0 when it was redacted
    everywhere before."""


@dataclass(eq=False, repr=False)
class RedactionService:
    """Redacts messages."""

    _database: Database
    _resolver: SettingsResolver
    _outputs: StoredResults

    async def redact(
        self,
        tenant_id: str,
        conversation_id: str,
        message_id: str,
        reason: str | None,
        key_id: str | None,
    ) -> Redacted:
        """Redact a message and its copies in forks; raises NotFound.

        A message that is redacted already keeps its record.
        """
        async with self._database.session() as session:
            await session.conversations.get(tenant_id, conversation_id)
            messages = await session.log.by_ids(conversation_id, [message_id])
            if not messages:
                raise NotFound.message(message_id)
            seq, created_at = messages[0].seq, messages[0].created_at
            (row,) = await session.contexts.rows(
                conversation_id, [Span(seq, seq + 1)], as_chat=False
            )
        record = {"message_id": message_id, "seq": seq, "reason": reason, "key_id": key_id}
        family = {"conversation_id": conversation_id, "seq": seq, "message_id": message_id}
        tombstone, count, copies, found = tombstone_of(row), 0, [conversation_id], None
        while copies:
            for copy_id in copies:
                count += await self._redact_one(copy_id, record, tombstone)
            async with self._database.session() as session:
                rows = await session.session.all(COPIES, **family, created_at=created_at)
                copies = [str(row["conversation_id"]) for row in rows]
                found = await session.session.first(FIND, conversation_id=conversation_id, seq=seq)
        if found is None:  # the conversation was deleted meanwhile
            raise NotFound.conversation(conversation_id)
        return read(Redacted, found, conversation_count=count)

    async def _redact_one(
        self, conversation_id: str, record: dict[str, Any], tombstone: dict[str, str | None]
    ) -> bool:
        """Redact the message in one conversation; False if it was redacted or is gone."""
        message = {"conversation_id": conversation_id, "seq": record["seq"]}
        async with self._database.transaction() as repositories:
            session = repositories.session
            state = await session.first(LOCK, conversation_id=conversation_id)
            if state is None:
                return False
            await session.first(LOCK_FORKS, conversation_id=conversation_id)
            if not await session.run(REPLACE, **message, **tombstone):
                return False
            await session.run(REMOVE_WORDS, **message)
            blobs = await session.all(REMOVE_BLOBS, **message)
            receipts = await session.all(DROP_SUMMARIES, **message)
            await session.run(DROP_SNAPSHOT_SUMMARIES, **message)
            loses_summary = state["compaction_id"] in [row["compaction_id"] for row in receipts]
            if loses_summary:  # without it all is shown, until it is compacted again
                await repositories.contexts.show_whole_log(conversation_id, state["view_version"])
            await session.run(SHOW_TOMBSTONE, conversation_id=conversation_id)
            for row in await session.all(STARTS, conversation_id=conversation_id):
                start = json_text.loads(row["start_json"])
                if not start["view"]["summaries"] and start["view"]["retain"] is None:
                    continue
                start["view"] |= {"summaries": [], "retain": None}
                at = {"conversation_id": conversation_id, "epoch_id": row["epoch_id"]}
                await session.run(SET_START, **at, start_json=json_text.dumps(start))
            await session.run(RECORD, conversation_id=conversation_id, **record)
            await repositories.events.add(conversation_id, EventType.REDACTED, **record)
            if loses_summary:
                await make_compaction_due(repositories, conversation_id)
        await self._outputs.delete_objects(*(row["object_key"] for row in blobs))
        return True


def tombstone_of(row: LogRow) -> dict[str, str | None]:
    """Return the columns of a stored message's tombstone (rule 5)."""
    provider = PROVIDERS[row.format]
    raw = provider.emptied(row.message(), REDACTED)
    (message,) = provider.parse(raw, "")
    if row.role is Role.TOOL:
        message = replace(message, tool_call_id=row.call_ids[0])
    chat_item = output = None
    if row.format is not LOG_FORMAT or not LOG_PROVIDER.is_faithful(raw, message):
        chat_item = json_text.dump_payload(
            LOG_PROVIDER.wire(LOG_PROVIDER.for_payload(clean(message)))
        ).decode()
    if row.role is Role.TOOL and row.tokens > MAX_PLACEHOLDER_TOKENS:
        output = inline_output(message).as_json()  # clearing relies on it
    return {"body": json_text.dumps(raw), "chat_item": chat_item, "output": output}
