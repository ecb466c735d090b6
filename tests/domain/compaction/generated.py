"""Generated histories and budgets, and the invariants of what is shown of a history."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from app.compaction.shown_history import HistoryBudget
from app.conversations.turns import Entry, call_groups, marked
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


def assert_whole_groups(history: Sequence[Entry], kept: Sequence[Entry]) -> None:
    """Fail if a call is shown without its results, or they without it."""
    left = {item.seq for item in kept}
    for start, end in call_groups(history):
        assert len({item.seq in left for item in history[start:end]}) == 1
