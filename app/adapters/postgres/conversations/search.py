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
from hashlib import blake2b
from typing import Any
from uuid import UUID

from app.adapters.postgres.common.connections import Session, Statement
from app.adapters.postgres.common.paging import limits, page_of
from app.adapters.postgres.common.rows import stored_message_from
from app.adapters.postgres.conversations.log_statements import (
    STORED_COLUMNS,
    bounded_messages,
    named_calls,
)
from app.domain.common import json_text
from app.domain.common.pages import UNBOUNDED, Bound, Page
from app.domain.conversations.search.query import Query
from app.domain.conversations.search.recall import Candidate, Postings
from app.domain.conversations.search.texts import SearchedMessage
from app.domain.conversations.search.words import Term
from app.domain.conversations.stored_message import StoredMessage

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
        SELECT {STORED_COLUMNS}, call_ids,
            calling.ids AS calling_ids, calling.names AS calling_names
        FROM selected
        LEFT JOIN LATERAL (
            SELECT c.call_ids AS ids, c.call_names AS names FROM messages c
            WHERE c.conversation_id = CAST(:conversation_id AS uuid) AND c.seq < selected.seq
                AND c.role <> 'tool' AND selected.role = 'tool'
            ORDER BY c.seq DESC LIMIT 1
        ) calling ON true
        ORDER BY seq
    """)


UNINDEXED = _searched(
    """
    SELECT * FROM messages
    WHERE conversation_id = CAST(:conversation_id AS uuid)
        AND seq > coalesce((
            SELECT w.seq FROM message_words w
            WHERE w.conversation_id = CAST(:conversation_id AS uuid)
            ORDER BY w.seq DESC LIMIT 1), 0)
        AND seq <= CAST(:through_seq AS bigint)
    ORDER BY seq
    LIMIT CAST(:limit AS bigint)
    """
)
BY_SEQS = _searched(
    """
    SELECT * FROM messages
    WHERE conversation_id = CAST(:conversation_id AS uuid)
        AND seq = ANY (CAST(:seqs AS bigint[]))
    """
)

ADD = Statement(
    """
        WITH alive AS (
            SELECT conversation_id FROM heads
            WHERE conversation_id = CAST(:conversation_id AS uuid) FOR KEY SHARE
        )
        INSERT INTO message_words (conversation_id, seq, words)
        SELECT alive.conversation_id, item.seq, array_to_tsvector(string_to_array(item.words, ' '))
        FROM alive, unnest(CAST(:seqs AS bigint[]), CAST(:words AS text[])) AS item (seq, words)
        ORDER BY item.seq
        ON CONFLICT (conversation_id, seq) DO NOTHING
        """,
    is_long=True,
)


def hits(
    queries: str,
    order: str,
    conversation_id: str = "CAST(:conversation_id AS uuid)",
    after_seq: str = "CAST(:after_seq AS bigint)",
    before_seq: str = "CAST(:before_seq AS bigint)",
) -> str:
    """Return a query for the seqs that match, by groups of blocks in the given order.

    A group is searched only if those before had too few messages. OFFSET 0 makes PostgreSQL use the
    index of words; a scan of the log would take too long.
    """
    return f"""
        SELECT hit.seq
        FROM unnest({queries}) WITH ORDINALITY AS blocks (query, position)
        CROSS JOIN LATERAL (
            SELECT w.seq FROM (
                SELECT conversation_id, seq FROM message_words
                WHERE words @@ CAST(blocks.query AS tsquery)
                OFFSET 0
            ) AS w
            WHERE w.conversation_id = {conversation_id}
                AND w.seq > {after_seq} AND w.seq < {before_seq}
            ORDER BY w.seq {order}
            LIMIT CAST(:limit AS bigint)
        ) AS hit
        LIMIT CAST(:limit AS bigint)
    """


_FIND = f"""
    SELECT {STORED_COLUMNS} FROM messages
    WHERE conversation_id = CAST(:conversation_id AS uuid)
        AND seq = ANY (ARRAY({hits("CAST(:queries AS text[])", "{order}")}))
    ORDER BY seq {{order}}
"""
FIND = {
    order.lower(): Statement(bounded_messages(_FIND.format(order=order), f"seq {order}"))
    for order in ("ASC", "DESC")
}

POSTINGS = Statement(f"""
        SELECT ARRAY({hits("string_to_array(terms.queries, chr(10))", "DESC")}) AS seqs
        FROM unnest(CAST(:terms AS text[])) WITH ORDINALITY AS terms (queries, number)
        ORDER BY terms.number
""")

# Many words are compressed out of line: they are decompressed once, not for every term.
MATCHING_TERMS = Statement("""
    SELECT w.seq, length(w.words) AS size, ARRAY(
        SELECT term.number
        FROM unnest(CAST(:terms AS text[])) WITH ORDINALITY AS term (query, number)
        WHERE w.words @@ CAST(replace(term.query, '%', w.key) AS tsquery)
    ) AS numbers
    FROM (
        SELECT candidate.seq, candidate.key, stored.words
        FROM unnest(CAST(:seqs AS bigint[]), CAST(:keys AS text[])) AS candidate (seq, key)
        CROSS JOIN LATERAL (
            SELECT strip(words) AS words FROM message_words
            WHERE conversation_id = CAST(:conversation_id AS uuid) AND seq = candidate.seq
            OFFSET 0
        ) AS stored
    ) AS w
