"""Forks: conversations that begin as another one was at a seq, and go on by themselves (I6).

1. A fork has the log up to and including that seq. Calls that are open there are closed: what would
   answer them came later, if ever.
2. Its active window is its source's, as far as the log goes. Where nothing of that is left at an
   earlier seq, before a clear or a window's length ago, all of the log is put back: whoever forks
   there goes on there. A fork at the head shows what its source shows, be it nothing.
3. It shows the newest compaction of its source that says nothing of what came later, and has those
   before it as well, so that it can be undone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime

from app.domain.compaction.views import kept_seqs
from app.domain.conversations.active_window import TICK, ActiveWindow, Restored, after_clear
from app.domain.conversations.compaction_receipt import Compaction
from app.domain.conversations.conversation import ConversationState
from app.domain.conversations.turns import Entry
from app.domain.conversations.view import Span, View, overlap, spans_through
from app.domain.tool_output.blobs import Blob

BATCH_BYTES = 64 * 2**20
"""Bytes of blobs that are copied with one statement, unless one blob alone has more."""
BATCH_BLOBS = 500
"""Blobs that are."""


def puts_back(state: ConversationState, at_seq: int) -> bool:
    """Whether a fork at a seq has back what its source shows nothing of any more (rule 2)."""
    return 0 < at_seq < state.head_seq and not spans_through(state.window.spans, at_seq)


def head_at(state: ConversationState, at_seq: int) -> ConversationState:
    """Return what is known of a fork's head before its log is there.

    To leave a conversation alone until it has grown is said of all of its log (decision 24).
    """
    return replace(
        state,
        head_seq=at_seq,
        cleared_seq=min(state.cleared_seq, at_seq),
        resume_at=state.resume_at if at_seq == state.head_seq else 0,
    )


def window_at(state: ConversationState, at_seq: int, now: datetime) -> ActiveWindow:
    """Return the window of a fork that is made now of a conversation with this head (rule 2)."""
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
    if not puts_back(state, at_seq):
        return window
    # Otherwise the clear would take it out again.
    return window.with_restored(log, after_clear(now, state.cleared_at))


def oldest_before(state: ConversationState) -> datetime | None:
    """Return a time that is older than everything in a head's window, None where there is none."""
    return state.oldest_at - TICK if state.oldest_at is not None else None


def fits(view: View, at_seq: int) -> bool:
    """Whether a view says nothing of what comes after a seq (rule 3)."""
    hidden = view.hidden
    return view.trimmed_through <= at_seq and (hidden is None or hidden.end <= at_seq + 1)


def kept_at(
    state: ConversationState, at_seq: int, receipt: Compaction, pinned: Iterable[Entry]
) -> tuple[int, ...]:
    """Return the seqs that a fork keeps beside what this receipt of its source hides or clears.

    Those are what its source keeps, if the receipt is the active one there, and every pin (D8).
    """
    is_active = state.compaction_id == receipt.compaction_id
    kept = (
        tuple(seq for seq in state.kept if seq <= at_seq) if is_active else kept_seqs(receipt.view)
    )
    return tuple(sorted({*kept, *(item.seq for item in pinned)}))


def batches(blobs: Iterable[Blob]) -> Iterator[list[Blob]]:
    """Yield blobs as they are copied together."""
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
