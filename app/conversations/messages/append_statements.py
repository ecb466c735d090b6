"""The statement that appends a batch, in its variants [log.one-statement]."""

from __future__ import annotations

from app.blobs.statements import BLOB_CTES
from app.conversations.messages.batch import MAX_OPEN_CALLS
from app.conversations.rows import CONVERSATION_COLUMNS, SETTINGS_JOINS, STATE_COLUMNS
from app.database.connections import Statement
from app.database.conversation_tables import NOT_EXPIRED

# Results are offloaded by the cached settings, so these must be the current ones: no other process
# may have changed them.
_IS_UNCHANGED = """(
    c.updated_at = CAST(:cached_at AS timestamptz)
    AND (c.agent_id IS NULL OR EXISTS (
        SELECT FROM agents a
        WHERE a.tenant_id = c.tenant_id AND a.agent_id = c.agent_id
            AND a.updated_at = CAST(:cached_agent_at AS timestamptz)
    ))
)"""
_WINDOW = """newest_before = h.newest_at,
                newest_at = greatest(h.newest_at, CAST(:newest_at AS timestamptz)),
                oldest_at = least(
                    h.oldest_at, CAST(:oldest_sent AS timestamptz),
                    greatest(CAST(:now AS timestamptz), h.newest_at)),"""
# The state of the log that the shape of a batch expects: see `BatchShape`.
_IS_USUAL = f"""(
    cardinality(h.open_calls) <= {MAX_OPEN_CALLS}
    AND NOT (CAST(:begins_answer AS boolean) AND cardinality(h.provider_calls) > 0)
    AND NOT EXISTS (
        SELECT FROM unnest(h.open_calls, h.open_seqs) AS o (call, seq)
        WHERE CASE WHEN o.call = ANY (CAST(:required_calls AS text[])) THEN o.seq < h.group_seq
            ELSE CAST(:begins_answer AS boolean) AND o.seq >= h.group_seq END
    )
)"""
# Bodies are bytes: the output of orjson is sent without decoding. The update matches the row in
# `heads` only in the state for which the batch was prepared, and its lock orders concurrent
# writers. Without a match nothing is stored.
_APPEND = f"""
        WITH moved AS (
            UPDATE heads h
            SET head_seq = h.head_seq + cardinality(CAST(:ids AS text[])),
                turns = h.turns + CAST(:turns AS bigint),
                tokens = h.tokens + CAST(:tokens AS bigint),
                due_at = CASE
                    WHEN h.due_at IS NULL
                        AND h.tokens + CAST(:tokens AS bigint) >= h.resume_at
                        AND (
                            h.tokens + CAST(:tokens AS bigint) - h.hidden_tokens
                                + h.summary_tokens >= CAST(:due_tokens AS bigint)
                            OR h.head_seq + cardinality(CAST(:ids AS text[]))
                                - h.hidden_messages > CAST(:due_messages AS bigint)
                        ) THEN now()
                    ELSE h.due_at
                END,
                mentions = CASE
                    WHEN CAST(:mentions AS text[]) <@ h.mentions THEN h.mentions
                    ELSE h.mentions || CAST(:mentions AS text[])
                END,
                {{window}}
                open_calls = ARRAY(
                    SELECT o.call FROM unnest(h.open_calls) AS o (call)
                    WHERE o.call <> ALL (CAST(:closed_calls AS text[]))
                ) || CAST(:opened_calls AS text[]),
                open_seqs = ARRAY(
                    SELECT o.seq FROM unnest(h.open_calls, h.open_seqs) AS o (call, seq)
                    WHERE o.call <> ALL (CAST(:closed_calls AS text[]))
                ) || ARRAY(
                    SELECT h.head_seq + 1 + o.at FROM unnest(CAST(:opened_at AS bigint[])) AS o (at)
                ),
                group_seq = coalesce(h.head_seq + 1 + CAST(:group_at AS bigint), h.group_seq),
                provider_calls = coalesce(
                    CAST(:provider_calls AS text[]), h.provider_calls),
                is_answering = CAST(:is_answering AS boolean)
            FROM conversations c
            WHERE h.conversation_id = CAST(:conversation_id AS uuid)
                AND c.conversation_id = CAST(:conversation_id AS uuid)
                AND c.tenant_id = CAST(:tenant_id AS text) AND {NOT_EXPIRED}
                AND (NOT CAST(:if_unchanged AS boolean) OR {_IS_UNCHANGED})
                AND h.counter = CAST(:counter AS text)
                AND h.open_calls @> CAST(:required_calls AS text[])
                AND (CAST(:is_known AS boolean) OR {_IS_USUAL})
                AND (CAST(:expected_seq AS bigint) IS NULL
                    OR h.head_seq = CAST(:expected_seq AS bigint))
                AND NOT EXISTS (
                    SELECT FROM messages known
                    WHERE known.conversation_id = CAST(:conversation_id AS uuid)
                        AND known.message_id = ANY (CAST(:client_ids AS text[]))
                )
            RETURNING {STATE_COLUMNS}, h.newest_at, h.newest_before
        ), stored AS (
            INSERT INTO messages (
                conversation_id, seq, message_id, turn, role, format, tokens, reasoning_tokens,
                total_tokens, call_ids, call_names, has_media, joins, body, fragment,
                output, timestamp, at, late_at
            )
            SELECT
                CAST(:conversation_id AS uuid),
                moved.head_seq - cardinality(CAST(:ids AS text[])) + item.position,
                item.id,
                moved.turns - CAST(:turns AS bigint) + item.turn,
                item.role,
                CAST(:format AS text),
                item.tokens,
                item.reasoning_tokens,
                moved.tokens - CAST(:tokens AS bigint) + item.total_tokens,
                item.call_ids, item.call_names, item.has_media, item.joins,
                convert_from(item.body, 'UTF8'), convert_from(item.fragment, 'UTF8'),
                item.output, item.timestamp, {{times}}
            FROM moved, unnest(
                CAST(:ids AS text[]), CAST(:row_turns AS bigint[]), CAST(:roles AS text[]),
                CAST(:row_tokens AS integer[]), CAST(:row_reasoning AS integer[]),
                CAST(:row_totals AS bigint[]), CAST(:call_ids AS text[]),
                CAST(:call_names AS text[]), CAST(:has_media AS boolean[]),
                CAST(:joins AS boolean[]), CAST(:bodies AS bytea[]),
                CAST(:fragments AS bytea[]), CAST(:outputs AS text[]),
                CAST(:timestamps AS text[]){{arrays}}
            ) WITH ORDINALITY AS item (
                id, turn, role, tokens, reasoning_tokens, total_tokens, call_ids, call_names,
                has_media, joins, body, fragment, output, timestamp{{columns}}, position
            )
        ){{blobs}}
        SELECT {CONVERSATION_COLUMNS}, {STATE_COLUMNS}, h.due_at = now() AS became_due
        FROM moved h
        JOIN conversations c ON c.conversation_id = CAST(:conversation_id AS uuid)
        {SETTINGS_JOINS}
        """
