"""The select of a build, and the rows that builds and summarisers read."""

from __future__ import annotations

from app.conversations.rows import CONVERSATION_COLUMNS, SETTINGS_JOINS, STATE_COLUMNS
from app.conversations.turns import MAX_PLACEHOLDER_TOKENS
from app.database.connections import Statement
from app.database.conversation_tables import NOT_EXPIRED

_LONG_BYTES = 4 * 2**20
_MAX_UNKNOWN_TOKENS = 260_000
"""How much of a log is read for a build without an epoch, before its limits are known."""

EPOCH_FIELDS = (
    "epoch",
    "epoch_id",
    "lane",
    "format",
    "window",
    "reason",
    "start_seq",
    "view_version",
    "frame",
    "sections_hash",
    "tools_hash",
    "policy_hash",
)


def _epoch_columns(alias: str) -> str:
    plain = ", ".join(
        f"{alias}.{name} AS {alias}_{name}" for name in EPOCH_FIELDS if name != "frame"
    )
    # A caller that has the epoch in its payload cache has its start as well.
    is_cached = f"{alias}.epoch_id = CAST(:cached_epoch_id AS uuid)"
    return f"{plain}, CASE WHEN {is_cached} THEN NULL ELSE {alias}.frame END AS {alias}_frame"


# An aggregate copies a value several times: long messages, which have media, are read apart.
# Of a cleared result only the `output` is read: its placeholder needs no more. An array per column
# is decoded several times faster than a record per message. A chat build reads the rendered item,
# except where that lacks media of results, labels or reasoning.
_ROW_ARRAYS = """
    array_agg(r.message_id ORDER BY r.seq) AS ids,
    array_agg(r.seq ORDER BY r.seq) AS seqs,
    array_agg(r.role ORDER BY r.seq) AS roles,
    array_agg(r.tokens ORDER BY r.seq) AS row_tokens,
    array_agg(r.reasoning_tokens ORDER BY r.seq) AS row_reasoning,
    array_agg(r.call_ids ORDER BY r.seq) AS row_calls,
    array_agg(r.has_media ORDER BY r.seq) AS row_media,
    array_agg(CASE WHEN CAST(:as_chat AS boolean) AND NOT r.has_media AND r.reasoning_tokens = 0
            THEN 'openai_chat' ELSE r.format END ORDER BY r.seq) AS row_formats,
    array_agg(CASE WHEN r.seq <= {trimmed} AND r.role = 'tool' AND r.output IS NOT NULL
            AND r.tokens > {min_tokens} AND r.seq <> ALL ({kept}) THEN ''
        WHEN octet_length(r.body) > {long_bytes} THEN NULL
        ELSE convert_to(CASE WHEN CAST(:as_chat AS boolean) AND NOT r.has_media
                AND r.reasoning_tokens = 0
            THEN coalesce(r.fragment, r.body) ELSE r.body END, 'UTF8') END
        ORDER BY r.seq) AS bodies,
    array_agg(r.output ORDER BY r.seq) AS outputs,
    array_agg(r.joins ORDER BY r.seq) AS row_joins
"""


def _row_arrays(trimmed: str, kept: str) -> str:
    return _ROW_ARRAYS.format(
        trimmed=trimmed, kept=kept, min_tokens=MAX_PLACEHOLDER_TOKENS, long_bytes=_LONG_BYTES
    )


_PAYLOAD_STREAM = """CAST(:format AS text) || ':'
    || coalesce(CAST(:model AS text), c.model, a.model, CAST(:default_model AS text), '')"""

