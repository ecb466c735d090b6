"""The view after an overflow error of a provider. [compaction.overflow-errors]"""

from __future__ import annotations

from hypothesis import given

from app.compaction.reduction import clearable_through, spans_after_halving
from app.conversations.turns import Entry, call_groups, entry, pinned_seqs
from app.conversations.view import ENDLESS, Span, View
from app.formats.message import Role
from tests.domain.compaction.generated import (
    assert_spans_show,
    assert_whole_groups,
    histories,
    shown_by,
)

U, A, T = Role.USER, Role.ASSISTANT, Role.TOOL


def test_an_emergency_drops_the_oldest_half_of_the_turns() -> None:
    """Half of the turns is dropped, rounded down, at least one. [compaction.emergency]"""
    history = [entry(seq, (U, A)[seq % 2 == 0], 10) for seq in range(1, 11)]
    assert spans_after_halving(history, None) == (Span(5, ENDLESS),)
    assert spans_after_halving(history[4:], Span(1, 5)) == (Span(7, ENDLESS),)
    assert spans_after_halving(history[6:], Span(1, 7)) == (Span(9, ENDLESS),)


def test_an_emergency_in_a_single_turn_drops_the_oldest_call_groups() -> None:
    """In a single turn half of the call groups is dropped; its user message is left at last."""
    roles = [U, A, T, A, T, T, A, T, A]
    history = [entry(seq, role, 10) for seq, role in enumerate(roles, 1)]
    assert spans_after_halving(history, None) == (Span(1, 2), Span(7, ENDLESS))
    left = [history[0], *history[6:]]
    assert spans_after_halving(left, Span(2, 7)) == (Span(1, 2), Span(9, ENDLESS))
    assert spans_after_halving([history[0], history[8]], Span(2, 9)) == (
        Span(1, 2),
        Span(10, ENDLESS),
    )
    assert spans_after_halving([history[0]], Span(2, 10)) is None


def test_pins_survive_every_cut() -> None:
    """A pinned message stays in its place and does not count as a turn. [pins.whole-group]"""
    history = [entry(seq, (U, A)[seq % 2 == 0], 10, seq == 2) for seq in range(1, 9)]
    assert spans_after_halving(history, None) == (Span(2, 3), Span(5, ENDLESS))
    assert spans_after_halving([history[1], history[6]], Span(1, 7)) is None


@given(histories())
def test_the_newest_user_message_and_the_pins_are_never_dropped(history: list[Entry]) -> None:
    """Each cut drops something, splits no group, and keeps the newest user message and pins."""
    covered: Span | None = None
    pinned = pinned_seqs(history)
    newest = next((item for item in reversed(history) if item.role is U and not item.joins), None)
    shown = list(history)
    while (spans := spans_after_halving(shown, covered)) is not None:
        left = shown_by(history, spans)
        assert set(left) < set(shown)
        assert left
        assert {item.seq for item in left} >= pinned
        assert newest is None or newest in left
        assert_whole_groups(history, left)
        assert_spans_show(spans, history, left)
        shown, covered = left, View(spans).hidden
    assert (
        len(shown) == 1
        or all(item is newest or item.seq in pinned for item in shown)
        or (newest is None and len(call_groups(shown)) == 1)
    )


def test_the_last_results_are_cleared_before_their_call_is_dropped() -> None:
    """A model that sees its call does not repeat it. Pinned and excluded results stay."""
    turn = [entry(1, U, 10), entry(2, A, 10), entry(3, T, 5_000), entry(4, T, 20)]
    assert clearable_through(turn, None) == 3
    assert clearable_through([*turn, entry(5, A, 10)], None) is None, "there is more to drop"
    assert clearable_through([entry(1, U, 10), entry(2, A, 10), entry(3, T, 20)], None) is None
    assert clearable_through([*turn[:2], entry(3, T, 5_000, pinned=True)], None) is None
    assert clearable_through([*turn[:2], entry(3, T, 5_000, excluded=True)], None) is None
    assert clearable_through([entry(1, A, 10), entry(2, T, 5_000)], None) == 2
    before = [entry(1, A, 10), entry(2, T, 5_000), entry(3, U, 10)]
    assert clearable_through(before, None) is None, "it is of an older turn"
