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

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from app.common.answers import answer
from app.conversations.compaction_receipt import Compaction
from app.conversations.turns import MAX_PLACEHOLDER_TOKENS, Entry
from app.conversations.view import Span, Summary, View, minus, overlap, spans_of, spans_through
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


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """Where a sliding window starts, in the view and in the active window, as seqs.

    The newest user message is shown before its start as well.
    """

    starts_in_view: int = 1
    starts_in_window: int = 1
    newest_user: int = 0


NO_SLIDING_WINDOW = SlidingWindow()


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
    sliding_window: SlidingWindow = NO_SLIDING_WINDOW,
) -> dict[int, Visibility]:
    """Return the visibility of messages by seq.

    `view` is the view before a build reduces it, and `receipts` led to it, the active one first.
    Pinned messages are shown outside a sliding window as well.
    """
    states = {item.seq: _state_of(item, view, sliding_window) for item in entries}
    causes: dict[int, Compaction] = {}
    uncovered: set[int] = set()
    for summary, seqs in _by_summary(states, view.summaries).items():
        maker = _maker_of(summary, receipts)
        if maker is not None:
            covered = {seq for seq in seqs if _is_hidden(maker.view, seq)}
            causes |= dict.fromkeys(covered, maker)
            uncovered |= seqs - covered
    behind_item = {
        seq for seq in _seqs_in_state(states, State.SUMMARISED) if _is_behind_item(seq, view)
    }
    uncovered -= behind_item
    causes |= _causes([*behind_item.difference(causes)], receipts, _hidden_in)
    left_out = _seqs_in_state(states, State.LEFT_OUT)
    causes |= _causes([*left_out, *uncovered], receipts, _hidden_in)
    causes |= _causes(_seqs_in_state(states, State.CLEARED), receipts, _cleared_in)
    for seq in uncovered:
        if seq not in causes or not _covers(causes[seq], seq):
            states[seq] = State.LEFT_OUT
    return {
        seq: Visibility(
            state, causes[seq].compaction_id if seq in causes else None, _restored_at(seq, restored)
        )
        for seq, state in states.items()
    }


def _state_of(item: Entry, view: View, sliding_window: SlidingWindow) -> State:
    """Return the state of a message by the view alone (rule 2)."""
    seq = item.seq
    if not _any_holds(view.window, seq):
        return State.OUTSIDE
    if view.shows(seq):
        is_kept = item.pinned or seq == sliding_window.newest_user
        if seq < sliding_window.starts_in_view and not is_kept:
            return State.OUTSIDE
        is_large = item.role is Role.TOOL and item.tokens > MAX_PLACEHOLDER_TOKENS
        return State.CLEARED if is_large and view.clears_result(seq) else State.VERBATIM
    if seq < sliding_window.starts_in_window:
        return State.OUTSIDE
    is_summarised = _is_behind_item(seq, view) or _summary_of(seq, view.summaries) is not None
    return State.SUMMARISED if is_summarised else State.LEFT_OUT


def _is_behind_item(seq: int, view: View) -> bool:
    """Whether a provider's item stands for a message that is not shown."""
    return view.provider_item is not None and seq < view.provider_item.seq


def _by_summary(
    states: Mapping[int, State], summaries: Sequence[Summary]
) -> Mapping[Summary, set[int]]:
    """Return the summarised seqs by summary."""
    by_summary: dict[Summary, set[int]] = {}
    for seq in _seqs_in_state(states, State.SUMMARISED):
        summary = _summary_of(seq, summaries)
        if summary is not None:
            by_summary.setdefault(summary, set()).add(seq)
    return by_summary


def _seqs_in_state(states: Mapping[int, State], wanted: State) -> list[int]:
    return [seq for seq, state in states.items() if state is wanted]


def _summary_of(seq: int, summaries: Iterable[Summary]) -> Summary | None:
    return next((summary for summary in summaries if summary.span.holds(seq)), None)


def _maker_of(summary: Summary, receipts: Iterable[Compaction]) -> Compaction | None:
    """Return the newest receipt that made a summary, None if it was not read.

    The summary's span in the receipt may be larger than the span that is hidden now.
    """
    for receipt in receipts:
        for candidate in receipt.made:
            span = candidate.span
            if (candidate.level, candidate.text) == (summary.level, summary.text) and (
                span.start <= summary.span.start and summary.span.end <= span.end
            ):
                return receipt
    return None


def _is_hidden(view: View, seq: int) -> bool:
    return _any_holds(view.window, seq) and not view.shows(seq)


def _covers(receipt: Compaction, seq: int) -> bool:
    """Whether a summary of this receipt covers a message outside its range (rule 3)."""
    return any(_any_holds(summary.sources, seq) for summary in receipt.made)


def _causes(
    seqs: Sequence[int],
    receipts: Sequence[Compaction],
    affected_by: Callable[[View], tuple[Span, ...]],
) -> dict[int, Compaction]:
    """Return the receipt that hid, or cleared, each of these messages first (rule 4).

    `affected_by` returns the seqs that a view hides, or those that it clears.

    A message that all receipts hide has no cause, unless there is no older receipt.
    """
    causes: dict[int, Compaction] = {}
    unexplained = spans_of(seqs)
    for index, receipt in enumerate(receipts):
        if not unexplained:
            break
        affected_earlier: tuple[Span, ...] = ()
        if index + 1 < len(receipts):
            affected_earlier = overlap(unexplained, affected_by(receipts[index + 1].view))
        elif receipt.parent_id is not None:
            break
        affected_first = minus(unexplained, affected_earlier)
        causes |= dict.fromkeys(_seqs_of(affected_first), receipt)
        unexplained = affected_earlier
    return causes


def _hidden_in(view: View) -> tuple[Span, ...]:
    hidden = view.hidden
    return () if hidden is None else minus((hidden,), view.spans)


def _cleared_in(view: View) -> tuple[Span, ...]:
    whole = spans_of(view.uncleared_results)
    return minus((Span(1, view.results_cleared_through + 1),), whole)


def _seqs_of(spans: Iterable[Span]) -> Iterable[int]:
    return (seq for span in spans for seq in range(span.start, span.end))


def _restored_at(seq: int, restored: Sequence[Restored]) -> datetime | None:
    return next((item.at for item in restored if item.span.holds(seq)), None)


def _any_holds(spans: Sequence[Span], seq: int) -> bool:
    return any(span.holds(seq) for span in spans)
