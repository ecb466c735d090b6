"""Moves the active window of a conversation as time passes.

1. A read moves the window: a build, a compaction or a transcript. The stored window is correct
   until its oldest message is older than the rolling window, or until the length of the rolling
   window changes. The conversation's state has both values, so the check needs no query.
2. A move is one transaction that locks the conversation's state. It keeps the part of the active
   compaction that is still in the window, and drops summaries that are wholly outside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from app.blobs.stored_output import stored_output_from
from app.common import json_text
from app.conversations.conversation import BreakReason, Conversation, ConversationState
from app.conversations.messages.repository import MESSAGE_TIME, seq_search
from app.conversations.receipt import Receipt, ViewState
from app.conversations.settings_resolver import SettingsResolver
from app.conversations.turns import Entry
from app.conversations.view import (
    ActiveWindow,
    Span,
    View,
    count_in,
    marker_of,
    overlap,
    spans_through,
    still_restored,
    time_after_clear,
)
from app.conversations.view_changes import (
    base_view,
    protected_with,
    shown_entries,
    view_summary_tokens,
    with_view,
)
from app.database.connections import Statement
from app.database.sql import assigned, edges, equal, fields_of
from app.repositories import Database, Repositories

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
    "UPDATE states SET "
    + assigned(
        *("since", "window_parts", "outside_tokens", "outside_messages", "window_seconds"),
        *("open_calls", "open_seqs", "group_seq", "is_answering", "provider_calls"),
        *("named_tools", "oldest_at", "view_version", "view_cause", "compaction_id"),
        *("hidden_start", "hidden_end", "protected_seqs", "results_cleared_through"),
        *("summary_tokens", "hidden_tokens", "hidden_messages"),
    )
    + f" WHERE {equal('conversation_id')}"
)

# All messages of the log are outside then, and no summary of them is shown. Messages received from
# now on are newer than the clear, even if a clock goes back.
CLEAR = Statement("""
    UPDATE states
    SET cleared_at = greatest(cleared_at, :at), cleared_seq = head_seq,
        since = head_seq + 1, window_parts = '', oldest_at = NULL,
        newest_at = greatest(newest_at, :at + interval '1 microsecond'),
        outside_tokens = tokens, outside_messages = head_seq,
        hidden_tokens = tokens, hidden_messages = head_seq,
        view_version = view_version + 1, view_cause = 'cleared',
        compaction_id = NULL, hidden_start = NULL, hidden_end = NULL, protected_seqs = '{}',
        results_cleared_through = 0, summary_tokens = 0, resume_at_tokens = 0, failures = 0,
        due_at = NULL, last_failure = NULL, failed_at = NULL,
        promoted = '{}', named_tools = '{}',
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


