"""Statements of searches in one conversation and of `recall`: by the index of words, and by seq."""

from __future__ import annotations

from app.conversations.messages.statements import (
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
            WHERE c.conversation_id = CAST(:conversation_id AS uuid) AND c.seq < selected.seq
                AND c.role <> 'tool' AND selected.role = 'tool'
            ORDER BY c.seq DESC LIMIT 1
        ) calling ON true
        ORDER BY seq
    """)


UNINDEXED = searched(
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
BY_SEQS = searched(
    """
    SELECT * FROM messages
    WHERE conversation_id = CAST(:conversation_id AS uuid)
        AND seq = ANY (CAST(:seqs AS bigint[]))
        AND octet_length(body) <= CAST(:max_body_bytes AS bigint)
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
# Run after ADD in its transaction, which orders it and a redaction since the messages were read.
CLEAR_REDACTED = Statement(
    """
        UPDATE message_words w SET words = ''
        FROM redactions r
        WHERE r.conversation_id = CAST(:conversation_id AS uuid)
            AND r.seq = ANY (CAST(:seqs AS bigint[]))
            AND w.conversation_id = CAST(:conversation_id AS uuid) AND w.seq = r.seq
        """
)


def hits(
    queries: str,
    order: str,
    conversation_id: str = "CAST(:conversation_id AS uuid)",
    after_seq: str = "CAST(:after_seq AS bigint)",
    before_seq: str = "CAST(:before_seq AS bigint)",
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
            ORDER BY w.seq {order}
            LIMIT CAST(:limit AS bigint)
        ) AS hit
        LIMIT CAST(:limit AS bigint)
    """


def _find(order: str) -> Statement:
    rows = f"""
        SELECT {STORED_COLUMNS} FROM messages
        WHERE conversation_id = CAST(:conversation_id AS uuid)
            AND seq = ANY (ARRAY({hits("CAST(:queries AS text[])", order)}))
        ORDER BY seq {order}
    """
    return Statement(bounded_messages(rows, f"seq {order}"))


FIND = {order.lower(): _find(order) for order in ("ASC", "DESC")}

_SIZED = hits(
    "string_to_array(groups.queries, chr(10))",
    "DESC",
    "CAST(:conversation_id AS uuid)",
    "CAST(:after_seq AS bigint)",
    "CAST(:before_seq AS bigint)",
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
        FROM unnest(CAST(:seqs AS bigint[]), CAST(:keys AS text[])) AS candidate (seq, key)
        CROSS JOIN LATERAL (
            SELECT strip(words) AS words FROM message_words
            WHERE conversation_id = CAST(:conversation_id AS uuid) AND seq = candidate.seq
            OFFSET 0
        ) AS stored
    ) AS w
""")

TIME_OF = Statement(f"""
    SELECT {MESSAGE_TIME} AS said_at FROM messages m
    WHERE m.conversation_id = CAST(:conversation_id AS uuid) AND m.seq <= CAST(:seq AS bigint)
    ORDER BY m.seq DESC LIMIT 1
""")


def _first_from(time: str) -> str:
    return seq_search(
        "CAST(:conversation_id AS uuid)",
        "CAST(1 AS bigint)",
        "CAST(:head_seq AS bigint) + 1",
        f"{MESSAGE_TIME} < CAST(:{time} AS timestamptz)",
    )


SEQS_BETWEEN = Statement(f"""
    SELECT ({_first_from("start")}) AS first_seq, ({_first_from("end")}) AS end_seq
""")
