"""Reductions without a model: truncation, clearing, and what is dropped after an overflow.

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
    EMERGENCY_CUT,
    RESULTS_CLEARED,
    Truncation,
    excluded_seqs,
    min_cleared_tokens,
    plan_clearing,
    tool_output_budget,
    tool_output_tokens,
    truncate,
    with_excluded,
    without_oldest_half,
)
from app.conversations.plans import CompactionPlan, HistoryBudget, NoCompaction
from app.conversations.turns import Entry, call_groups, entry, never_cleared, pinned_seqs
from app.conversations.view import ENDLESS, Span, View, spans_beside
from app.conversations.views import shown_entries, view_after
from app.policy.policy import ToolOutputPolicy
from tests.domain.compaction.generated import (
    A,
    T,
    U,
    assert_whole_groups,
    budgets,
    histories,
    shown_by,
)
from tests.domain.histories import entries, pinned_at

ORDER = (RESULTS_CLEARED, ALL_RESULTS_CLEARED, EMERGENCY_CUT)


def kept_of(history: Sequence[Entry], fitted: Truncation) -> list[Entry]:
    """Return what is still shown."""
    return list(history) if fitted.shown is None else shown_by(history, fitted.shown)


def cost(history: Sequence[Entry], results_cleared_through: int) -> int:
    """Return the tokens of what is shown, placeholders counted as such."""
    pinned = pinned_seqs(history)
    return sum(
        i.placeholder_tokens
        if i.seq <= results_cleared_through and i.seq not in pinned
        else i.tokens
        for i in history
    )


def budget_of(capacity: int, target: int | None = None) -> HistoryBudget:
    """Return a budget for history alone."""
    return HistoryBudget(capacity, capacity // 2 if target is None else target, 0, 0)


def test_steps_run_in_order_and_only_as_far_as_needed() -> None:
    """Old results are trimmed, then turns dropped, then all but the newest user message."""
    history = [
        entry(1, U, 100),
        entry(2, A, 50),
        entry(3, T, 2000),
        entry(4, U, 100),
        entry(5, A, 50),
        entry(6, T, 1000),
    ]
    assert truncate(history, 0, budget_of(3300)) == Truncation(0, None, ())
    assert truncate(history, 0, budget_of(1400, 1380)) == Truncation(3, None, (RESULTS_CLEARED,))
    assert truncate(history, 0, budget_of(1300)) == Truncation(
        3, (Span(4, ENDLESS),), (RESULTS_CLEARED, EMERGENCY_CUT)
    )
    assert truncate(history, 0, budget_of(1100)) == Truncation(
        6, None, (RESULTS_CLEARED, ALL_RESULTS_CLEARED)
    )
    assert truncate(history, 0, budget_of(240)) == Truncation(6, (Span(4, ENDLESS),), ORDER)
    newest = Truncation(3, (Span(4, 5), Span(7, ENDLESS)), (RESULTS_CLEARED, EMERGENCY_CUT))
    assert truncate(history, 0, budget_of(110)) == newest
    assert truncate(history, 0, budget_of(99)) is None


@given(histories(), budgets(), st.integers(0, 40))
def test_the_result_fits_or_there_is_none(
    history: list[Entry], budget: HistoryBudget, results_cleared_through: int
) -> None:
    """None only where the newest user message and the pins exceed the capacity."""
    fitted = truncate(history, results_cleared_through, budget)
    newest = next((item for item in reversed(history) if item.role is U and not item.joins), None)
    if fitted is None:
        pinned = pinned_seqs(history)
        minimum = sum(item.tokens for item in history if item is newest or item.seq in pinned)
        assert newest is None or not budget.fits(minimum)
        return
    kept = kept_of(history, fitted)
    assert budget.fits(cost(kept, fitted.results_cleared_through))
    assert fitted.results_cleared_through >= results_cleared_through


def test_pins_are_neither_trimmed_nor_dropped() -> None:
    """A pinned group stays whole, and has to fit with the newest user message."""
    roles = [(U, 100), (A, 50), (T, 400), (T, 300), (U, 100), (A, 50), (T, 1000)]
    history = [entry(seq, role, size, seq == 3) for seq, (role, size) in enumerate(roles, 1)]
    half = (RESULTS_CLEARED, EMERGENCY_CUT)
    assert truncate(history, 0, budget_of(1900)) == Truncation(
        0, (Span(2, ENDLESS),), (EMERGENCY_CUT,)
    )
    fitted = truncate(history, 0, budget_of(1850))
    assert fitted == Truncation(7, None, (ALL_RESULTS_CLEARED,))
    fitted = truncate(history, 0, budget_of(1000))
    assert fitted == Truncation(7, (Span(2, ENDLESS),), (ALL_RESULTS_CLEARED, EMERGENCY_CUT))
    for capacity in (979, 850):
        fitted = truncate(history, 0, budget_of(capacity))
        assert fitted == Truncation(0, (Span(2, 6), Span(8, ENDLESS)), (EMERGENCY_CUT,))
    assert truncate(history, 0, budget_of(849)) is None
    older = [entry(1, U, 10), entry(2, A, 10), entry(3, T, 500), *history[4:]]
    fitted = truncate(older, 0, budget_of(1300))
    assert fitted is not None
    assert fitted.steps in (half, half[:1])


def talk(*sizes: int) -> list[Entry]:
    """Return a question and, for each size, a call with one result of so many tokens."""
    found = [entry(1, U, 10)]
    for size in sizes:
        found += [entry(len(found) + 1, A, 5), entry(len(found) + 2, T, size)]
    return found


def output(history: Sequence[Entry], view: View) -> int:
    """Return the tokens of the tool output that a view shows."""
    return sum(tool_output_tokens(item, view) for item in history if view.shows(item.seq))


def cleared(history: Sequence[Entry], view: View, plan: NoCompaction | CompactionPlan) -> View:
    """Return the view after a plan was carried out."""
    if isinstance(plan, NoCompaction):
        return view
    return view_after(view, plan, view.summaries, view.retain, never_cleared(history))


def placeholders(history: Sequence[Entry], view: View) -> set[int]:
    """Return the seqs of the cleared results."""
    return {item.seq for item in history if item.role is T and not tool_output_tokens(item, view)}


def last_group(history: Sequence[Entry]) -> set[int]:
    """Return the seqs of the last call group with results."""
    groups = [history[start:end] for start, end in call_groups(history)]
    with_results = [group for group in groups if any(item.role is T for item in group)]
    return {item.seq for item in with_results[-1]} if with_results else set()


# --- the budget -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "budget"),
    [
        (1_000, 20_000),
        (80_000, 20_000),
        (80_004, 20_001),
        (200_000, 50_000),
        (240_000, 60_000),
        (1_000_000, 60_000),
    ],
)
def test_the_budget_is_a_quarter_of_the_window_between_two_bounds(window: int, budget: int) -> None:
    """By default clamp(0.25 x window, 20 000, 60 000), and a batch is half of it."""
    assert tool_output_budget(ToolOutputPolicy(), window) == budget
    assert min_cleared_tokens(ToolOutputPolicy(), window) == budget // 2


# --- the plan -------------------------------------------------------------------------------


def test_the_oldest_results_are_cleared_until_the_rest_is_within_the_budget() -> None:
    """The newest stay; results that are cleared already do not count. [tool-output.clear-keeps]"""
    history = talk(400, 300, 200, 100)
    assert isinstance(plan_clearing(history, View(), 1_000, 0), NoCompaction)
    plan = plan_clearing(history, View(), 999, 0)
    assert plan == CompactionPlan(
        ("clear_tool_results",), 320, results_cleared_through=3, summarises=False
    )
    assert isinstance(plan, CompactionPlan)
    view = cleared(history, View(), plan)
    assert placeholders(history, view) == {3}
    assert output(history, view) == 600
    further = plan_clearing(history, view, 599, 0)
    assert further == CompactionPlan(
        ("clear_tool_results",), 220, results_cleared_through=5, summarises=False
    )


def test_pins_exclusions_and_kept_results_are_not_cleared() -> None:
    """They stay whole, and newer results are cleared instead. [pins.whole-group]"""
    history = pinned_at(talk(*[300] * 6), [4])  # the call: its result is protected as well
    names = {3: "read", 5: "read", 7: "keep", 9: "read", 11: "keep", 13: "read"}
    excluded = excluded_seqs(history, View(), names, ("keep", "other"))
    assert excluded == {7, 11}
    marked = with_excluded(history, excluded)
    plan = plan_clearing(marked, View(), 1_000, 0)
    assert isinstance(plan, CompactionPlan)
    assert plan.freed_tokens == 2 * 220
    view = cleared(marked, View(), plan)
    assert placeholders(history, view) == {3, 9}
    assert view.uncleared_results == (4, 5, 7)
    kept = View(spans=spans_beside(Span(2, 6), (4, 5)))
    plan = plan_clearing([item for item in history if kept.shows(item.seq)], kept, 0, 0)
    assert isinstance(plan, CompactionPlan)
    assert plan.freed_tokens == 3 * 220


@st.composite
def drawn_views(draw: st.DrawFn) -> tuple[list[Entry], View]:
    """Draw what a view shows: pins, exclusions, results cleared before, maybe a hidden range."""
    history = draw(entries(20))
    seqs = st.integers(1, len(history))
    history = pinned_at(history, draw(st.sets(seqs, max_size=2)))
    starts = [item.seq for item in history if item.role is not T]
    hidden = None
    if len(starts) > 3 and draw(st.booleans()):
        first, last = sorted(draw(st.sets(st.sampled_from(starts), min_size=2, max_size=2)))
        hidden = Span(first, last)
    history = with_excluded(history, draw(st.sets(seqs, max_size=4)))
    whole = sorted(never_cleared(history))
    through = draw(st.integers(0, len(history)))
    view = View(
        spans=spans_beside(hidden, pinned_seqs(history)),
        results_cleared_through=through,
        uncleared_results=tuple(seq for seq in whole if seq <= through),
    )
    return [item for item in history if view.shows(item.seq)], view


@given(drawn_views(), st.integers(0, 3_000), st.integers(0, 1_500))
def test_a_clearing_matches_its_plan(
    drawn: tuple[list[Entry], View], budget: int, min_freed: int
) -> None:
    """Clearing reaches the budget where it can, in batches, and keeps the newest results."""
    history, view = drawn
    plan = plan_clearing(history, view, budget, min_freed)
    after = cleared(history, view, plan)
    gone = placeholders(history, after) - placeholders(history, view)
    protected = never_cleared(history) | last_group(history)
    assert not gone & protected
    assert (after.spans, after.summaries, after.note) == (view.spans, view.summaries, view.note)
    may_go = [
        item
        for item in history
        if item.role is T
        and item.clearable
        and item.seq not in protected
        and not view.clears_result(item.seq)
        and not (view.hidden and view.hidden.holds(item.seq))
    ]
    excess = output(history, view) - budget
    if isinstance(plan, NoCompaction):
        freeable = sum(item.tokens - item.placeholder_tokens for item in may_go)
        enough = sum(item.tokens for item in may_go) >= excess
        assert excess <= 0 or not may_go or (freeable < min_freed and not enough)
        return
    assert excess > 0
    assert gone == {item.seq for item in may_go if item.seq <= plan.results_cleared_through}
    before = sum(item.tokens for item in shown_entries(history, view))
    freed = before - sum(item.tokens for item in shown_entries(history, after))
    assert freed == plan.freed_tokens
    left = output(history, after)
    assert left <= budget or gone == {item.seq for item in may_go}
    assert plan.freed_tokens >= min_freed or left <= budget
    last = next(item for item in history if item.seq == plan.results_cleared_through)
    needed = freed - (last.tokens - last.placeholder_tokens) < min_freed
    assert needed or left + last.tokens > budget, "no more than it takes"
    assert isinstance(plan_clearing(history, after, budget, min_freed), NoCompaction), (
        "and is at rest"
    )


def halved(history: Sequence[Entry], covered: Span | None = None) -> list[int] | None:
    """Return the seqs that are left after one cut."""
    left = without_oldest_half(history, covered)
    return None if left is None else [item.seq for item in left]


def test_an_emergency_drops_the_oldest_half_of_the_turns() -> None:
    """Half of the turns, rounded down, at least one; pins stay. [compaction.emergency]"""
    history = [entry(seq, (U, A)[seq % 2 == 0], 10) for seq in range(1, 11)]
    assert halved(history) == [5, 6, 7, 8, 9, 10]
    assert halved(history[4:], Span(1, 5)) == [7, 8, 9, 10]
    assert halved(history[6:], Span(1, 7)) == [9, 10]
    pinned = [entry(seq, (U, A)[seq % 2 == 0], 10, seq == 2) for seq in range(1, 9)]
    assert halved(pinned) == [2, 5, 6, 7, 8]
    assert halved([pinned[1], pinned[6]], Span(1, 7)) is None


def test_an_emergency_in_a_single_turn_drops_the_oldest_call_groups() -> None:
    """In a single turn half of the call groups is dropped; its user message is left at last."""
    roles = [U, A, T, A, T, T, A, T, A]
    history = [entry(seq, role, 10) for seq, role in enumerate(roles, 1)]
    assert halved(history) == [1, 7, 8, 9]
    assert halved([history[0], *history[6:]], Span(2, 7)) == [1, 9]
    assert halved([history[0], history[8]], Span(2, 9)) == [1]
    assert halved([history[0]], Span(2, 10)) is None


@given(histories())
def test_the_newest_user_message_and_the_pins_are_never_dropped(history: list[Entry]) -> None:
    """Each cut drops something, splits no group, and keeps the newest user message and pins."""
    pinned = pinned_seqs(history)
    newest = next((item for item in reversed(history) if item.role is U and not item.joins), None)
    shown: list[Entry] = list(history)
    while (left := without_oldest_half(shown, None)) is not None:
        assert left
        assert set(left) < set(shown)
        assert {item.seq for item in left} >= pinned
        assert newest is None or newest in left
        assert_whole_groups(history, left)
        shown = left
    assert (
        len(shown) == 1
        or all(item is newest or item.seq in pinned for item in shown)
        or (newest is None and len(call_groups(shown)) == 1)
    )