@dataclass(eq=False, repr=False)
class ActiveWindows:
    """Moves active windows, and puts restored messages back into them."""

    _database: Database
    _resolver: SettingsResolver
    now: Callable[[], datetime]

    async def updated(self, tenant_id: str, conversation: Conversation) -> Conversation:
        """Return the conversation with an up-to-date window; raises NotFound."""
        if not conversation.is_outdated(self.now()):
            return conversation
        async with self._database.transaction() as session:
            locked = await session.conversations.get(
                tenant_id, conversation.conversation_id, lock=True
            )
            return await self.update_locked(session, locked)

    async def update_locked(
        self, session: Repositories, conversation: Conversation
    ) -> Conversation:
        """Do what `updated` does, in a transaction that holds the lock of the state."""
        now = self.now()
        if not conversation.is_outdated(now):
            return conversation
        conversation_id, state = conversation.conversation_id, conversation.state
        seconds = conversation.rolling_window_seconds
        sql, one_step_ahead = session.session, state.window_seconds == seconds
        marker = marker_of(state.cleared_at, seconds, now, one_step_ahead=one_step_ahead)
        window = ActiveWindow(state.cleared_seq + 1)
        if marker is not None:
            place = {"conversation_id": conversation_id, "head_seq": state.head_seq}
            since = await sql.value(FIND_START, first=window.since, marker=marker, **place)
            gaps = await sql.all(FIND_GAPS, since=since, marker=marker, **place)
            window = ActiveWindow(since, tuple(Span(row["start"], row["past"]) for row in gaps))
        rewound = tuple(it for it in state.window.rewound if it.span.end > window.since)
        window = replace(window, rewound=rewound)
        restored = still_restored(state.window.restored, window, marker)
        window = replace(window, restored=restored)
        oldest_at = await find_oldest_at(session, conversation_id, window.since, marker)
        times = (oldest_at, *(item.at for item in restored))
        oldest_at = min(filter(None, times), default=None)
        return await self._move(session, conversation, window, oldest_at, "window_moved")

    async def restore(
        self, session: Repositories, conversation: Conversation, spans: Sequence[Span]
    ) -> Conversation:
        """Put ranges of the log back into the window, with whole call groups.

        Call it in a transaction that holds the lock of the conversation's state.
        """
        conversation = await self.update_locked(session, conversation)
        conversation_id, state = conversation.conversation_id, conversation.state
        now = time_after_clear(self.now(), state.cleared_at)
        window, head_seq = state.window, state.head_seq
        stored = overlap(spans, (Span(1, head_seq + 1),))
        where = {"conversation_id": conversation_id, "head_seq": head_seq}
        ends = await session.session.all(FIND_ENDS, ends=[span.end for span in stored], **where)
        pairs = zip(stored, ends, strict=True)
        whole_groups = [Span(span.start, row["past"]) for span, row in pairs]
        new_window = window.with_restored(whole_groups, now)
        if new_window == window:
            return conversation
        oldest_at = min(state.oldest_at or now, now)
        restored_mentions = await mentions_in(session, conversation_id, whole_groups)
        mentions = tuple(dict.fromkeys((*state.named_tools, *sorted(restored_mentions))))
        conversation = replace(conversation, state=replace(state, named_tools=mentions))
        return await self._move(session, conversation, new_window, oldest_at, "restored")

    async def rewind(
        self, session: Repositories, conversation: Conversation, span: Span
    ) -> Conversation:
        """Take a range at the end of the log out of the window, and close its calls.

        The view is to be stored after that, in the same transaction, which holds the state's lock.
        """
        calls = conversation.state.calls
        window = conversation.state.window.rewind(span, self.now(), calls.open)
        left = {call_id: seq for call_id, seq in calls.open.items() if not span.holds(seq)}
        return await _with_calls(session, conversation, window, left)

    async def unrewind(
        self, session: Repositories, conversation: Conversation, span: Span
    ) -> Conversation:
        """Undo `rewind` for a range; its calls are open again."""
        state = conversation.state
        left = state.window.newest_rewound(span)
        calls = {**dict(left.calls if left is not None else ()), **state.calls.open}
        return await _with_calls(session, conversation, state.window.unrewind(span), calls)

    async def _move(
        self,
        session: Repositories,
        conversation: Conversation,
        window: ActiveWindow,
        oldest_at: datetime | None,
        cause: BreakReason,
    ) -> Conversation:
        """Store a window, and return the conversation with it."""
        conversation_id, state = conversation.conversation_id, conversation.state
        moved = replace(
            await with_window(session, conversation_id, state, window),
            window_seconds=conversation.rolling_window_seconds,
            oldest_at=oldest_at,
        )
        active = await session.contexts.find_receipt(conversation_id, state.compaction_id)
        conversation = replace(conversation, state=moved)
        view_state = await view_state_of(session, self._resolver, conversation, active)
        has_changed = window.spans != state.window.spans
        moved = with_view(moved, view_state, cause if has_changed else None)
        await store_window(session, conversation_id, moved)
        return replace(conversation, state=moved)


async def _with_calls(
    session: Repositories,
    conversation: Conversation,
    window: ActiveWindow,
    open_calls: Mapping[str, int],
) -> Conversation:
    """Store a window with the calls that are open in it, and return the conversation."""
    conversation_id, state = conversation.conversation_id, conversation.state
    state = replace(state, calls=replace(state.calls, open=open_calls))
    state = await with_window(session, conversation_id, state, window)
    await store_window(session, conversation_id, state)
    return replace(conversation, state=state)


async def with_window(
    session: Repositories, conversation_id: str, state: ConversationState, window: ActiveWindow
) -> ConversationState:
    """Return the state with this window, and with the counts of messages outside it.

    A call group outside of it has ended.
    """
    spans = spans_through(window.spans, state.head_seq)
    tokens = await tokens_in(session, {conversation_id: spans})
    return replace(
        state,
        calls=state.calls if window.holds(state.head_seq) else state.calls.ended(state.head_seq),
        window=window,
        outside_tokens=state.tokens - tokens[conversation_id],
        outside_messages=state.head_seq - count_in(spans),
    )