""")


class SearchRepository:
    """Indexes the words of one conversation's messages, and searches them."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def unindexed(
        self, conversation_id: str, through_seq: int, limit: int, max_bytes: int
    ) -> list[SearchedMessage]:
        rows = await self._session.all(
            UNINDEXED,
            conversation_id=conversation_id,
            through_seq=through_seq,
            limit=limit,
            max_bytes=max_bytes,
        )
        return [_searched_from(row) for row in rows]

    async def add(self, conversation_id: str, words: Mapping[int, Sequence[str]]) -> None:
        keys = {block: _key(conversation_id, block) for block in {seq // BLOCK for seq in words}}
        joined = [
            " ".join([keys[seq // BLOCK] + lexeme for lexeme in lexemes])
            for seq, lexemes in words.items()
        ]
        await self._session.run(
            ADD, conversation_id=conversation_id, seqs=list(words), words=joined
        )

    async def find(
        self,
        conversation_id: str,
        query: Query,
        *,
        after_seq: int,
        before_seq: int,
        order: str,
        limit: int,
        bound: Bound = UNBOUNDED,
    ) -> Page[StoredMessage]:
        rows = await self._session.all(
            FIND[order],
            conversation_id=conversation_id,
            queries=block_queries(conversation_id, query, after_seq, before_seq, order),
            after_seq=after_seq,
            before_seq=before_seq,
            **limits(limit, bound),
        )
        return page_of(rows, stored_message_from)

    async def postings(
        self, conversation_id: str, terms: Sequence[Sequence[Term]], head_seq: int, limit: int
    ) -> list[Postings]:
        groups = _grouped_keys(conversation_id, 0, head_seq + 1, "desc")
        rows = await self._session.all(
            POSTINGS,
            conversation_id=conversation_id,
            terms=["\n".join(_by_group(groups, _all_of(group))) for group in terms],
            after_seq=0,
            before_seq=head_seq + 1,
            limit=limit,
        )
        return [Postings(tuple(row["seqs"]), len(row["seqs"]) == limit) for row in rows]

    async def matching_terms(
        self, conversation_id: str, seqs: Sequence[int], terms: Sequence[Term]
    ) -> list[Candidate]:
        rows = await self._session.all(
            MATCHING_TERMS,
            conversation_id=conversation_id,
            seqs=list(seqs),
            keys=[_key(conversation_id, seq // BLOCK) for seq in seqs],
            terms=[_all_of([term]) for term in terms],
        )
        return [
            Candidate(row["seq"], frozenset(number - 1 for number in row["numbers"]), row["size"])
            for row in rows
        ]

    async def by_seqs(
        self, conversation_id: str, seqs: Sequence[int], max_bytes: int
    ) -> list[SearchedMessage]:
        rows = await self._session.all(
            BY_SEQS, conversation_id=conversation_id, seqs=list(seqs), max_bytes=max_bytes
        )
        return [_searched_from(row) for row in rows]


def block_queries(
    conversation_id: str, query: Query, after_seq: int, before_seq: int, order: str
) -> list[str]:
    """Return a query for each group of blocks between two seqs, in this order."""
    groups = _grouped_keys(conversation_id, after_seq, before_seq, order)
    return _by_group(groups, _tsquery(query))


def _key(conversation_id: str, block: int) -> str:
    """Return the key of a block's lexemes (rule 1).

    A collision is harmless, because searches also compare the conversation of a row.
    """
    digest = blake2b(UUID(conversation_id).bytes + block.to_bytes(8), digest_size=6).digest()
    return b64encode(digest).decode()


def _tsquery(query: Query) -> str:
    """Return the tsquery of a query, with a placeholder for the block."""
    without = [f"!({_all_of(group)})" for group in query.excluded]
    return " & ".join([_all_of(query.words), *without])


def _all_of(terms: Sequence[Term]) -> str:
    # A lexeme has only letters, digits, marks and underscores, so it needs no escaping.
    return " & ".join(f"'{_KEY}{term.lexeme}'{':*' if term.is_prefix else ''}" for term in terms)


def _grouped_keys(
    conversation_id: str, after_seq: int, before_seq: int, order: str
) -> list[list[str]]:
    """Return the keys of the blocks between two seqs, in groups and in the order of rule 2."""
    blocks = range((after_seq + 1) // BLOCK, (before_seq - 1) // BLOCK + 1)
    keys = [
        _key(conversation_id, block) for block in (blocks if order == "asc" else reversed(blocks))
    ]
    groups: list[list[str]] = []
    start = 0
    while start < len(keys):
        size = min(max(start, 1), _LARGEST_GROUP)
        groups.append(keys[start : start + size])
        start += size
    return groups


def _by_group(groups: Sequence[Sequence[str]], query: str) -> list[str]:
    """Return a query for each group of blocks."""
    return [" | ".join([f"({query.replace(_KEY, key)})" for key in keys]) for keys in groups]


def _searched_from(row: Any) -> SearchedMessage:
    tool_name = None
    if row["call_ids"] is not None:
        calls = named_calls(row["calling_ids"], row["calling_names"])
        tool_name = calls.get(json_text.loads(row["call_ids"])[0])
    return SearchedMessage(stored_message_from(row), tool_name)