# Most messages have no timestamps. They use a shorter statement, because every expression costs
# time.
_USUAL_WINDOW = """newest_at = greatest(h.newest_at, CAST(:newest_at AS timestamptz)),
                oldest_at = least(
                    h.oldest_at, greatest(CAST(:newest_at AS timestamptz), h.newest_at)),"""
_NO_TIMES = {"times": "moved.newest_at, NULL", "arrays": "", "columns": ""}
_TIMES = {
    "times": """greatest(item.newest_at, moved.newest_before),
                CASE WHEN item.sent_at < greatest(item.newest_at, moved.newest_before)
                    THEN item.sent_at END""",
    "arrays": """, CAST(:sent_times AS timestamptz[]),
                CAST(:newest_times AS timestamptz[])""",
    "columns": ", sent_at, newest_at",
}


def _statement(is_timed: bool, has_blobs: bool) -> Statement:
    return Statement(
        _APPEND.format(
            window=_WINDOW if is_timed else _USUAL_WINDOW,
            # Blobs are stored with their messages or not at all.
            blobs=f", {BLOB_CTES}" if has_blobs else "",
            **(_TIMES if is_timed else _NO_TIMES),
        )
    )


APPENDS = {
    (is_timed, has_blobs): _statement(is_timed, has_blobs)
    for is_timed in (False, True)
    for has_blobs in (False, True)
}
"""Statements by whether the batch has timestamps, and has blobs."""
