"""Compaction: from a plan to a receipt, and from a receipt to a view (D6, D7, E7, E8).

1. A compaction replaces one half-open range of seqs by a summary. Ranges of a conversation's
   successive compactions contain one another: each takes in the summary before it.
2. It is worth its while only if it frees enough (D7); a forced one only has to free something.
3. It is applied only to the view it was planned on. The log never changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.domain.budget import Limits
from app.domain.frames import Frame
from app.domain.policy import Policy, SummaryRole
from app.domain.prompt import View
from app.domain.records import Head
from app.domain.strategies import ENDLESS, STRATEGIES, Keep, Room, Slide, Span, Summarise
from app.domain.tokens import MESSAGE_OVERHEAD, CountText
from app.domain.turns import Entry

LEAST_SUMMARY_TOKENS = 64
MOST_SUMMARY_TOKENS = 2048
SUMMARY_SHARE = 0.1
NOTE_TOKENS = 32
"""Room for the note that says what was left out."""


@dataclass(frozen=True, slots=True)
class CompactResult:
    """What a compaction did, or why it did nothing (E7); tokens are of the whole payload."""

    compacted: bool
    reason: str | None
    compaction_id: str | None
    before_tokens: int
    after_tokens: int
    before_msg_count: int
    after_msg_count: int
    strategies_run: tuple[str, ...]
    summary_range: tuple[int, int] | None
    model: str | None
    summary_tokens: int
    cost_usd: float | None
    duration_ms: int


def spans_beside(covered: Span | None) -> tuple[Span, ...]:
    """Return the seqs shown verbatim when a summary stands for `covered`, all without one."""
    if covered is None:
        return (Span(1, ENDLESS),)
    top = (Span(1, covered.start),) if covered.start > 1 else ()
    return (*top, Span(covered.end, ENDLESS))


def base_view(head: Head, summary: str | None, policy: Policy) -> View:
    """Return what a head shows when nothing has to be reduced: the active compaction, if any."""
    if head.span is None:
        return View(spans_beside(None))
    return summary_view(head.span, summary or "", policy)


def summary_view(span: Span, summary: str, policy: Policy) -> View:
    """Return the view in which a summary stands for a span."""
    return View(
        spans=spans_beside(span),
        summary=summary,
        summary_span=span,
        summary_as_system=policy.summary_role is SummaryRole.SYSTEM,
    )


def summary_room(limits: Limits) -> int:
    """Return how many tokens a summary may take in this window."""
    share = int(limits.effective_window * SUMMARY_SHARE)
    return max(LEAST_SUMMARY_TOKENS, min(share, MOST_SUMMARY_TOKENS))


def room_for(limits: Limits, policy: Policy, fixed: int, summary: int, factor: float) -> Room:
    """Return the room of a history in raw counts, before the model's factor."""
    return Room(
        capacity=int(limits.capacity / factor),
        target=int(limits.effective_window * policy.compaction.target / factor),
        fixed=fixed,
        summary=summary,
    )


class Pending:
    """A compaction of this conversation is running; nobody waits for it (decision 15)."""


def plan_for(
    entries: Sequence[Entry], head: Head, frame: Frame, used: int, *, forced: bool
) -> Keep | Summarise:
    """Return what to compact of the visible entries, judged by the policy's own window.

    `used` are the payload's tokens. Over the window any gain is worth it: the alternative is to
    leave messages out.
    """
    limits = frame.judging_limits()
    reserve = max(summary_room(limits), head.summary_tokens)
    room = room_for(limits, frame.policy, frame.raw_fixed.fixed, reserve, frame.factor)
    needed = forced or used > limits.capacity
    return plan_compaction(entries, head.span, room, frame.policy, limits, forced=needed)


def plan_compaction(
    entries: Sequence[Entry],
    covered: Span | None,
    room: Room,
    policy: Policy,
    limits: Limits,
    *,
    forced: bool,
) -> Keep | Summarise:
    """Return what the strategy would compact, if it is worth its while (rule 2)."""
    if not policy.compaction.enabled:
        return Keep("compaction is disabled")
    plan = STRATEGIES[policy.strategy].plan(entries, covered, room, policy)
    if isinstance(plan, Slide):
        return Keep(f"{policy.strategy} keeps no summary: its window moves with each build")
    if isinstance(plan, Summarise):
        gain = plan.freed_tokens - (room.summary if covered is None else 0)
        least = 1 if forced else policy.compaction.min_gain * limits.effective_window
        if gain < least and not forced:
            return Keep("too little would be freed")
    return plan


def keep_left_out(spans: Sequence[Span], summarised: Span) -> tuple[Span, tuple[Span, ...]]:
    """Return the span to summarise and what stays shown before it, one span at most.

    What an earlier reduction of the spans left out does not come back.
    """
    top = [
        Span(span.start, min(span.end, summarised.start))
        for span in spans
        if span.start < summarised.start
    ]
    if len(top) > 1:
        summarised = Span(top[1].start, summarised.end)
    return summarised, tuple(top[:1])


def fresh_spans(span: Span, covered: Span | None) -> tuple[Span, ...]:
    """Return the parts of a span that no earlier summary stands for."""
    if covered is None:
        return (span,)
    parts = (Span(span.start, covered.start), Span(covered.end, span.end))
    return tuple(part for part in parts if part.start < part.end)


def summary_cost(view: View, count: CountText) -> int:
    """Return the tokens of the message that carries a view's summary, 0 without one."""
    text = view.summary_text()
    return MESSAGE_OVERHEAD + count(text) if text is not None else 0
