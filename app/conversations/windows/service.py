"""Moves the active window of a conversation as time passes.

1. A read moves the window: a build, a compaction or a transcript. The stored window is correct
   until its oldest message is older than the rolling window, or until the length of the rolling
   window changes. The conversation's state has both values, so the check needs no query.
2. A move is one transaction that locks the conversation's state. It keeps the part of the active
   compaction that is still in the window, and drops summaries that are wholly outside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime

from app.conversations.compaction_receipt import Compaction, ViewState
from app.conversations.conversation import Conversation, ConversationState
from app.conversations.lookup import lock_conversation
from app.conversations.settings_resolver import SettingsResolver
from app.conversations.turns import Entry
from app.conversations.view import Span, View, count_in, overlap, spans_through
from app.conversations.views import base_view, shown_entries, view_summary_tokens, with_view
from app.conversations.windows.active_window import (
    ActiveWindow,
    marker_of,
    still_restored,
    time_after_clear,
)
from app.conversations.windows.repository import FIND_ENDS, FIND_GAPS, FIND_START
from app.repositories import Database, Repositories


class ActiveWindows:
    """Moves active windows, and puts restored messages back into them."""

    def __init__(
        self, database: Database, resolver: SettingsResolver, now: Callable[[], datetime]
    ) -> None:
        self._database = database
        self._resolver = resolver
        self.now = now

    async def updated(self, tenant_id: str, conversation: Conversation) -> Conversation:
        """Return the conversation with an up-to-date window; raises NotFound."""
        if not conversation.is_outdated(self.now()):
            return conversation
        async with self._database.transaction() as session:
            locked = await lock_conversation(
                session, tenant_id, conversation.conversation_id, self._resolver.default_model
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
            head = {"conversation_id": conversation_id, "head_seq": state.head_seq}
            since = await sql.value(FIND_START, first=window.since, marker=marker, **head)
            gaps = await sql.all(FIND_GAPS, since=since, marker=marker, **head)
            window = ActiveWindow(since, tuple(Span(row["start"], row["past"]) for row in gaps))
        restored = still_restored(state.window.restored, window, marker)
        window = replace(window, restored=restored)
        oldest_at = await session.windows.oldest_at(conversation_id, window.since, marker)
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
        ends = await session.session.all(
            FIND_ENDS,
            conversation_id=conversation_id,
            head_seq=head_seq,
            ends=[span.end for span in stored],
        )
        whole_groups = [
            Span(span.start, row["past"]) for span, row in zip(stored, ends, strict=True)
        ]
        new_window = window.with_restored(whole_groups, now)
        if new_window == window:
            return conversation
        oldest_at = min(state.oldest_at or now, now)
        restored_mentions = await session.windows.mentions_in(conversation_id, whole_groups)
        mentions = tuple(dict.fromkeys((*state.mentions, *sorted(restored_mentions))))
        conversation = replace(conversation, state=replace(state, mentions=mentions))
        return await self._move(session, conversation, new_window, oldest_at, "restored")

    async def _move(
        self,
        session: Repositories,
        conversation: Conversation,
        window: ActiveWindow,
        oldest_at: datetime | None,
        cause: str,
    ) -> Conversation:
        """Store a window, and return the conversation with it."""
        conversation_id, state = conversation.conversation_id, conversation.state
        moved = replace(
            await with_window(session, conversation_id, state, window),
            window_seconds=conversation.rolling_window_seconds,
            oldest_at=oldest_at,
        )
        active = await session.contexts.find_compaction(conversation_id, state.compaction_id)
        conversation = replace(conversation, state=moved)
        view_state = await view_state_of(session, self._resolver, conversation, active)
        has_changed = window.spans != state.window.spans
        moved = with_view(moved, view_state, cause if has_changed else None)
        await session.windows.move(conversation_id, moved)
        return replace(conversation, state=moved)


async def with_window(
    session: Repositories, conversation_id: str, state: ConversationState, window: ActiveWindow
) -> ConversationState:
    """Return the state with this window, and with the counts of messages outside it.

    A call group outside of it has ended.
    """
    spans = spans_through(window.spans, state.head_seq)
    tokens = await session.windows.tokens_in({conversation_id: spans})
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
    receipt: Compaction | None,
) -> ViewState:
    """Return the view of a conversation's window by a receipt, or of the whole window.

    Messages that the state keeps stay in the view. A receipt without effect on the window is left
    out.
    """
    state = conversation.state
    window = state.window.spans
    whole = View(spans=window, window=window)
    whole_window = ViewState(whole, None, 0, state.outside_tokens, state.outside_messages)
    if receipt is None:
        return whole_window
    view = base_view(state, receipt.view, resolver.policy_of(conversation))
    if (
        view.hidden is None
        and view.provider_item is None
        and view.results_cleared_through < window[0].start
        and not view.shortened
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
        tuple(filter(view.shows, state.kept_seqs)),
    )
