"""The index of words: blocks of neighbouring messages, each a tsvector.

1. A row of `message_words` has the lexemes of up to BLOCK messages from `first_seq` on; the places
   of a lexeme are the messages that have it, from 1 on. `sizes` are their numbers of lexemes.
2. Rows have no gaps. So the last one tells how far the index reaches; it is written again until its
   block is full.
3. An append does not index: it notes the time on the head. The worker indexes what is older than
   INDEX_AFTER_SECONDS; a search in one conversation indexes the rest of it.
4. The lock of the head orders indexing with redactions and deletions, and lets appends pass.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from app.common import json_text
from app.conversations.messages.repository import STORED_COLUMNS, named_calls
from app.conversations.messages.row import StoredMessage, parse_stored
from app.conversations.rows import stored_message_from
from app.conversations.search.words import MAX_LEXEMES, lexemes, text_of
from app.database.connections import Session, Statement
from app.formats.message import FormatName
from app.repositories import Database

BLOCK: Final = 64
INDEX_AFTER_SECONDS: Final = 30.0
_READ_BYTES = 1_000_000  # of bodies, after which no other message is read for a block
_INDEXED_AT_ONCE = 100  # conversations that the worker indexes before it asks again
_log = logging.getLogger(__name__)


def _searched(rows: str) -> Statement:
    """Return a statement for messages, each with the calls of the message that it answers.

    These hold the tool of a result.
    """
    return Statement(f"""
        SELECT {STORED_COLUMNS}, call_ids, coalesce(late_at, at, created_at) AS said_at,
            calling.ids AS calling_ids, calling.names AS calling_names
        FROM ({rows}) AS found
        LEFT JOIN LATERAL (
            SELECT c.call_ids AS ids, c.call_names AS names FROM messages c
            WHERE c.conversation_id = :conversation_id AND c.seq < found.seq
                AND c.role <> 'tool' AND found.role = 'tool'
            ORDER BY c.seq DESC LIMIT 1
        ) calling ON true
        ORDER BY seq
    """)


# PostgreSQL reads the length of a body without the body.
FROM_SEQ = _searched(f"""
    SELECT * FROM (
        SELECT *, sum(octet_length(body)) OVER (ORDER BY seq) - octet_length(body) AS bytes_before
        FROM (
            SELECT * FROM messages
            WHERE conversation_id = :conversation_id AND seq >= :first_seq
            ORDER BY seq LIMIT {BLOCK}
        ) AS following
    ) AS sized
    WHERE bytes_before < {_READ_BYTES}
""")
BY_SEQS = _searched("""
    SELECT * FROM messages
    WHERE conversation_id = :conversation_id AND seq = ANY (:seqs) AND (
        octet_length(body) <= CAST(:most AS bigint) OR seq = ANY (CAST(:whole AS bigint[]))
    )
""")
PROGRESS = Statement("""
    SELECT h.head_seq, coalesce(w.first_seq, 1) AS first_seq,
        coalesce(cardinality(w.sizes), 0) AS messages
    FROM heads h
    LEFT JOIN LATERAL (
        SELECT first_seq, sizes FROM message_words
        WHERE conversation_id = :conversation_id ORDER BY first_seq DESC LIMIT 1
    ) w ON true
    WHERE h.conversation_id = :conversation_id
    FOR KEY SHARE OF h
""")
ADD = Statement("""
    INSERT INTO message_words AS w (conversation_id, first_seq, sizes, words)
    VALUES (:conversation_id, :first_seq, :sizes, :words)
    ON CONFLICT (conversation_id, first_seq) DO UPDATE
    SET sizes = excluded.sizes, words = excluded.words
    WHERE cardinality(excluded.sizes) > cardinality(w.sizes)
""")
UNINDEXED = Statement("""
    SELECT conversation_id FROM heads
    WHERE unindexed_at < now() - CAST(:seconds AS float8) * interval '1 second'
    ORDER BY unindexed_at LIMIT :limit
""")
SET_INDEXED = Statement("""
    UPDATE heads SET unindexed_at = NULL
    WHERE conversation_id = :conversation_id AND head_seq = :head_seq
        AND unindexed_at IS NOT NULL
