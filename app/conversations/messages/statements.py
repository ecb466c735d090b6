"""Statements that read the log of one conversation, and parts that they share."""

from __future__ import annotations

from app.common import json_text
from app.database.connections import Statement
from app.database.paging import bounded, lengths

_STORED = (
    *("message_id", "seq", "turn", "role", "format", "tokens", "reasoning_tokens"),
    *("body", "output", "created_at"),
)
STORED_COLUMNS = ", ".join(_STORED)


REDACTION_LOCK = "hashtextextended('redaction:' || CAST(CAST(:conversation_id AS uuid) AS text), 0)"
"""The key of the advisory lock that a redaction takes against forks that end."""
MESSAGE_TIME = "coalesce(m.at, m.created_at)"
"""The time of a message `m`, which never decreases with the seqs of its conversation."""


def seq_search(conversation_id: str, low: str, high: str, is_before: str) -> str:
    """Return a query for the first seq of `[low, high]` whose message `m` is not `is_before`.

    It is a binary search by the primary key; a scan would be the plan for an empty log.
    """
    return f"""
        WITH RECURSIVE search (low, high) AS (
            SELECT {low}, {high}
            UNION ALL
            SELECT
                CASE WHEN is_before THEN middle + 1 ELSE low END,
                CASE WHEN is_before THEN high ELSE middle END
            FROM (
                SELECT part.low, part.high, part.middle, {is_before} AS is_before
                FROM (
                    SELECT low, high, (low + high) / 2 AS middle FROM search WHERE low < high
                ) part
                CROSS JOIN LATERAL (
                    SELECT conversation_id, seq, at, created_at FROM messages
                    WHERE conversation_id = {conversation_id} AND seq >= part.middle
                    ORDER BY seq LIMIT 1
                ) m
            ) probe
        )
        SELECT low FROM search WHERE low = high
    """


def bounded_messages(rows: str, order: str, *also: str) -> str:
    """Return a query for a page of stored messages, with further columns of the rows."""
    return bounded(rows, (*_STORED, *also), lengths("body", "output"), order)


IDS = Statement("""
    SELECT seq, message_id FROM messages
    WHERE conversation_id = :conversation_id AND seq = ANY (:seqs)
""")
_PAGE = f"""
    SELECT {STORED_COLUMNS}
    FROM messages
    WHERE conversation_id = :conversation_id AND seq > :after_seq AND seq < :before_seq
    ORDER BY seq {{order}} LIMIT :limit
"""
PAGE = {
    order.lower(): Statement(bounded_messages(_PAGE.format(order=order), f"seq {order}"))
    for order in ("ASC", "DESC")
}
BY_IDS = Statement(
    bounded_messages(
        f"""
            SELECT {STORED_COLUMNS}
            FROM messages
            WHERE conversation_id = :conversation_id
                AND message_id = ANY (CAST(:ids AS text[])) AND seq > :after_seq
            ORDER BY seq LIMIT :limit
        """,
        "seq",
    )
)
# Builds and summarisers read the body or the fragment of a message.
SIZES = Statement("""
    SELECT seq, greatest(octet_length(body), coalesce(octet_length(fragment), 0)) AS size
    FROM messages
    WHERE conversation_id = :conversation_id AND seq >= :start AND seq < CAST(:end AS bigint)
    ORDER BY seq
""")
ENTRIES = Statement("""
    SELECT m.seq, m.role, m.tokens, m.joins, p.seq IS NOT NULL AS pinned
    FROM messages m
    LEFT JOIN pins p ON p.conversation_id = m.conversation_id AND p.seq = m.seq
    WHERE m.conversation_id = :conversation_id AND m.seq >= :start AND m.seq < CAST(:end AS bigint)
    ORDER BY m.seq
""")
# The call group in which a range begins has the calls of its first results.
TOOL_NAMES = Statement("""
    SELECT seq, role, call_ids, call_names FROM messages
    WHERE conversation_id = :conversation_id
        AND seq >= coalesce((
            SELECT starts.seq FROM messages starts
            WHERE starts.conversation_id = :conversation_id
                AND starts.seq <= :start AND NOT starts.joins
            ORDER BY starts.seq DESC LIMIT 1), 1)
        AND seq < CAST(:end AS bigint) AND call_ids IS NOT NULL
    ORDER BY seq
""")
OPEN_CALLS = Statement("""
    SELECT m.call_ids, m.call_names, h.open_calls
    FROM heads h
    JOIN messages m ON m.conversation_id = h.conversation_id AND m.seq = ANY (h.open_seqs)
    WHERE h.conversation_id = :conversation_id
    ORDER BY m.seq
""")
MAX_MESSAGES_READ = 5_000
"""Newest messages that are searched for the last use of tools: a bound of the cost."""
LAST_USED = Statement(f"""
    SELECT call_names, max(seq) AS seq FROM (
        SELECT seq, call_names FROM messages
        WHERE conversation_id = :conversation_id
        ORDER BY seq DESC LIMIT {MAX_MESSAGES_READ}
    ) AS newest
    WHERE call_names IS NOT NULL
    GROUP BY call_names
""")
PROMOTE = Statement("""
    UPDATE heads
    SET promoted = CASE
            WHEN promoted_turn = turns THEN promoted || ARRAY(
                SELECT item.name
                FROM unnest(CAST(:names AS text[])) WITH ORDINALITY AS item (name, position)
                WHERE item.name <> ALL (promoted)
                ORDER BY item.position
            )
            ELSE CAST(:names AS text[])
        END,
        promoted_turn = turns
    WHERE conversation_id = :conversation_id
    RETURNING promoted
""")
TOTAL_AT = Statement("""
    SELECT total_tokens FROM messages
    WHERE conversation_id = :conversation_id AND seq <= :seq
    ORDER BY seq DESC LIMIT 1
""")
FIND_ANSWER = Statement("""
    SELECT request_hash, answer FROM idempotency_keys
    WHERE conversation_id = :conversation_id AND key = :key
        AND created_at > now() - interval '24 hours'
""")
ADD_ANSWER = Statement("""
    INSERT INTO idempotency_keys (conversation_id, key, request_hash, answer, created_at)
    VALUES (:conversation_id, :key, :request_hash, :answer, now())
    ON CONFLICT (conversation_id, key) DO UPDATE
    SET request_hash = excluded.request_hash, answer = excluded.answer,
        created_at = excluded.created_at
""")
# The insert waits for a concurrent request with the key, and changes no row of the last 24 hours.
CLAIM_KEY = Statement("""
    INSERT INTO idempotency_keys AS old (conversation_id, key, request_hash, answer, created_at)
    VALUES (:conversation_id, :key, :request_hash, '', now())
    ON CONFLICT (conversation_id, key) DO UPDATE
    SET request_hash = excluded.request_hash, created_at = excluded.created_at
    WHERE excluded.created_at - old.created_at >= interval '24 hours'
""")


def named_calls(ids: str | None, names: str | None) -> dict[str, str]:
    """Return the tools that a message calls by call id."""
    if ids is None or names is None:
        return {}
    return dict(zip(json_text.loads(ids), json_text.loads(names), strict=True))
