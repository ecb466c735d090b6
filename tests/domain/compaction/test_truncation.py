"""Truncation: any view is made to fit without a model, or reported not to fit.

[budget.fitting-order, pins.verbatim]
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from app.compaction.reduction import (
    ALL_RESULTS_CLEARED,
    EMERGENCY_CUT,
    RESULTS_CLEARED,
    Truncation,
    truncate,
)
from app.conversations.plans import HistoryBudget
from app.conversations.turns import Entry, entry, pinned_seqs
from app.conversations.view import ENDLESS, Span
from tests.domain.compaction.generated import (
    A,
    T,
    U,
    assert_spans_show,
    assert_whole_groups,
    budgets,
    histories,
    shown_by,
)

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


def test_the_newest_user_message_stays_when_its_turn_is_cut() -> None:
    """In a single turn the oldest call groups are dropped, never its user message."""
    calls = [entry(seq, (T, A)[seq % 2 == 0], 100) for seq in range(2, 22)]
    fitted = truncate([entry(1, U, 50), *calls], 0, budget_of(700))
    assert fitted is not None
    kept = kept_of([entry(1, U, 50), *calls], fitted)
    assert [item.seq for item in kept][:1] == [1]
    assert fitted.shown is not None and fitted.shown[0] == Span(1, 2)
    assert len(kept) > 2


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


@given(histories(), budgets(), st.integers(0, 40))
def test_spans_show_an_end_of_the_history_and_the_pins(
    history: list[Entry], budget: HistoryBudget, results_cleared_through: int
) -> None:
    """A suffix cut between call groups is shown, and the pins before it. [log.safe-cuts]"""
    fitted = truncate(history, results_cleared_through, budget)
    if fitted is None or fitted.shown is None:
        return
    kept, pinned = kept_of(history, fitted), pinned_seqs(history)
    assert {item.seq for item in kept} >= pinned
    newest = next((item for item in reversed(history) if item.role is U and not item.joins), None)
    loose = [item for item in history if item.seq not in pinned]
    assert newest is None or newest in kept
    loose = [item for item in loose if item is not newest]
    rest = [item for item in kept if item.seq not in pinned and item is not newest]
    assert rest == loose[len(loose) - len(rest) :]
    assert_whole_groups(history, kept)
    assert_spans_show(fitted.shown, history, kept)


@given(histories(), budgets(), st.integers(0, 4000))
def test_a_larger_budget_never_keeps_less(
    history: list[Entry], budget: HistoryBudget, more: int
) -> None:
    """With a larger budget no fewer messages stay, unless the newest result fits only then.

    Results are trimmed only to keep more messages.
    """
    wide = HistoryBudget(budget.capacity + more, budget.target + more, budget.fixed, budget.summary)
    narrow_fit, wide_fit = truncate(history, 0, budget), truncate(history, 0, wide)
    if narrow_fit is None:
        return
    assert wide_fit is not None
    narrow_kept = kept_of(history, narrow_fit)
    if ALL_RESULTS_CLEARED not in narrow_fit.steps or ALL_RESULTS_CLEARED in wide_fit.steps:
        assert len(narrow_kept) <= len(kept_of(history, wide_fit))
    whole = [
        i.seq for i in narrow_kept if i.role is T and i.seq > narrow_fit.results_cleared_through
    ]
    if ALL_RESULTS_CLEARED not in wide_fit.steps:
        assert all(seq > wide_fit.results_cleared_through for seq in whole)


@given(histories(), budgets())
def test_truncating_again_changes_nothing(history: list[Entry], budget: HistoryBudget) -> None:
    """A truncated view is left alone by the next build. [strategy.target]"""
    fitted = truncate(history, 0, budget)
    if fitted is None:
        return
    kept = kept_of(history, fitted)
    if kept:
        assert truncate(kept, fitted.results_cleared_through, budget) == Truncation(
            fitted.results_cleared_through, None, ()
        )


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