# The newest epoch of the payload stream, or else the active compaction, bounds the rows that a
# build shows. Where neither does, no rows are read here, and the caller reads what it needs.
# Top, kept and tail are ranges of the index: one condition over all would scan what is between.
# Each is ordered by the index. Without that, a plan made before there are statistics may use
# another index, which costs the same while the table is small, and keep it while the table grows.
READ = Statement(
    f"""
        SELECT {CONVERSATION_COLUMNS}, {STATE_COLUMNS},
            {_epoch_columns("e")}, {_epoch_columns("w")},
            CASE WHEN bounds.is_cached THEN NULL ELSE k.view END AS view,
            k.created_at AS compacted_at,
            k.policy_strategy AS compaction_strategy,
            ARRAY(
                SELECT pin.seq FROM pins pin
                WHERE pin.conversation_id = CAST(:conversation_id AS uuid)
                ORDER BY pin.seq
            ) AS pins,
            bounds.is_read AS has_rows,
            CASE WHEN e.epoch IS NULL THEN ARRAY(
                SELECT DISTINCT other.lane FROM epochs other
                WHERE other.conversation_id = CAST(:conversation_id AS uuid)
                    AND other.format = CAST(:format AS text)
            ) ELSE '{{}}'::text[] END AS other_streams,
            rows.*
        FROM conversations c
        JOIN heads h ON h.conversation_id = c.conversation_id
        {SETTINGS_JOINS}
        LEFT JOIN LATERAL (
            SELECT * FROM compactions active
            WHERE active.conversation_id = CAST(:conversation_id AS uuid)
                AND active.compaction_id = h.compaction_id
            LIMIT 1
        ) k ON true
        LEFT JOIN LATERAL (
            SELECT * FROM epochs newest
            WHERE newest.conversation_id = CAST(:conversation_id AS uuid)
                AND newest.lane = {_PAYLOAD_STREAM}
            ORDER BY newest.epoch DESC LIMIT 1
        ) e ON true
        LEFT JOIN LATERAL (
            SELECT * FROM epochs same_window
            WHERE same_window.conversation_id = CAST(:conversation_id AS uuid)
                AND same_window.lane = {_PAYLOAD_STREAM}
                AND same_window."window" = CAST(:window AS bigint)
                AND e."window" <> CAST(:window AS bigint)
            ORDER BY same_window.epoch DESC LIMIT 1
        ) w ON true
        CROSS JOIN LATERAL (
            SELECT
                CASE WHEN v.bounded THEN v.top_start ELSE h.since END AS top_start,
                CASE WHEN v.bounded THEN v.top_end ELSE coalesce(h.span_start, h.since) END
                    AS top_end,
                CASE WHEN v.bounded THEN v.tail_start
                    ELSE greatest(coalesce(h.span_end, 1), h.since) END AS tail_start,
                CASE WHEN v.bounded THEN v.kept ELSE h.kept END AS kept,
                CASE WHEN v.bounded THEN v.trimmed_through ELSE h.trimmed_through END
                    AS trimmed_through,
                coalesce(v.bounded, false)
                    OR h.tokens - h.hidden_tokens <= {_MAX_UNKNOWN_TOKENS} AS is_read,
                CASE WHEN v.bounded AND v.epoch_id = CAST(:cached_epoch_id AS uuid)
                    THEN CAST(:cached_through AS bigint) ELSE 0 END AS cached_through,
                coalesce(v.bounded AND v.epoch_id = CAST(:cached_epoch_id AS uuid), false)
                    AS is_cached
            FROM (
                SELECT
                    coalesce(w.epoch_id, e.epoch_id) AS epoch_id,
                    coalesce(w.top_start, e.top_start) AS top_start,
                    coalesce(w.top_end, e.top_end) AS top_end,
                    coalesce(w.tail_start, e.tail_start) AS tail_start,
                    coalesce(w.kept, e.kept) AS kept,
                    coalesce(w.trimmed_through, e.trimmed_through) AS trimmed_through,
                    coalesce(w.view_version, e.view_version) = h.view_version
                        AND coalesce(w."window", e."window") = CAST(:window AS bigint)
                        AS bounded
            ) v
        ) bounds
        LEFT JOIN LATERAL (
            SELECT {_row_arrays("bounds.trimmed_through", "bounds.kept")}
            FROM (
                (SELECT * FROM messages top
                WHERE top.conversation_id = CAST(:conversation_id AS uuid)
                    AND bounds.is_read
                    AND top.seq >= bounds.top_start AND top.seq < bounds.top_end
                    AND top.seq > bounds.cached_through AND top.seq <= h.head_seq
                ORDER BY top.seq)
                UNION ALL
                (SELECT * FROM messages inside
                WHERE inside.conversation_id = CAST(:conversation_id AS uuid)
                    AND bounds.is_read
                    AND inside.seq = ANY (bounds.kept)
                    AND inside.seq >= bounds.top_end AND inside.seq < bounds.tail_start
                    AND inside.seq > bounds.cached_through
                ORDER BY inside.seq)
                UNION ALL
                (SELECT * FROM messages tail
                WHERE tail.conversation_id = CAST(:conversation_id AS uuid)
                    AND bounds.is_read
                    AND tail.seq >= greatest(bounds.tail_start, bounds.top_end)
                    AND tail.seq > bounds.cached_through AND tail.seq <= h.head_seq
                ORDER BY tail.seq)
            ) r
        ) rows ON true
        WHERE c.conversation_id = CAST(:conversation_id AS uuid)
            AND c.tenant_id = CAST(:tenant_id AS text) AND {NOT_EXPIRED}
        """
)

ROWS = Statement(
    f"""
        SELECT {_row_arrays("CAST(:trimmed_through AS bigint)", "CAST(:untrimmed AS bigint[])")}
        FROM (
            SELECT * FROM messages
            WHERE conversation_id = CAST(:conversation_id AS uuid)
                AND seq >= CAST(:start AS bigint) AND seq < CAST(:end AS bigint)
            ORDER BY seq
        ) r
        """
)

LONG_TEXT = Statement(
    """
        SELECT convert_to(CASE WHEN CAST(:as_chat AS boolean) AND NOT has_media
                AND reasoning_tokens = 0
            THEN coalesce(fragment, body) ELSE body END, 'UTF8') AS text
        FROM messages
        WHERE conversation_id = CAST(:conversation_id AS uuid) AND seq = CAST(:seq AS bigint)
        """
)