async def view_state_of(
    session: Repositories,
    resolver: SettingsResolver,
    conversation: Conversation,
    receipt: Receipt | None,
) -> ViewState:
    """Return the view of a conversation's window by a receipt, or of the whole window.

    Messages that the state keeps stay in the view, and pins are shown, also those set or restored
    since. A receipt without effect on the window is left out.
    """
    state = conversation.state
    window = state.window.spans
    whole = View(spans=window, window=window)
    whole_window = ViewState(whole, None, 0, state.outside_tokens, state.outside_messages)
    if receipt is None:
        return whole_window
    policy = resolver.policy_of(conversation)
    view = base_view(state, receipt.view, policy)
    pinned = await session.log.pinned(conversation.conversation_id)
    protected_seqs = protected_with(view, state.protected_seqs, pinned)[0]
    view = base_view(replace(state, protected_seqs=protected_seqs), receipt.view, policy)
    if (
        view.hidden is None
        and view.provider_item is None
        and view.last_cleared_result < window[0].start
        and not view.shortened
        and not state.window.rewound
    ):
        return whole_window
    entries: list[Entry] = []
    for span in spans_through(view.spans, state.head_seq):
        entries += await session.log.entries(conversation.conversation_id, span.start, span.end)
    shown = shown_entries(entries, view)
    return ViewState(
        view,
        receipt.compaction_id,
        view_summary_tokens(view, resolver.counter(conversation.counter)),
        state.tokens - sum(entry.tokens for entry in shown),
        state.head_seq - len(shown),
        tuple(filter(view.shows, protected_seqs)),
    )


async def find_oldest_at(
    session: Repositories, conversation_id: str, since: int, marker: datetime | None
) -> datetime | None:
    """Return the time of the oldest message from a seq on that is newer than the marker."""
    oldest: datetime | None = await session.session.value(
        FIND_OLDEST, conversation_id=conversation_id, since=since, marker=marker
    )
    return oldest


async def tokens_in(
    session: Repositories, spans: Mapping[str, Sequence[Span]]
) -> Mapping[str, int]:
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
        rows = await session.session.all(
            COUNT_TOKENS, conversation_ids=keys, seqs=seqs, signs=signs
        )
        tokens |= {str(row["conversation_id"]): int(row["tokens"]) for row in rows}
    return tokens


async def mentions_in(
    session: Repositories, conversation_id: str, spans: Sequence[Span]
) -> frozenset[str]:
    """Return the agent tools that previews of results in these spans name."""
    rows = await session.session.all(OUTPUTS, conversation_id=conversation_id, **edges(spans))
    outputs = (stored_output_from(row["output"]) for row in rows)
    return frozenset(name for output in outputs for name in output.preview.mentions)


async def store_window(
    session: Repositories, conversation_id: str, state: ConversationState
) -> None:
    """Store the window and the view of a state.

    Call it in a transaction that holds the state's lock.
    """
    values = fields_of(state) | {
        "conversation_id": conversation_id,
        "since": state.window.since,
        "window_parts": state.window.parts_as_json(),
        "open_calls": [*state.calls.open],
        "open_seqs": [*state.calls.open.values()],
        "group_seq": state.calls.group_seq,
        "is_answering": state.calls.is_answering,
        "provider_calls": list(state.calls.provider),
        "hidden_start": state.hidden_span.start if state.hidden_span is not None else None,
        "hidden_end": state.hidden_span.end if state.hidden_span is not None else None,
        "protected_seqs": state.protected_seqs,
        "results_cleared_through": state.results_cleared_through,
    }
    await session.session.run(MOVE, **values)


async def clear_windows(
    session: Repositories, conversation_ids: Sequence[str], at: datetime, **of_agent: str
) -> int:
    """Empty the windows of those that exist, and return their number.

    Each gets an event, which has the id of a cleared agent. No other transaction locks several
    conversations, unless it has the lock of their agent.
    """
    rows = await session.session.all(CLEAR, conversation_ids=list(conversation_ids), at=at)
    keys, seqs = ([row[name] for row in rows] for name in ("conversation_id", "event_seq"))
    data = json_text.dumps({**of_agent, "last_cleared_at": at.isoformat()})
    await session.session.run(ADD_CLEARED, conversation_ids=keys, event_seqs=seqs, data=data)
    return len(rows)
