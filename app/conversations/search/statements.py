"""Statements of searches in one conversation and of `recall`: by the index of words, and by seq."""

from __future__ import annotations

from app.conversations.messages.repository import (
    MESSAGE_TIME,
    STORED_COLUMNS,
    bounded_messages,
    seq_search,
)
from app.database.connections import Statement


def searched(rows: str) -> Statement:
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


UNINDEXED = searched(
    """
    SELECT * FROM messages
    WHERE conversation_id = :conversation_id
        AND seq > coalesce((
            SELECT w.seq FROM message_words w
            WHERE w.conversation_id = :conversation_id
            ORDER BY w.seq DESC LIMIT 1), 0)
        AND seq <= :through_seq
    ORDER BY seq LIMIT :limit
    """
)
BY_SEQS = searched(
    """
    SELECT * FROM messages
    WHERE conversation_id = :conversation_id AND seq = ANY (:seqs)
        AND octet_length(body) <= CAST(:max_body_bytes AS bigint)
    """
)

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
CLEAR_REDACTED = Statement(
    """
        UPDATE message_words w SET words = ''
        FROM redactions r
        WHERE r.conversation_id = :conversation_id AND r.seq = ANY (:seqs)
            AND w.conversation_id = :conversation_id AND w.seq = r.seq
        """
)


def hits(
    queries: str,
    order: str,
    conversation_id: str = ":conversation_id",
    after_seq: str = ":after_seq",
    before_seq: str = ":before_seq",
    *also: str,
) -> str:
    """Return a query for the seqs that match, by groups of blocks in the given order.

    `also` are further columns of `message_words`.

    A group is searched only if those before had too few messages. OFFSET 0 makes PostgreSQL use the
    index of words; a scan of the log would take too long.
    """
    return f"""
        SELECT hit.*
        FROM unnest({queries}) WITH ORDINALITY AS blocks (query, position)
        CROSS JOIN LATERAL (
            SELECT {", ".join(("w.seq", *also))} FROM (
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
        WHERE conversation_id = :conversation_id
            AND seq = ANY (ARRAY({hits("CAST(:queries AS text[])", order)}))
        ORDER BY seq {order}
    """
    return Statement(bounded_messages(rows, f"seq {order}"))


FIND = {order.lower(): _find(order) for order in ("ASC", "DESC")}

_SIZED = hits(
    "string_to_array(groups.queries, chr(10))",
    "DESC",
    ":conversation_id",
    ":after_seq",
    ":before_seq",
    "pg_column_size(w.words) AS size",  # as stored, which is read without the words
)
POSTINGS = Statement(f"""
    SELECT found.seqs, found.sizes
    FROM unnest(CAST(:groups AS text[])) WITH ORDINALITY AS groups (queries, number)
    CROSS JOIN LATERAL (
        SELECT array_agg(sized.seq) AS seqs, array_agg(sized.size) AS sizes
        FROM ({_SIZED}) AS sized
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

TIME_OF = Statement(f"""
    SELECT {MESSAGE_TIME} AS said_at FROM messages m
    WHERE m.conversation_id = :conversation_id AND m.seq <= :seq
    ORDER BY m.seq DESC LIMIT 1
""")


def _first_from(time: str) -> str:
    return seq_search(
        ":conversation_id",
        "CAST(1 AS bigint)",
        ":head_seq + 1",
        f"{MESSAGE_TIME} < CAST(:{time} AS timestamptz)",
    )


SEQS_BETWEEN = Statement(f"""
    SELECT ({_first_from("start")}) AS first_seq, ({_first_from("end")}) AS end_seq
""")
