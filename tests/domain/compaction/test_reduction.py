"""The reducer: what it never touches, that it only makes smaller, and that it fits if anything can.

[budget.fitting-order, pins.verbatim, tool-output.clear-oldest, tool-output.clear-in-batches,
compaction.overflow-errors]
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.compaction.reduction import (
    ALL_RESULTS_CLEARED,
    RESULTS_CLEARED,
    TURNS_DROPPED,
    plan_clearing,
    reduced_to_fit,
    tool_output_limits,
    tool_output_tokens,
    with_excluded,
    without_oldest_half,
)
from app.compaction.shown_history import NOTE_TOKENS, HistoryBudget, ShownHistory, tokens_of
from app.conversations.receipt import CompactionPlan
from app.conversations.turns import Entry, call_groups, entry, protected
from app.conversations.view import Span, View, spans_beside
from app.conversations.view_changes import shown_entries, view_after
from app.policy.policy import ToolOutputPolicy
from tests.domain.compaction.generated import A, T, U, assert_whole_groups, budgets
from tests.domain.histories import entries, pinned_at

STEPS = (RESULTS_CLEARED, ALL_RESULTS_CLEARED, TURNS_DROPPED)
ROOM = HistoryBudget(0, 0, 0, 0)


@st.composite
def views(draw: st.DrawFn) -> tuple[list[Entry], View]:
    """Draw a log and its view: pins, exclusions, results cleared before, maybe a hidden range."""
    history = draw(entries(20))
    seqs = st.integers(1, len(history))
    history = pinned_at(history, draw(st.sets(seqs, max_size=2)))
    history = with_excluded(history, draw(st.sets(seqs, max_size=4)))
    starts = [item.seq for item in history if not item.joins]
    hidden = None
    if len(starts) > 3 and draw(st.booleans()):
        hidden = Span(*sorted(draw(st.sets(st.sampled_from(starts), min_size=2, max_size=2))))
    kept, through = protected(history), draw(st.just(0) | seqs)
    uncleared = tuple(seq for seq in sorted(kept.uncleared) if seq <= through)
    spans = spans_beside(hidden, kept.unhidden)
    return history, View(spans, results_cleared_through=through, uncleared_results=uncleared)


def shown_by(log: Sequence[Entry], view: View, budget: HistoryBudget = ROOM) -> ShownHistory:
    """Return what a view shows."""
    return ShownHistory(shown_entries(log, view), view.hidden, budget)


def applied(log: Sequence[Entry], view: View, plan: CompactionPlan) -> View:
    """Return the view after a plan was carried out."""
    return view_after(view, plan, view.summaries, view.retain, protected(log).uncleared)


def check_smaller(before: ShownHistory, after: ShownHistory) -> None:
    """Check that nothing was touched that may not be, and that nothing grew."""
    old, new = ({item.seq: item for item in each.entries} for each in (before, after))
    assert new.keys() >= before.protected.unhidden, "pins and the newest user message stay"
    for seq, item in new.items():
        assert item.tokens in (old[seq].tokens, old[seq].placeholder_tokens)
        assert seq not in before.protected.uncleared or item.tokens == old[seq].tokens
    assert_whole_groups(before.entries, after.entries)


@given(views(), budgets())
def test_a_reduction_fits_where_anything_can(
    drawn: tuple[list[Entry], View], budget: HistoryBudget
) -> None:
    """What must stay is untouched, stages run in order, and only as far as needed."""
    log, view = drawn
    start = shown_by(log, view, budget)
    if not start.entries:
        return
    plan = reduced_to_fit(start)
    if plan is None:
        stays = [item for item in start.entries if item.seq in start.protected.unhidden]
        assert not any(it.role is U and not it.joins for it in stays) or not budget.fits(
            tokens_of(stays) + NOTE_TOKENS
        )
        return
    after = shown_by(log, applied(log, view, plan), budget)
    check_smaller(start, after)
    assert budget.fits(after.tokens)
    assert start.tokens - after.tokens == plan.freed_tokens
    assert list(plan.stages) == [step for step in STEPS if step in plan.stages]
    assert bool(plan.stages) is not budget.fits(start.tokens)


@given(views())
def test_each_cut_after_an_overflow_drops_something(drawn: tuple[list[Entry], View]) -> None:
    """Until only what must stay is left, or one call group where no user message is."""
    shown = shown_by(*drawn)
    while (smaller := without_oldest_half(shown)) is not None:
        check_smaller(shown, smaller)
        assert smaller.tokens < shown.tokens or len(smaller.entries) < len(shown.entries)
        shown = smaller
    left = [item for item in shown.entries if item.seq not in shown.protected.unhidden]
    assert len(call_groups(left)) <= 1
    assert not left or not any(item.role is U and not item.joins for item in shown.entries)


def test_steps_run_only_as_far_as_needed() -> None:
    """Old results are cleared, then turns dropped, then all but the newest user message."""
    sizes = ((U, 100), (A, 50), (T, 2000), (U, 100), (A, 50), (T, 1000))
    history = [entry(seq, role, size) for seq, (role, size) in enumerate(sizes, 1)]

    def left(capacity: int) -> tuple[int, tuple[int, ...]] | None:
        budget = HistoryBudget(capacity, capacity - 20, 0, 0)
        plan = reduced_to_fit(ShownHistory(history, None, budget))
        if plan is None:
            return None
        shown = shown_by(history, applied(history, View(), plan))
        return plan.results_cleared_through, tuple(item.seq for item in shown.entries)

    everything = (1, 2, 3, 4, 5, 6)
    assert left(3300) == (0, everything)
    assert left(1400) == (3, everything)
    assert left(1300) == (3, (4, 5, 6))
    assert left(1100) == (6, everything)
    assert left(263) == (6, (4, 5, 6))
    assert left(140) == (6, (4,))
    assert left(131) is None


# --- tool output ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "budget"),
    [(1_000, 20_000), (80_004, 20_001), (200_000, 50_000), (1_000_000, 60_000)],
)
def test_the_budget_is_a_quarter_of_the_window_between_two_bounds(window: int, budget: int) -> None:
    """By default clamp(0.25 x window, 20 000, 60 000), and a batch is three quarters of it."""
    assert tool_output_limits(ToolOutputPolicy(), window) == (budget, budget * 3 // 4)


@given(views(), st.integers(0, 3_000), st.integers(0, 1_500))
def test_a_clearing_matches_its_plan(
    drawn: tuple[list[Entry], View], budget: int, min_freed: int
) -> None:
    """It reaches the budget where it can, in batches, and keeps the newest results.

    [tool-output.clear-keeps, pins.whole-group]
    """
    log, view = drawn
    start = shown_by(log, view)

    def output(of: View) -> int:
        return sum(tool_output_tokens(item, of) for item in log if view.shows(item.seq))

    excess = output(view) - budget
    if excess <= 0:
        return
    with_results = [
        group
        for group in (start.entries[a:b] for a, b in call_groups(start.entries))
        if any(item.role is T for item in group)
    ]
    newest = {item.seq for group in with_results[-1:] for item in group}
    may_go = {
        item.seq: item.tokens - item.placeholder_tokens
        for item in start.entries
        if item.clearable and item.seq not in start.protected.uncleared | newest
    }
    plan = plan_clearing(start, excess, min_freed)
    if plan is None:
        assert not may_go or sum(may_go.values()) < min(min_freed, excess)
        return
    after = applied(log, view, plan)
    cleared = shown_by(log, after)
    check_smaller(start, cleared)
    assert (after.spans, after.summaries, after.note) == (view.spans, view.summaries, view.note)
    gone = {a.seq for a, b in zip(start.entries, cleared.entries, strict=True) if a != b}
    assert gone == {seq for seq in may_go if seq <= plan.results_cleared_through}
    assert start.tokens - cleared.tokens == plan.freed_tokens >= min(min_freed, excess)
    assert output(after) <= budget or gone == may_go.keys()
    newest_freed = may_go[plan.results_cleared_through]
    assert plan.freed_tokens - newest_freed < max(excess, min_freed), "no more than it takes"


# --- after an overflow ----------------------------------------------------------------------


def halved(history: Sequence[Entry], hidden: Span | None = None) -> list[int] | None:
    """Return the seqs that are left after one cut."""
    left = without_oldest_half(ShownHistory(history, hidden, ROOM))
    return None if left is None else [item.seq for item in left.entries]


def test_an_overflow_drops_the_oldest_half_of_the_turns() -> None:
    """Half of the turns, rounded down, at least one; pins stay. [compaction.overflow]"""
    history = [entry(seq, (U, A)[seq % 2 == 0], 10) for seq in range(1, 11)]
    assert halved(history) == [5, 6, 7, 8, 9, 10]
    assert halved(history[4:], Span(1, 5)) == [7, 8, 9, 10]
    assert halved(history[6:], Span(1, 7)) == [9, 10]
    pinned = [entry(seq, (U, A)[seq % 2 == 0], 10, seq == 2) for seq in range(1, 9)]
    assert halved(pinned) == [2, 5, 6, 7, 8]
    assert halved([pinned[1], pinned[6]], Span(1, 7)) is None


def test_an_overflow_in_a_single_turn_drops_the_oldest_call_groups() -> None:
    """In a single turn half of the call groups is dropped; its user message is left at last."""
    roles = [U, A, T, A, T, T, A, T, A]
    history = [entry(seq, role, 10) for seq, role in enumerate(roles, 1)]
    assert halved(history) == [1, 7, 8, 9]
    assert halved([history[0], *history[6:]], Span(2, 7)) == [1, 9]
    assert halved([history[0], history[8]], Span(2, 9)) == [1]
    assert halved([history[0]], Span(2, 10)) is None
