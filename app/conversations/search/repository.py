"""The words of messages in PostgreSQL: an index that only searches read and write.

1. Every lexeme begins with a key for a block of BLOCK messages of one conversation. So a search in
   the GIN index reads entries of that conversation alone.
2. Blocks are searched one after the other until enough messages are found. A common word is found
   in the first block, a rare one costs an index search per block. Later blocks are searched in
   larger groups.
3. `message_words` has no gaps: messages are indexed in order, and a message without words has a
   row as well. So the last row is the progress of the index.
4. A deletion leaves no row behind: the state is locked while rows are added.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import datetime
from hashlib import blake2b
from typing import Any
from uuid import UUID

from app.common import json_text
from app.common.pages import UNBOUNDED, Bound, Page
from app.conversations.messages.repository import (
    MESSAGE_TIME,
    STORED_COLUMNS,
    bounded_messages,
    named_calls,
    seq_search,
)
from app.conversations.messages.row import StoredMessage
from app.conversations.rows import stored_message_from
from app.conversations.search.query import Query, Word
from app.conversations.search.ranking import Postings
from app.conversations.search.texts import SearchedMessage
from app.database.connections import Repository, Statement
from app.database.sql import limits, page_of
from app.database.tables import NOT_EXPIRED

BLOCK = 1024
"""Messages whose lexemes have one key."""
_LARGEST_GROUP = 32
_KEY = "%"  # the placeholder of a block's key in a query for all blocks


def _searched(rows: str) -> Statement:
    """Return a statement for the first of these messages, up to `:max_bytes` of their bodies.

    Each has the calls of the message that it answers, which hold the tool of a result. PostgreSQL
    reads the length of a body without the body.
    """
    return Statement(f"""
        WITH sized AS (
            SELECT *, sum(octet_length(body)) OVER (ORDER BY seq) - octet_length(body) AS before
            FROM ({rows}) AS found
        ), selected AS (
            SELECT * FROM sized WHERE before < CAST(:max_bytes AS bigint)
        )
        SELECT {STORED_COLUMNS}, call_ids, coalesce(late_at, at, created_at) AS said_at,
            calling.ids AS calling_ids, calling.names AS calling_names
        FROM selected
        LEFT JOIN LATERAL (
            SELECT c.call_ids AS ids, c.call_names AS names FROM messages c
            WHERE c.conversation_id = :conversation_id AND c.seq < selected.seq
                AND c.role <> 'tool' AND selected.role = 'tool'
            ORDER BY c.seq DESC LIMIT 1
        ) calling ON true
        ORDER BY seq
    """)


UNINDEXED = _searched("""
    SELECT * FROM messages
    WHERE conversation_id = :conversation_id
        AND seq > coalesce((
            SELECT w.seq FROM message_words w
            WHERE w.conversation_id = :conversation_id
            ORDER BY w.seq DESC LIMIT 1), 0)
        AND seq <= :through_seq
    ORDER BY seq LIMIT :limit
""")
BY_SEQS = _searched("""
    SELECT * FROM messages
    WHERE conversation_id = :conversation_id AND seq = ANY (:seqs)
        AND octet_length(body) <= CAST(:max_body_bytes AS bigint)
""")
ADD = Statement(
    """
    WITH alive AS (
        SELECT conversation_id FROM heads
        WHERE conversation_id = :conversation_id FOR KEY SHARE
    )
    INSERT INTO message_words (conversation_id, seq, words)
    SELECT alive.conversation_id, item.seq, array_to_tsvector(string_to_array(item.words, ' '))
    FROM alive, unnest(:seqs, CAST(:words AS text[])) AS item (seq, words)
    ORDER BY item.seq
    ON CONFLICT (conversation_id, seq) DO NOTHING
    """,
    is_long=True,
)
# Run after ADD in its transaction, which orders it and a redaction since the messages were read.
CLEAR_REDACTED = Statement("""
    UPDATE message_words w SET words = ''
    FROM redactions r
    WHERE r.conversation_id = :conversation_id AND r.seq = ANY (:seqs)
        AND w.conversation_id = :conversation_id AND w.seq = r.seq
