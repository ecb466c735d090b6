"""Forks: conversations that start as a copy of another one up to a seq [forks.open-calls].

1. A fork has the log up to and including that seq. Calls that are open there are closed.
2. A fork has the active window of its source, cut at that seq. If that is empty at an earlier seq,
   because of a clear or a rolling window, the whole log is restored into the fork's window. A fork
   at the head has the window of its source, even an empty one.
3. A fork shows the newest compaction of its source that covers no later message, and leaves one of
   the fork shown. It has the earlier ones too, so that the compaction can be undone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime

from app.blobs.blobs import Blob
from app.conversations.compaction_receipt import Compaction
from app.conversations.conversation import ConversationState
from app.conversations.messages.batch import NO_CALLS
from app.conversations.turns import Entry
from app.conversations.view import Span, View, overlap, spans_through
from app.conversations.views import kept_seqs
from app.conversations.windows.active_window import TICK, ActiveWindow, Restored, time_after_clear

BATCH_BYTES = 64 * 2**20
"""The maximum of bytes that one statement copies, unless one blob alone has more."""
BATCH_BLOBS = 500
"""The maximum of blobs that one statement copies."""


def restores_log(state: ConversationState, at_seq: int) -> bool:
    """Return whether a fork at a seq restores the whole log into its window (rule 2)."""
    return 0 < at_seq < state.head_seq and not spans_through(state.window.spans, at_seq)


def state_at(state: ConversationState, at_seq: int) -> ConversationState:
    """Return the state of a fork before its log is copied.

    `resume_at_tokens`, the size at which compaction is tried again, holds for the whole log only.
    """
    return replace(
        state,
        head_seq=at_seq,
        calls=NO_CALLS,
        cleared_seq=min(state.cleared_seq, at_seq),
        resume_at_tokens=state.resume_at_tokens if at_seq == state.head_seq else 0,
    )


def window_at(state: ConversationState, at_seq: int, now: datetime) -> ActiveWindow:
    """Return the active window of a fork that is created now (rule 2)."""
    log = (Span(1, at_seq + 1),)
    window = ActiveWindow(
        min(state.window.since, at_seq + 1),
        tuple(span for gap in state.window.gaps for span in overlap((gap,), log)),
        tuple(
            Restored(span, item.at)
            for item in state.window.restored
            for span in overlap((item.span,), log)
        ),
    )
    if not restores_log(state, at_seq):
        return window
    # Restored after the clear, which would remove the log from the window otherwise.
    return window.with_restored(log, time_after_clear(now, state.cleared_at))


def oldest_before(state: ConversationState) -> datetime | None:
    """Return a time before the oldest message of a window, None for an empty window."""
    return state.oldest_at - TICK if state.oldest_at is not None else None


def covers_only(view: View, at_seq: int) -> bool:
    """Return whether a view covers no message after a seq, and shows one up to it (rule 3)."""
    hidden = view.hidden
    if view.provider_item is not None and view.provider_item.seq > at_seq:
        return False
    shows = any(span.start <= at_seq for span in view.spans)
    return view.results_cleared_through <= at_seq and (
        hidden is None or (hidden.end <= at_seq + 1 and shows)
    )


def kept_seqs_at(
    state: ConversationState, at_seq: int, receipt: Compaction, pinned: Iterable[Entry]
) -> tuple[int, ...]:
    """Return the seqs that a fork keeps visible although this compaction hides or clears them.

    These are the seqs that its source keeps, if the compaction is active there, and all pins.
    """
    is_active = state.compaction_id == receipt.compaction_id
    kept = (
        tuple(seq for seq in state.kept_seqs if seq <= at_seq)
        if is_active
        else kept_seqs(receipt.view)
    )
    return tuple(sorted({*kept, *(item.seq for item in pinned)}))


def blob_batches(blobs: Iterable[Blob]) -> Iterator[list[Blob]]:
    """Yield blobs in batches, one for each statement that copies them."""
    batch: list[Blob] = []
    size = 0
    for blob in blobs:
        if batch and (len(batch) == BATCH_BLOBS or size + blob.byte_size > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(blob)
        size += blob.byte_size
    if batch:
        yield batch
