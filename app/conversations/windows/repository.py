"""Active windows in PostgreSQL: how they are found, moved and cleared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from app.blobs.stored_output import stored_output_from
from app.conversations.conversation import ConversationState
from app.conversations.messages.repository import MESSAGE_TIME, seq_search
from app.conversations.view import Span
from app.database.connections import Repository, Statement
from app.database.sql import assigned, edges, equal, fields_of

_FIRST_AFTER = seq_search(
    ":conversation_id",
    "CAST(:first AS bigint)",
    ":head_seq + 1",
    f"{MESSAGE_TIME} <= CAST(:marker AS timestamptz)",
)
# A call group that begins before the marker is left out with all its results.
FIND_START = Statement(f"""
    SELECT coalesce((
        SELECT m.seq FROM messages m
        WHERE m.conversation_id = :conversation_id AND m.seq >= ({_FIRST_AFTER}) AND NOT m.joins
        ORDER BY m.seq LIMIT 1
    ), :head_seq + 1) AS since
""")

# A group ends at the next message that does not join it.
FIND_GAPS = Statement("""
    SELECT DISTINCT
        coalesce((
            SELECT starts.seq FROM messages starts
            WHERE starts.conversation_id = :conversation_id
                AND starts.seq <= late.seq AND NOT starts.joins
            ORDER BY starts.seq DESC LIMIT 1
        ), late.seq) AS start,
        coalesce((
            SELECT ends.seq FROM messages ends
            WHERE ends.conversation_id = :conversation_id AND ends.seq > late.seq AND NOT ends.joins
            ORDER BY ends.seq LIMIT 1
        ), :head_seq + 1) AS past
    FROM messages late
    WHERE late.conversation_id = :conversation_id
        AND late.late_at IS NOT NULL AND late.seq >= :since
        AND late.late_at <= CAST(:marker AS timestamptz)
    ORDER BY start
""")

FIND_OLDEST = Statement(f"""
    SELECT least(
        (
            SELECT {MESSAGE_TIME} FROM messages m
            WHERE m.conversation_id = :conversation_id AND m.seq >= :since
            ORDER BY m.seq LIMIT 1
        ),
        (
            SELECT min(late.late_at) FROM messages late
            WHERE late.conversation_id = :conversation_id
                AND late.late_at IS NOT NULL AND late.seq >= :since
                AND (CAST(:marker AS timestamptz) IS NULL
                    OR late.late_at > CAST(:marker AS timestamptz))
        )
    ) AS oldest_at
""")

# A range that ends inside a group is extended to its end.
FIND_ENDS = Statement("""
    SELECT coalesce((
        SELECT m.seq FROM messages m
        WHERE m.conversation_id = :conversation_id AND m.seq >= edge.past AND NOT m.joins
        ORDER BY m.seq LIMIT 1
    ), :head_seq + 1) AS past
    FROM unnest(:ends) WITH ORDINALITY AS edge (past, position)
    ORDER BY edge.position
""")

OUTPUTS = Statement("""
    SELECT m.output FROM unnest(:starts, :ends)
        AS part (start, past)
    JOIN messages m ON m.conversation_id = :conversation_id
        AND m.seq >= part.start AND m.seq < part.past
    WHERE m.output IS NOT NULL
""")

# Total tokens are running sums: two rows of the log give the sum between them.
COUNT_TOKENS = Statement("""
    SELECT m.conversation_id, sum(m.total_tokens * edge.sign) AS tokens
    FROM unnest(
        :conversation_ids, :seqs, CAST(:signs AS integer[])
    ) AS edge (in_conversation, at_seq, sign)
    JOIN messages m ON m.conversation_id = edge.in_conversation AND m.seq = edge.at_seq
        AND m.conversation_id = ANY (:conversation_ids)
    GROUP BY m.conversation_id