""")


def _hits(
    queries: str,
    order: str = "DESC",
    conversation_id: str = ":conversation_id",
    after_seq: str = ":after_seq",
    before_seq: str = ":before_seq",
) -> str:
    """Return a query for the seqs that match, by groups of blocks in the given order.

    `size` is that of the words as stored, which is read without the words. A group is searched only
    if those before had too few messages. OFFSET 0 makes PostgreSQL use the index of words; a scan
    of the log would take too long.
    """
    return f"""
        SELECT hit.*
        FROM unnest({queries}) WITH ORDINALITY AS blocks (query, position)
        CROSS JOIN LATERAL (
            SELECT w.seq, pg_column_size(w.words) AS size FROM (
                SELECT conversation_id, seq, words FROM message_words
                WHERE words @@ CAST(blocks.query AS tsquery)
                OFFSET 0
            ) AS w
            WHERE w.conversation_id = {conversation_id}
                AND w.seq > {after_seq} AND w.seq < {before_seq}
            ORDER BY w.seq {order} LIMIT :limit
        ) AS hit
        LIMIT :limit
    """


def _find(order: str) -> Statement:
    rows = f"""
        SELECT {STORED_COLUMNS} FROM messages
        WHERE conversation_id = :conversation_id AND seq = ANY (ARRAY(
            SELECT found.seq FROM ({_hits("CAST(:queries AS text[])", order)}) AS found
        ))
        ORDER BY seq {order}
    """
    return Statement(bounded_messages(rows, f"seq {order}"))


FIND = {order.lower(): _find(order) for order in ("ASC", "DESC")}
# The conversations are searched in the given order until there are enough messages.
_NEWEST_HITS = _hits(
    "string_to_array(asked.queries, chr(10))",
    *("DESC", "asked.in_conversation", "0", "asked.before_seq"),
)
_NEWEST = f"""
    SELECT m.*, found.in_conversation AS conversation_id, found.number
    FROM (
        SELECT asked.in_conversation, hit.seq, row_number() OVER () AS number
        FROM unnest(
            :conversation_ids, CAST(:queries AS text[]), CAST(:before_seqs AS bigint[])
        ) AS asked (in_conversation, queries, before_seq)
        CROSS JOIN LATERAL ({_NEWEST_HITS}) hit
        LIMIT :limit
    ) found
    CROSS JOIN LATERAL (
        SELECT {STORED_COLUMNS} FROM messages
        WHERE conversation_id = found.in_conversation AND seq >= found.seq
        ORDER BY seq LIMIT 1
    ) m
"""
NEWEST = Statement(bounded_messages(_NEWEST, "number", "conversation_id", "number"))
POSTINGS = Statement(f"""
    SELECT found.seqs, found.sizes
    FROM unnest(CAST(:groups AS text[])) WITH ORDINALITY AS groups (queries, number)
    CROSS JOIN LATERAL (
        SELECT array_agg(sized.seq) AS seqs, array_agg(sized.size) AS sizes
        FROM ({_hits("string_to_array(groups.queries, chr(10))")}) AS sized
    ) AS found
    ORDER BY groups.number
""")
# Many words are compressed out of line: they are decompressed once, not for every word asked for.
MATCHING_WORDS = Statement("""
    SELECT w.seq, ARRAY(
        SELECT word.number - 1
        FROM unnest(CAST(:words AS text[])) WITH ORDINALITY AS word (query, number)
        WHERE w.words @@ CAST(replace(word.query, '%', w.key) AS tsquery)
    ) AS numbers
    FROM (
        SELECT candidate.seq, candidate.key, stored.words
        FROM unnest(:seqs, CAST(:keys AS text[])) AS candidate (seq, key)
        CROSS JOIN LATERAL (
            SELECT strip(words) AS words FROM message_words
            WHERE conversation_id = :conversation_id AND seq = candidate.seq
            OFFSET 0
        ) AS stored
    ) AS w
""")


def _first_from(time: str) -> str:
    is_before = f"{MESSAGE_TIME} < CAST(:{time} AS timestamptz)"
    return seq_search(":conversation_id", "CAST(1 AS bigint)", ":head_seq + 1", is_before)


SEQS_BETWEEN = Statement(f"""
    SELECT ({_first_from("start")}) AS first_seq, ({_first_from("end")}) AS end_seq
