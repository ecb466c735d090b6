"""The active window as a value: its spans, its marker, what was restored.

[window.cut, window.clear, window.restored]
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from app.conversations.view import (
    ENDLESS,
    STEPS_PER_WINDOW,
    ActiveWindow,
    Restored,
    Span,
    marker_of,
    minus,
    overlap,
    still_restored,
    union,
    window_from,
)

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
MOST = 60

spans = st.lists(
    st.builds(lambda start, size: Span(start, start + size), st.integers(1, 50), st.integers(1, 9)),
    max_size=6,
).map(union)
windows = st.builds(
    lambda since, gaps, restored: ActiveWindow(
        since,
        minus(gaps, (Span(1, since),)),
        tuple(
            Restored(span, NOW - timedelta(seconds=ago))
            for span, ago in zip(minus(restored, (Span(since, ENDLESS),)), range(99), strict=False)
        ),
    ),
    st.integers(1, 50),
    spans,
    spans,
)


def seqs(of: tuple[Span, ...]) -> set[int]:
    """Return the seqs of spans up to a small maximum."""
    return {seq for span in of for seq in range(span.start, min(span.end, MOST))}


def is_normalised(of: tuple[Span, ...]) -> bool:
    """Whether spans ascend, do not touch and are not empty."""
    edges = [edge for span in of for edge in (span.start, span.end)]
    return edges == sorted(set(edges))


@given(one=spans, other=spans)
def test_spans_are_sets_of_seqs(one: tuple[Span, ...], other: tuple[Span, ...]) -> None:
    """Union, overlap and difference are those of the sets of seqs [window.cut]."""
    for made, expected in (
        (union((*one, *other)), seqs(one) | seqs(other)),
        (overlap(one, other), seqs(one) & seqs(other)),
        (minus(one, other), seqs(one) - seqs(other)),
    ):
        assert seqs(made) == expected
        assert is_normalised(made)


@given(window=windows)
def test_a_window_holds_the_seqs_of_its_spans(window: ActiveWindow) -> None:
    """Its last span has no end, and its stored text is read back equal [window.cut]."""
    held = {seq for seq in range(1, MOST) if window.holds(seq)}
    assert held == seqs(window.spans)
    assert is_normalised(window.spans)
    assert window.spans[-1].end == ENDLESS
    assert window_from(window.since, window.parts_as_json()) == window


@given(window=windows, moved=windows)
def test_restored_ranges_stay_until_their_time_is_over(
    window: ActiveWindow, moved: ActiveWindow
) -> None:
    """A move of the window does not remove them earlier [window.restored]."""
    plain = ActiveWindow(moved.since, moved.gaps)
    marker = NOW - timedelta(seconds=2)
    left = still_restored(window.restored, plain, marker)
    assert all(item.at > marker for item in left)
    young = [item.span for item in window.restored if item.at > marker]
    assert seqs(union(item.span for item in left)) == seqs(union(young)) - seqs(plain.spans)
    assert len(still_restored(window.restored, plain, None)) >= len(left)


@given(seconds=st.integers(1, 10**6))
def test_a_window_moves_by_steps(seconds: int) -> None:
    """A move by a step is one of a 24th of its length.

    [window.moves-in-steps]
    """
    ahead = marker_of(None, seconds, NOW, one_step_ahead=True)
    exact = marker_of(None, seconds, NOW)
    assert ahead is not None and exact is not None
    step = timedelta(seconds=seconds) / STEPS_PER_WINDOW
    assert abs((ahead - exact) - step) <= timedelta(microseconds=1)


def test_the_newest_rewind_of_a_range_is_undone() -> None:
    """What was restored after an earlier one is there again, and no more."""
    span, now = Span(3, 9), datetime.now(UTC)
    window = ActiveWindow().rewind(span, now, {}).with_restored([Span(4, 6)], now)
    assert window.rewind(span, now, {}).unrewind(span) == window