""")

# Run it with the lock of the state.
MOVE = Statement(
    "UPDATE heads SET "
    + assigned(
        *("since", "parts", "outside_tokens", "outside_messages", "window_seconds"),
        *("group_seq", "is_answering", "provider_calls"),
        *("mentions", "oldest_at", "view_version", "view_cause", "compaction_id"),
        *("span_start", "span_end", "kept", "trimmed_through", "summary_tokens"),
        *("hidden_tokens", "hidden_messages"),
    )
    + f" WHERE {equal('conversation_id')}"
)

# All messages of the log are outside then, and no summary of them is shown. Messages received from
# now on are newer than the clear, even if a clock goes back.
CLEAR = Statement("""
    UPDATE heads
    SET cleared_at = greatest(cleared_at, :at), cleared_seq = head_seq,
        since = head_seq + 1, parts = '', oldest_at = NULL,
        newest_at = greatest(newest_at, :at + interval '1 microsecond'),
        outside_tokens = tokens, outside_messages = head_seq,
        hidden_tokens = tokens, hidden_messages = head_seq,
        view_version = view_version + 1, view_cause = 'cleared',
        compaction_id = NULL, span_start = NULL, span_end = NULL, kept = '{}',
        trimmed_through = 0, summary_tokens = 0, resume_at = 0, failures = 0, due_at = NULL,
        last_failure = NULL, failed_at = NULL,
        promoted = '{}', mentions = '{}',
        group_seq = head_seq + 1, provider_calls = '{}', is_answering = false,
        event_seq = event_seq + 1
    WHERE conversation_id = ANY (:conversation_ids)
    RETURNING conversation_id, event_seq
""")
# A second statement: Citus changes rows of several shards in no WITH.
ADD_CLEARED = Statement("""
    INSERT INTO events (conversation_id, event_seq, type, data, created_at)
    SELECT conversation_id, event_seq, 'cleared', CAST(:data AS text), clock_timestamp()
    FROM unnest(CAST(:conversation_ids AS uuid[]), CAST(:event_seqs AS bigint[]))
        AS cleared (conversation_id, event_seq)
""")


class ActiveWindowRepository(Repository):
    """Reads and moves the active window of one conversation."""

    async def oldest_at(
        self, conversation_id: str, since: int, marker: datetime | None
    ) -> datetime | None:
        """Return the time of the oldest message from a seq on that is newer than the marker."""
        oldest: datetime | None = await self._session.value(
            FIND_OLDEST, conversation_id=conversation_id, since=since, marker=marker
        )
        return oldest

    async def tokens_in(self, spans: Mapping[str, Sequence[Span]]) -> Mapping[str, int]:
        """Return the tokens of the messages in the spans of each of these conversations."""
        edges = [
            (conversation_id, seq - 1, sign)
            for conversation_id, parts in spans.items()
            for span in parts
            for seq, sign in ((span.start, -1), (span.end, 1))
        ]
        tokens = dict.fromkeys(spans, 0)
        if edges:
            keys, seqs, signs = (list(values) for values in zip(*edges, strict=True))
            rows = await self._session.all(
                COUNT_TOKENS, conversation_ids=keys, seqs=seqs, signs=signs
            )
            tokens |= {str(row["conversation_id"]): int(row["tokens"]) for row in rows}
        return tokens

    async def mentions_in(self, conversation_id: str, spans: Sequence[Span]) -> frozenset[str]:
        """Return the agent tools that previews of results in these spans name."""
        rows = await self._session.all(OUTPUTS, conversation_id=conversation_id, **edges(spans))
        return frozenset(
            name for row in rows for name in stored_output_from(row["output"]).mentions
        )

    async def move(self, conversation_id: str, state: ConversationState) -> None:
        """Store the window and the view of a state.

        Call it in a transaction that holds the state's lock.
        """
        values = fields_of(state) | {
            "conversation_id": conversation_id,
            "since": state.window.since,
            "parts": state.window.parts_as_json(),
            "group_seq": state.calls.group_seq,
            "is_answering": state.calls.is_answering,
            "provider_calls": list(state.calls.provider),
            "span_start": state.hidden_span.start if state.hidden_span is not None else None,
            "span_end": state.hidden_span.end if state.hidden_span is not None else None,
            "kept": state.kept_seqs,
            "trimmed_through": state.results_cleared_through,
        }
        await self._session.run(MOVE, **values)

    async def clear(self, conversation_ids: Sequence[str], at: datetime, data: str) -> int:
        """Empty the windows of those that exist, and return their number.

        Each gets an event with `data`, a JSON object. No other transaction locks several
        conversations, unless it has the lock of their agent.
        """
        rows = await self._session.all(CLEAR, conversation_ids=list(conversation_ids), at=at)
        keys, seqs = ([row[name] for row in rows] for name in ("conversation_id", "event_seq"))
        await self._session.run(ADD_CLEARED, conversation_ids=keys, event_seqs=seqs, data=data)
        return len(rows)
