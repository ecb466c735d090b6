"""Generated views of a conversation."""

from __future__ import annotations

from hypothesis import strategies as st

from app.conversations.view import ENDLESS, Span, Summary, View
from tests.domain.compaction.strategies_messages import texts

FAR = 60
"""Beyond every drawn seq."""
SEQS = st.integers(1, FAR - 10)


def spans() -> st.SearchStrategy[Span]:
    """Draw a small range."""
    return st.builds(lambda start, length: Span(start, start + length), SEQS, st.integers(1, 20))


@st.composite
def shown_spans(draw: st.DrawFn) -> tuple[Span, ...]:
    """Draw spans as a view has them: ascending, apart, the last one open."""
    bounds = sorted(draw(st.lists(SEQS, min_size=1, max_size=9, unique=True)))
    bounds = bounds[: len(bounds) - 1 + len(bounds) % 2]
    return (*map(Span, bounds[:-1:2], bounds[1::2]), Span(bounds[-1], ENDLESS))


def summaries() -> st.SearchStrategy[Summary]:
    """Draw summaries."""
    sources = st.lists(spans(), max_size=3).map(tuple)
    return st.builds(Summary, spans(), texts(), st.integers(0, 2**40), st.integers(1, 9), sources)


def views() -> st.SearchStrategy[View]:
    """Draw views, also with unusual texts."""
    return st.builds(
        View,
        spans=shown_spans(),
        summaries=st.lists(summaries(), max_size=3).map(tuple),
        retain=st.none() | texts(),
        note=st.none() | texts(),
        results_cleared_through=st.integers(0, 2**60),
        uncleared_results=st.lists(SEQS, max_size=4).map(tuple),
        reasoning_after=st.integers(0, 2**60),
        summary_as_system=st.booleans(),
    )
