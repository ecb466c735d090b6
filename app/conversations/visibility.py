"""Visibility: how the current context shows each message of a log.

1. The current context is that of the policy's own context window: the active window, of that the
   view of the active compaction, and of that the last messages with a sliding window policy.
2. Every message has one state. `verbatim` and `cleared` messages are shown, `summarised` and
   `left_out` messages are hidden in the active window, and others are `outside`.
3. A summary covers the messages that its compaction hid. A message that this compaction still
   showed inside its range was later either merged into another summary or left out.
4. The cause of a hidden or cleared message is the oldest receipt in an unbroken sequence of
   receipts that hide or clear it. Receipts are ordered newest first, as far as they were read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from app.common.answers import answer
from app.conversations.compaction_receipt import Compaction
from app.conversations.turns import MAX_PLACEHOLDER_TOKENS, Entry
from app.conversations.view import Span, Summary, View, spans_through
from app.conversations.windows.active_window import Restored
from app.formats.message import Role


class State(StrEnum):
    """The state of a message in the current context."""

    VERBATIM = "verbatim"
    CLEARED = "cleared"
    SUMMARISED = "summarised"
    LEFT_OUT = "left_out"
    OUTSIDE = "outside"


@answer()
@dataclass(frozen=True, slots=True)
class Visibility:
    """How the current context, which is the input of the next build, shows a message."""

    state: State
    """`verbatim`: unchanged. `cleared`: a tool result with a placeholder in its place.
    `summarised`: a summary replaces it. `left_out`: hidden to fit the context window, without
    a summary. `outside`: outside the active window, because of its time, a clear, or a
    sliding window."""
    compaction_id: str | None = None
    """The compaction that made the summary, or that cleared or hid the message; null for other
    states, and after hundreds of later compactions."""
    restored_at: datetime | None = None
    """When it was put back into the active window; null for other messages."""

    @property
    def is_explained(self) -> bool:
        """Whether older receipts would not change it."""
        return self.compaction_id is not None or self.state in (State.VERBATIM, State.OUTSIDE)


def start_of_last(spans: Sequence[Span], head_seq: int, count: int) -> int:
    """Return the seq at which the last `count` messages of these spans begin, 1 for all."""
    for span in reversed(spans_through(spans, head_seq)):
        size = span.end - span.start
        if count <= size:
            return span.end - count
        count -= size
    return 1


def visibilities(
    entries: Iterable[Entry],
    view: View,
    receipts: Sequence[Compaction],
    restored: Sequence[Restored] = (),
    starts_at: int = 1,
    newest_user: int = 0,
) -> dict[int, Visibility]:
    """Return the visibility of messages by seq.

    `view` is the view before a build reduces it, and `receipts` led to it, the active one first. A
    sliding window begins at the seq `starts_at`; pinned messages and that of the `newest_user` are
    shown before it as well.
    """
    found = {}
    for item in entries:
        state = _state_of(item, view, starts_at, newest_user)
        state, cause = _explained(item.seq, state, view, receipts)
        at = next((part.at for part in restored if part.span.holds(item.seq)), None)
        found[item.seq] = Visibility(state, cause.compaction_id if cause else None, at)
    return found


def _state_of(item: Entry, view: View, starts_at: int, newest_user: int) -> State:
    """Return the state of a message by the view alone (rule 2)."""
    seq = item.seq
    if not _any_holds(view.window, seq):
        return State.OUTSIDE
    if view.shows(seq):
        if seq < starts_at and not (item.pinned or seq == newest_user):
            return State.OUTSIDE
        is_large = item.role is Role.TOOL and item.tokens > MAX_PLACEHOLDER_TOKENS
        return State.CLEARED if is_large and view.clears_result(seq) else State.VERBATIM
    is_summarised = _is_behind_item(seq, view) or _summary_of(seq, view.summaries) is not None
    return State.SUMMARISED if is_summarised else State.LEFT_OUT


def _explained(
    seq: int, state: State, view: View, receipts: Sequence[Compaction]
) -> tuple[State, Compaction | None]:
    """Return the state of a message with the receipt that caused it, as far as that is known."""
    if state is State.CLEARED:
        return state, _first(receipts, lambda view: view.clears_result(seq))
    if state not in (State.SUMMARISED, State.LEFT_OUT):
        return state, None
    summary = _summary_of(seq, view.summaries)
    maker = _maker_of(summary, receipts) if summary is not None else None
    if maker is not None and _hides(maker.view, seq):
        return state, maker
    hider = _first(receipts, lambda view: _hides(view, seq))
    if state is State.SUMMARISED and not _is_behind_item(seq, view):
        if maker is None:
            return state, None
        covers = hider is not None and any(_any_holds(made.sources, seq) for made in hider.made)
        state = State.SUMMARISED if covers else State.LEFT_OUT  # rule 3
    return state, hider


def _first(receipts: Iterable[Compaction], affects: Callable[[View], bool]) -> Compaction | None:
    """Return the receipt whose view affected a message first (rule 4).

    Where all do, it is unknown unless there is no older receipt.
    """
    cause: Compaction | None = None
    for receipt in receipts:
        if cause is not None and not affects(receipt.view):
            return cause
        cause = receipt
    return cause if cause is not None and cause.parent_id is None else None


def _is_behind_item(seq: int, view: View) -> bool:
    """Whether a provider's item stands for a message that is not shown."""
    return view.provider_item is not None and seq < view.provider_item.seq


def _summary_of(seq: int, summaries: Iterable[Summary]) -> Summary | None:
    return next((summary for summary in summaries if summary.span.holds(seq)), None)


def _maker_of(summary: Summary, receipts: Iterable[Compaction]) -> Compaction | None:
    """Return the newest receipt that made a summary, None if it was not read.

    The summary's span in the receipt may be larger than the span that is hidden now.
    """
    for receipt in receipts:
        for made in receipt.made:
            is_same = (made.level, made.text) == (summary.level, summary.text)
            if (
                is_same
                and made.span.start <= summary.span.start < summary.span.end <= made.span.end
            ):
                return receipt
    return None


def _hides(view: View, seq: int) -> bool:
    return _any_holds(view.window, seq) and not view.shows(seq)


def _any_holds(spans: Sequence[Span], seq: int) -> bool:
    return any(span.holds(seq) for span in spans)
