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
from tests.domain.compaction.generated import A, T, U, budgets, histories, shown_by

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
