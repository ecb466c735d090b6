"""Generated histories and budgets, and the invariants of what is shown of a history."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from app.conversations.plans import HistoryBudget
from app.conversations.turns import Entry, call_groups, marked
from app.conversations.view import ENDLESS, Span
from app.formats.message import Role
from tests.domain.histories import entries

U, A, T = Role.USER, Role.ASSISTANT, Role.TOOL


@st.composite
def budgets(draw: st.DrawFn) -> HistoryBudget:
    """Draw budgets from far too small to very large; a target may exceed the capacity."""
    capacity = draw(st.integers(10, 6000))
    share = draw(st.integers(10, 99))
    return HistoryBudget(
        capacity, capacity * share // 95, draw(st.integers(0, 200)), draw(st.integers(0, 64))
    )


@st.composite
def pinned_histories(draw: st.DrawFn) -> list[Entry]:
    """Draw a history with some pinned messages and some excluded results."""
    history = draw(entries())
    seqs = st.sampled_from([item.seq for item in history])
    pins, others = draw(st.sets(seqs, max_size=3)), draw(st.sets(seqs, max_size=2))
    excluded = {item.seq for item in history if item.role is T and item.seq in others}
    return [
        marked(item, pinned=item.seq in pins, excluded=item.seq in excluded) for item in history
    ]


@st.composite
def histories(draw: st.DrawFn) -> list[Entry]:
    """Draw what a view shows: all of a log, or its ends around a summary's range; some pins."""
    history = draw(pinned_histories())
    starts = [i for i, item in enumerate(history) if not item.joins]
    if len(starts) > 2 and draw(st.booleans()):
        first, last = sorted(draw(st.sets(st.sampled_from(starts[1:]), min_size=2, max_size=2)))
        return history[:first] + history[last:]
    return history


def shown_by(history: Sequence[Entry], spans: Sequence[Span]) -> list[Entry]:
    """Return what lies in the spans."""
    return [item for item in history if any(span.holds(item.seq) for span in spans)]


def assert_whole_groups(history: Sequence[Entry], kept: Sequence[Entry]) -> None:
    """Fail if a call is shown without its results, or they without it."""
    left = {item.seq for item in kept}
    for start, end in call_groups(history):
        assert len({item.seq in left for item in history[start:end]}) == 1


def assert_spans_show(
    spans: Sequence[Span], history: Sequence[Entry], kept: Sequence[Entry]
) -> None:
    """Fail unless only the last span is endless and no hidden message of before is in any."""
    *bounded, last = spans
    assert last.end == ENDLESS
    assert all(span.start < span.end < ENDLESS for span in bounded)
    ends = [span.end for span in bounded]
    assert all(end < span.start for end, span in zip(ends, spans[1:], strict=True))
    hidden = set(range(1, history[-1].seq + 1)) - {item.seq for item in kept}
    assert not any(span.holds(seq) for span in spans for seq in hidden)
