"""The index of words: blocks of neighbouring messages, each a tsvector.

1. A row of `message_words` has the lexemes of up to BLOCK messages from `first_seq` on; the places
   of a lexeme are the messages that have it, from 1 on. `sizes` are their numbers of lexemes.
2. Rows have no gaps. So the last one tells how far the index reaches; it is written again until its
   block is full.
3. The worker alone adds to it, INDEX_AFTER_SECONDS after an append has noted the time in the state.
   A search in one conversation reads the messages after it from the log, up to LATER_BLOCKS blocks.
4. Forks copy rows, and redactions change them. The lock of the state orders indexing with
   redactions and deletions, and lets appends pass.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from time import perf_counter
from typing import Any, Final, NamedTuple

from app.common import json_text
from app.common.pages import Bound, Page
from app.conversations.from_rows import stored_message_from
from app.conversations.messages.repository import STORED_COLUMNS, bounded_messages, named_calls
from app.conversations.messages.row import StoredMessage, parse_stored
from app.conversations.search.words import MAX_LEXEMES, lexemes, text_of
from app.database.connections import Session, Statement
from app.database.sql import equal, insert, limits, page_of
from app.formats.message import FormatName
from app.repositories import Database

BLOCK: Final = 64
LATER_BLOCKS: Final = 8
INDEX_AFTER_SECONDS: Final = 30.0
AT_ONCE: Final = Bound(1_000_000)
"""The messages that are read at once."""
_INDEXED_AT_ONCE = 10_000  # conversations
_log = logging.getLogger(__name__)

_OWN = equal("conversation_id")

# In the order of the seqs, as far as the bytes allow. The tool of a result is in the message before
# it that has the calls.
_NAMED = f"""
    SELECT {STORED_COLUMNS}, call_ids, coalesce(late_at, at, created_at) AS said_at,
        array_position(CAST(:seqs AS bigint[]), seq) AS number
    FROM messages WHERE {_OWN} AND seq = ANY (CAST(:seqs AS bigint[]))
    ORDER BY number LIMIT :limit
"""
MESSAGES = Statement(f"""
    SELECT found.*, calling.ids AS calling_ids, calling.names AS calling_names
    FROM ({bounded_messages(_NAMED, "number", "call_ids", "said_at", "number")}) AS found
    LEFT JOIN LATERAL (
        SELECT c.call_ids AS ids, c.call_names AS names FROM messages c
        WHERE c.{_OWN} AND c.seq < found.seq AND c.role <> 'tool' AND found.role = 'tool'
        ORDER BY c.seq DESC LIMIT 1
    ) calling ON true
    ORDER BY number
""")
LAST_BLOCK = Statement(f"""
    SELECT first_seq, first_seq + cardinality(sizes) AS past FROM message_words
    WHERE {_OWN} ORDER BY first_seq DESC LIMIT 1
""")
LOCK = Statement(f"SELECT head_seq FROM states WHERE {_OWN} FOR KEY SHARE")
ADD = Statement(f"""
    {insert("message_words", "conversation_id", "first_seq", "sizes", "words")}
    ON CONFLICT (conversation_id, first_seq) DO UPDATE
    SET sizes = excluded.sizes, words = excluded.words
    WHERE cardinality(excluded.sizes) > cardinality(message_words.sizes)
""")
UNINDEXED = Statement("""
    SELECT conversation_id FROM states
    WHERE unindexed_at < now() - CAST(:seconds AS float8) * interval '1 second'
    ORDER BY unindexed_at LIMIT :limit
""")
SET_INDEXED = Statement(f"""
    UPDATE states SET unindexed_at = NULL WHERE {_OWN} AND head_seq = :head_seq
""")


class Block(NamedTuple):
    """A row of the index; `words` is the text of its tsvector."""

    conversation_id: str
    first_seq: int
    sizes: Sequence[int]
    words: str

    @property
    def past(self) -> int:
        """The first seq after it."""
        return self.first_seq + len(self.sizes)


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
        parsed = parse_stored(self.message.body.encode(), FormatName(self.message.format))
        return text_of(parsed, self.tool_name)


async def messages_of(
    session: Session, conversation_id: str, seqs: Sequence[int], bound: Bound = AT_ONCE
) -> Page[SearchedMessage]:
    """Return the messages of a conversation with these seqs, in their order."""
    given = {"conversation_id": conversation_id, "seqs": list(seqs), **limits(len(seqs), bound)}
    return page_of(await session.all(MESSAGES, **given), _searched_from)


def _searched_from(row: Any) -> SearchedMessage:
    calls = named_calls(row["calling_ids"], row["calling_names"])
    call_ids = json_text.loads(row["call_ids"] or "[null]")
    return SearchedMessage(stored_message_from(row), row["said_at"], calls.get(call_ids[0]))


async def index_all(database: Database, seconds: float = INDEX_AFTER_SECONDS) -> None:
    """Index the conversations with messages that were not indexed for so long (rule 3)."""
    async with database.session() as opened:
        rows = await opened.session.all(UNINDEXED, seconds=seconds, limit=_INDEXED_AT_ONCE)
    for row in rows:
        try:
            await index(database, str(row["conversation_id"]))
        except Exception as error:  # others may be on another server, or have other messages
            data = {"conversation_id": str(row["conversation_id"]), "error": type(error).__name__}
            _log.warning("search_not_prepared", extra={"data": data})


async def index(database: Database, conversation_id: str) -> None:
    """Index the messages of a conversation, each block in a transaction of its own."""
    full_end = 0  # the end of the last block, if messages after it had no place in it
    while True:
        async with database.transaction() as opened:
            session = opened.session
            head_seq = await session.value(LOCK, conversation_id=conversation_id)
            if head_seq is None:
                return  # it was deleted
            first_seq, past = await _last_block(session, conversation_id)
            if past > head_seq:
                await session.run(SET_INDEXED, conversation_id=conversation_id, head_seq=head_seq)
                return
            began = perf_counter()
            start = past if past in (full_end, first_seq + BLOCK) else first_seq
            block = await _block(session, conversation_id, start)
            await session.run(ADD, **block._asdict())
        end = max(past, block.past)
        full_end = end if end <= head_seq else 0
        # Requests are answered meanwhile.
        await asyncio.sleep(min(1.0, 3 * (perf_counter() - began)) if full_end else 0)


async def later_blocks(
    session: Session, conversation_id: str, head_seq: int
) -> tuple[int, list[Block], int | None]:
    """Return the first seq that is not indexed, and blocks of the messages from there on.

    The last is the seq through which they reach, None for the whole log.
    """
    _, past = await _last_block(session, conversation_id)
    first_seq, blocks = past, list[Block]()
    while past <= head_seq and len(blocks) < LATER_BLOCKS:
        blocks.append(await _block(session, conversation_id, past))
        past = blocks[-1].past
    return first_seq, blocks, past - 1 if past <= head_seq else None


async def _last_block(session: Session, conversation_id: str) -> tuple[int, int]:
    """Return the first seq of the last block, and the seq after it."""
    return await session.first(LAST_BLOCK, conversation_id=conversation_id) or (1, 1)


async def _block(session: Session, conversation_id: str, first_seq: int) -> Block:
    """Return the block of the messages from a seq on."""
    seqs = range(first_seq, first_seq + BLOCK)
    found = await messages_of(session, conversation_id, seqs)
    return Block(conversation_id, first_seq, *await asyncio.to_thread(_words_of, found))


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
