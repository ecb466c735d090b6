"""The state that a fork starts with: its window, its compaction, its blobs.

[forks.visible-state]
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.blobs.blobs import Blob
from app.conversations.conversation import ConversationState
from app.conversations.view import ENDLESS, Span, View, minus, overlap, spans_beside, union
from app.conversations.windows.active_window import ActiveWindow, Restored
from app.snapshots.forks import covers_only, restores_log, window_at

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
MOST = 40

log = (Span(1, MOST + 1),)
spans = st.lists(
    st.builds(lambda start, size: Span(start, start + size), st.integers(1, 35), st.integers(1, 9)),
    max_size=4,
).map(lambda some: overlap(union(some), log))
windows = st.builds(
    lambda since, gaps, restored: ActiveWindow(
        since,
        minus(gaps, (Span(1, since),)),
        tuple(Restored(span, NOW) for span in minus(restored, (Span(since, ENDLESS),))),
    ),
    st.integers(1, MOST + 1),
    spans,
    spans,
)


def shown(window: ActiveWindow, at_seq: int) -> set[int]:
    """Return the seqs up to one that a window holds."""
    return set(filter(window.holds, range(1, at_seq + 1)))


@given(window=windows, at_seq=st.integers(0, MOST))
def test_a_fork_has_the_window_of_its_source(window: ActiveWindow, at_seq: int) -> None:
    """The window of the source up to the seq, or the whole log if that is empty [forks.window]."""
    cut = window_at(ConversationState(MOST, window=window), at_seq, NOW)
    held = shown(window, at_seq)
    assert restores_log(ConversationState(MOST, window=window), at_seq) == (
        not held and 0 < at_seq < MOST
    )
    assert shown(cut, at_seq) == (held or set(range(1, at_seq + 1 if at_seq < MOST else 1)))
    assert cut.spans[-1].end == ENDLESS and cut.spans[-1].start <= at_seq + 1
    assert all(span.end <= at_seq + 1 for span in (*cut.gaps, *(r.span for r in cut.restored)))
    if at_seq == MOST and held:
        assert cut.spans == window.spans


@pytest.mark.parametrize(
    ("cleared_at", "restored_at"),
    [
        (None, NOW),
        (NOW + timedelta(hours=1), NOW + timedelta(hours=1, microseconds=1)),
    ],
)
def test_restored_spans_are_newer_than_the_clear(
    cleared_at: datetime | None, restored_at: datetime
) -> None:
    """An earlier clear does not remove them again, whatever the clocks."""
    state = ConversationState(9, window=ActiveWindow(8), cleared_at=cleared_at)
    assert window_at(state, 5, NOW).restored == (Restored(Span(1, 6), restored_at),)


@pytest.mark.parametrize(
    ("view", "first"),
    [
        (View(), 0),
        (View(results_cleared_through=7), 7),
        (View(spans=spans_beside(Span(3, 9))), 8),
        (View(spans=spans_beside(Span(3, 9), (5,)), results_cleared_through=20), 20),
        (View(spans=(Span(9, ENDLESS),), window=(Span(9, ENDLESS),)), 0),
        (View(spans=(Span(9, ENDLESS),)), 9),  # at 8 it would show no message
    ],
)
def test_a_view_covers_only_messages_up_to_its_end(view: View, first: int) -> None:
    """A compaction is copied with all that it hides and clears [compaction.resume]."""
    assert [seq for seq in range(25) if covers_only(view, seq)] == list(range(first, 25))


def blob(number: int, byte_size: int) -> Blob:
    """Return a blob of this size."""
    return Blob(f"blob_{number}", str(number), byte_size, 0, "", "")
