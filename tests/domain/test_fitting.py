"""Fitting: any view is made to fit without a model, or said not to (C4, E6, decision 14)."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from app.domain.fitting import ALL_TRIMMED, EMERGENCY, TRIMMED, Fitted, fit
from app.domain.messages import Role
from app.domain.strategies import ENDLESS, Room, Span
from app.domain.turns import Entry, entry
from tests.domain.histories import entries
from tests.domain.test_strategies import rooms

U, A, T = Role.USER, Role.ASSISTANT, Role.TOOL
ORDER = (TRIMMED, EMERGENCY, ALL_TRIMMED)


@st.composite
def histories(draw: st.DrawFn) -> list[Entry]:
    """Draw what a view shows: all of a log, or its ends around a summary's range."""
    history = draw(entries())
    starts = [i for i, item in enumerate(history) if item.role is not T]
    if len(starts) > 2 and draw(st.booleans()):
        first, last = sorted(draw(st.sets(st.sampled_from(starts[1:]), min_size=2, max_size=2)))
        return history[:first] + history[last:]
    return history


def kept_of(history: Sequence[Entry], fitted: Fitted) -> list[Entry]:
    """Return what is still shown."""
    if fitted.shown is None:
        return list(history)
    return [i for i in history if any(s.start <= i.seq < s.end for s in fitted.shown)]


def cost(history: Sequence[Entry], trimmed_through: int) -> int:
    """Return the tokens of what is shown, placeholders counted as such."""
    return sum(i.trimmed_tokens if i.seq <= trimmed_through else i.tokens for i in history)


def room_of(capacity: int, target: int | None = None) -> Room:
    """Return a room for history alone."""
    return Room(capacity, capacity // 2 if target is None else target, 0, 0)


def test_steps_run_in_order_and_only_as_far_as_needed() -> None:
    """Old results are trimmed first, then turns dropped, then all trimmed, then all but the ask."""
    history = [
        entry(1, U, 100),
        entry(2, A, 50),
        entry(3, T, 2000),
        entry(4, U, 100),
        entry(5, A, 50),
        entry(6, T, 1000),
    ]
    assert fit(history, 0, room_of(3300)) == Fitted(0, None, ())
    assert fit(history, 0, room_of(1400, 1380)) == Fitted(3, None, (TRIMMED,))
    assert fit(history, 0, room_of(1300)) == Fitted(3, (Span(4, ENDLESS),), (TRIMMED, EMERGENCY))
    assert fit(history, 0, room_of(1100)) == Fitted(3, (Span(5, ENDLESS),), (TRIMMED, EMERGENCY))
    assert fit(history, 0, room_of(140)) == Fitted(6, (Span(5, ENDLESS),), ORDER)
    newest = fit(history, 0, room_of(110))
    assert newest is not None
    assert newest.shown == (Span(4, 5), Span(7, ENDLESS))
    assert fit(history, 0, room_of(99)) is None


def test_a_gap_in_the_history_stays_a_gap() -> None:
    """Messages a summary stands for never come back when turns are dropped (N10)."""
    history = [
        entry(1, U, 100),
        entry(2, U, 10),
        entry(3, U, 10),
        entry(20, U, 10),
        entry(21, A, 10),
    ]
    fitted = fit(history, 0, room_of(60))
    assert fitted is not None
    assert fitted.shown == (Span(3, 4), Span(20, ENDLESS))


@given(histories(), rooms(), st.integers(0, 40))
def test_the_result_fits_or_there_is_none(
    history: list[Entry], room: Room, trimmed_through: int
) -> None:
    """What comes back is within capacity; None only if the newest user message is not (C4)."""
    fitted = fit(history, trimmed_through, room)
    newest = next((item for item in reversed(history) if item.role is U), None)
    if fitted is None:
        assert newest is None or not room.holds(newest.tokens)
        return
    kept = kept_of(history, fitted)
    assert room.holds(cost(kept, fitted.trimmed_through))
    assert fitted.trimmed_through >= trimmed_through


@given(histories(), rooms(), st.integers(0, 40))
def test_spans_show_an_end_of_the_history_and_nothing_else(
    history: list[Entry], room: Room, trimmed_through: int
) -> None:
    """What is shown is a suffix cut between call groups, or the newest user message (A4, E6)."""
    fitted = fit(history, trimmed_through, room)
    if fitted is None or fitted.shown is None:
        return
    kept = kept_of(history, fitted)
    newest = next((item for item in reversed(history) if item.role is U), None)
    assert kept == [newest] or kept == history[len(history) - len(kept) :]
    assert not kept or kept[0].role is not T or kept[0] is history[0]
    # Only the last span is endless, and no hidden message of before stands inside any.
    *bounded, last = fitted.shown
    assert last.end == ENDLESS
    assert all(span.start < span.end < ENDLESS for span in bounded)
    assert len(fitted.shown) <= 2
    hidden = set(range(1, history[-1].seq + 1)) - {item.seq for item in kept}
    assert not any(span.start <= seq < span.end for span in fitted.shown for seq in hidden)


@given(histories(), rooms(), st.integers(0, 40))
def test_steps_are_named_in_order_and_truly(
    history: list[Entry], room: Room, trimmed_through: int
) -> None:
    """Each step that ran is named once, in its order, and none that did nothing (C4)."""
    fitted = fit(history, trimmed_through, room)
    if fitted is None:
        return
    assert list(fitted.steps) == sorted(fitted.steps, key=ORDER.index)
    assert len(set(fitted.steps)) == len(fitted.steps)
    assert (EMERGENCY in fitted.steps) == (fitted.shown is not None)
    trims = TRIMMED in fitted.steps or ALL_TRIMMED in fitted.steps
    assert trims == (fitted.trimmed_through > trimmed_through)
    newly = [i for i in history if trimmed_through < i.seq <= fitted.trimmed_through]
    assert not trims or any(item.trimmed_tokens < item.tokens for item in newly)
    if room.holds(cost(history, trimmed_through)):
        assert fitted == Fitted(trimmed_through, None, ())


@given(histories(), rooms(), st.integers(0, 4000))
def test_more_room_never_keeps_less(history: list[Entry], room: Room, more: int) -> None:
    """With more room no fewer messages stay, and no whole result gets trimmed (C4)."""
    wide = Room(room.capacity + more, room.target + more, room.fixed, room.summary)
    narrow_fit, wide_fit = fit(history, 0, room), fit(history, 0, wide)
    if narrow_fit is None:
        return
    assert wide_fit is not None
    narrow_kept = kept_of(history, narrow_fit)
    assert len(narrow_kept) <= len(kept_of(history, wide_fit))
    whole = [i.seq for i in narrow_kept if i.role is T and i.seq > narrow_fit.trimmed_through]
    assert all(seq > wide_fit.trimmed_through for seq in whole)


@given(histories(), rooms())
def test_user_text_is_never_trimmed(history: list[Entry], room: Room) -> None:
    """Only tool results give way to placeholders; what stays of a user is whole (decision 14)."""
    fitted = fit(history, 0, room)
    if fitted is None:
        return
    spoken = [item for item in kept_of(history, fitted) if item.role is not T]
    assert cost(spoken, fitted.trimmed_through) == sum(item.tokens for item in spoken)


@given(histories(), rooms())
def test_fitting_again_changes_nothing(history: list[Entry], room: Room) -> None:
    """What was made to fit is left alone by the next build (D7)."""
    fitted = fit(history, 0, room)
    if fitted is None:
        return
    kept = kept_of(history, fitted)
    if kept:
        assert fit(kept, fitted.trimmed_through, room) == Fitted(fitted.trimmed_through, None, ())