""")
# The tenant is compared as an expression, which leaves PostgreSQL the primary key alone.
PROGRESS = Statement(f"""
    SELECT c.conversation_id, h.head_seq, coalesce((
        SELECT w.seq FROM message_words w
        WHERE w.conversation_id = c.conversation_id
        ORDER BY w.seq DESC LIMIT 1
    ), 0) AS indexed_seq
    FROM conversations c
    JOIN heads h ON h.conversation_id = c.conversation_id
    WHERE c.conversation_id = ANY (:conversation_ids)
        AND h.conversation_id = ANY (:conversation_ids)
        AND greatest(c.tenant_id) = :tenant_id AND {NOT_EXPIRED}
""")


class SearchRepository(Repository):
    """Indexes the words of messages, and searches them."""

    async def unindexed(
        self, conversation_id: str, through_seq: int, limit: int, max_bytes: int
    ) -> list[SearchedMessage]:
        """Return the next messages to index, up to a seq and a limit.

        The list ends with the message at which the total size of bodies reaches `max_bytes`.
        """
        rows = await self._session.all(
            UNINDEXED,
            conversation_id=conversation_id,
            through_seq=through_seq,
            limit=limit,
            max_bytes=max_bytes,
        )
        return [_searched_from(row) for row in rows]

    async def add(self, conversation_id: str, words: Mapping[int, Sequence[str]]) -> None:
        """Index messages that are not indexed yet by their lexemes.

        It does nothing for a deleted conversation. Call it in a transaction.
        """
        keys = {block: _key(conversation_id, block) for block in {seq // BLOCK for seq in words}}
        joined = [
            " ".join([keys[seq // BLOCK] + lexeme for lexeme in lexemes])
            for seq, lexemes in words.items()
        ]
        seqs = list(words)
        await self._session.run(ADD, conversation_id=conversation_id, seqs=seqs, words=joined)
        await self._session.run(CLEAR_REDACTED, conversation_id=conversation_id, seqs=seqs)

    async def progress(
        self, tenant_id: str, conversation_ids: Sequence[str]
    ) -> dict[str, tuple[int, int]]:
        """Return the head and up to which seq these conversations of the tenant are indexed."""
        rows = await self._session.all(
            PROGRESS, tenant_id=tenant_id, conversation_ids=list(conversation_ids)
        )
        return {str(row["conversation_id"]): (row["head_seq"], row["indexed_seq"]) for row in rows}

    async def find(
        self,
        conversation_id: str,
        query: Query,
        seqs: tuple[int, int],
        order: str,
        limit: int,
        bound: Bound = UNBOUNDED,
    ) -> Page[StoredMessage]:
        """Return up to `limit` messages between two seqs, both exclusive, by their words alone."""
        rows = await self._session.all(
            FIND[order],
            conversation_id=conversation_id,
            queries=_block_queries(conversation_id, _tsquery(query), seqs, order),
            after_seq=seqs[0],
            before_seq=seqs[1],
            **limits(limit, bound),
        )
        return page_of(rows, stored_message_from)

    async def newest(
        self, query: Query, before: Mapping[str, int], limit: int, bound: Bound = UNBOUNDED
    ) -> Page[tuple[str, StoredMessage]]:
        """Return up to `limit` messages of several conversations by their words alone.

        The conversations are searched in the given order, each from its newest message before its
        seq.
        """
        rows = await self._session.all(
            NEWEST,
            conversation_ids=[UUID(conversation_id) for conversation_id in before],
            queries=[
                "\n".join(_block_queries(conversation_id, _tsquery(query), (0, seq), "desc"))
                for conversation_id, seq in before.items()
            ],
            before_seqs=list(before.values()),
            **limits(limit, bound),
        )
        return page_of(rows, lambda row: (str(row["conversation_id"]), stored_message_from(row)))

    async def postings(
        self,
        conversation_id: str,
        groups: Sequence[Sequence[Word]],
        seqs: tuple[int, int],
        limit: int,
    ) -> list[Postings]:
        """Return for each group of words the newest `limit` messages that have all of them.

        Both seqs are exclusive.
        """
        rows = await self._session.all(
            POSTINGS,
            conversation_id=conversation_id,
            groups=[
                "\n".join(_block_queries(conversation_id, _all_words(group), seqs, "desc"))
                for group in groups
            ],
            after_seq=seqs[0],
            before_seq=seqs[1],
            limit=limit,
        )
        found = [dict(zip(row["seqs"] or (), row["sizes"] or (), strict=True)) for row in rows]
        return [Postings(sizes, min(sizes) if len(sizes) == limit else 0) for sizes in found]

    async def matching_words(
        self, conversation_id: str, seqs: Sequence[int], words: Sequence[Word]
    ) -> dict[int, list[int]]:
        """Return the numbers of the words, from 0 on, that each of these messages has."""
        rows = await self._session.all(
            MATCHING_WORDS,
            conversation_id=conversation_id,
            seqs=list(seqs),
            keys=[_key(conversation_id, seq // BLOCK) for seq in seqs],
            words=[_all_words([word]) for word in words],
        )
        return {row["seq"]: list(row["numbers"]) for row in rows}

    async def by_seqs(
        self, conversation_id: str, seqs: Sequence[int], max_bytes: int, max_body_bytes: int
    ) -> list[SearchedMessage]:
        """Return messages by their seqs, in log order; those with a larger body are left out.

        The list ends with the message at which the total size of bodies reaches `max_bytes`.
        """
        rows = await self._session.all(
            BY_SEQS,
            conversation_id=conversation_id,
            seqs=list(seqs),
            max_bytes=max_bytes,
            max_body_bytes=max_body_bytes,
        )
        return [_searched_from(row) for row in rows]

    async def seqs_between(
        self, conversation_id: str, head_seq: int, start: datetime, end: datetime
    ) -> tuple[int, int]:
        """Return the first seq of a time and the first seq after it; the end is exclusive."""
        row = await self._session.first(
            SEQS_BETWEEN, conversation_id=conversation_id, head_seq=head_seq, start=start, end=end
        )
        assert row is not None
        return row["first_seq"], row["end_seq"]


def _key(conversation_id: str, block: int) -> str:
    """Return the key of a block's lexemes (rule 1).

    A collision is harmless, because searches also compare the conversation of a row.
    """
    digest = blake2b(UUID(conversation_id).bytes + block.to_bytes(8), digest_size=6).digest()
    return b64encode(digest).decode()


def _tsquery(query: Query) -> str:
    """Return the tsquery of a query, with a placeholder for the block."""
    without = [f"!({_all_words([(term,) for term in group])})" for group in query.excluded]
    return " & ".join([_all_words(query.words), *without])


def _all_words(words: Sequence[Word]) -> str:
    # A lexeme has only letters, digits, marks and underscores, so it needs no escaping.
    either = (
        [f"'{_KEY}{term.lexeme}'{':*' if term.is_prefix else ''}" for term in word]
        for word in words
    )
    return " & ".join(f"({' | '.join(terms)})" for terms in either)


def _block_queries(
    conversation_id: str, query: str, seqs: tuple[int, int], order: str
) -> list[str]:
    """Return a query for each group of blocks between two seqs, in the order of rule 2."""
    blocks = range((seqs[0] + 1) // BLOCK, (seqs[1] - 1) // BLOCK + 1)
    keys = [_key(conversation_id, block) for block in (blocks if order == "asc" else blocks[::-1])]
    queries: list[str] = []
    start = 0
    while start < len(keys):
        size = min(max(start, 1), _LARGEST_GROUP)
        group = keys[start : start + size]
        queries.append(" | ".join([f"({query.replace(_KEY, key)})" for key in group]))
        start += size
    return queries


def _searched_from(row: Any) -> SearchedMessage:
    tool_name = None
    if row["call_ids"] is not None:
        calls = named_calls(row["calling_ids"], row["calling_names"])
        tool_name = calls.get(json_text.loads(row["call_ids"])[0])
    return SearchedMessage(stored_message_from(row), tool_name, row["said_at"])