""")


@dataclass(frozen=True, slots=True)
class SearchedMessage:
    """A message, and the name of the tool that made the result, where it is known.

    `said_at` is its own time, or that of its receipt.
    """

    message: StoredMessage
    said_at: datetime
    tool_name: str | None

    @property
    def text(self) -> str:
        """Its texts that a search reads, below each other."""
        return searched_text(self.message, self.tool_name)


def searched_text(message: StoredMessage, tool_name: str | None = None) -> str:
    """Return the text of a stored message that a search reads."""
    parsed = parse_stored(message.body.encode(), FormatName(message.format))
    return "\n".join(text_of(parsed, tool_name))


async def searched(
    session: Session, statement: Statement, conversation_id: str, **values: Any
) -> dict[int, SearchedMessage]:
    """Return the messages of a statement by seq."""
    rows = await session.all(statement, conversation_id=conversation_id, **values)
    return {row["seq"]: _searched_from(row) for row in rows}


def _searched_from(row: Any) -> SearchedMessage:
    tool_name = None
    if row["call_ids"] is not None:
        calls = named_calls(row["calling_ids"], row["calling_names"])
        tool_name = calls.get(json_text.loads(row["call_ids"])[0])
    return SearchedMessage(stored_message_from(row), row["said_at"], tool_name)


async def index_all(database: Database, seconds: float = INDEX_AFTER_SECONDS) -> None:
    """Index the conversations with messages that were not indexed for so long (rule 3)."""
    while True:
        async with database.session() as opened:
            limit = _INDEXED_AT_ONCE
            rows = await opened.session.all(UNINDEXED, seconds=seconds, limit=limit)
        failures = 0
        for row in rows:
            conversation_id = str(row["conversation_id"])
            try:
                await index(database, conversation_id)
            except Exception as error:  # a search in it reports the error
                data = {"conversation_id": conversation_id, "error": type(error).__name__}
                _log.warning("search_not_prepared", extra={"data": data})
                failures += 1
        if failures or len(rows) < _INDEXED_AT_ONCE:
            return


async def index(database: Database, conversation_id: str) -> None:
    """Index the messages of a conversation, each block in a transaction of its own."""
    key = {"conversation_id": conversation_id}
    while True:
        async with database.transaction() as opened:
            session = opened.session
            row = await session.first(PROGRESS, **key)
            if row is None:
                return  # it was deleted
            first_seq, past = row["first_seq"], row["first_seq"] + row["messages"]
            if past > row["head_seq"]:
                await session.run(SET_INDEXED, **key, head_seq=row["head_seq"])
                return
            block = None
            if first_seq < past < first_seq + BLOCK:
                block = await _block(session, conversation_id, first_seq)
            if block is None or first_seq + len(block["sizes"]) == past:  # it was full
                block = await _block(session, conversation_id, past)
            await session.run(ADD, **key, **block)


async def _block(session: Session, conversation_id: str, first_seq: int) -> Mapping[str, Any]:
    """Return the row of a block of the messages from a seq on."""
    messages = await searched(session, FROM_SEQ, conversation_id, first_seq=first_seq)
    sizes, words = await asyncio.to_thread(_words_of, list(messages.values()))
    return {"first_seq": first_seq, "sizes": sizes, "words": words}


def _words_of(messages: Sequence[SearchedMessage]) -> tuple[list[int], str]:
    """Return the sizes and the words of a block of the first of these messages.

    Beyond one message it has at most MAX_LEXEMES places, which bounds the tsvector.
    """
    sizes: list[int] = []
    places: dict[str, list[str]] = {}
    for number, item in enumerate(messages, start=1):
        found = lexemes(item.text)
        if sizes and sum(sizes) + len(found) > MAX_LEXEMES:
            break
        sizes.append(len(found))
        for lexeme in found:
            places.setdefault(lexeme, []).append(str(number))
    return sizes, " ".join(f"'{lexeme}':{','.join(its)}" for lexeme, its in places.items())
