"""Views: what is shown, what is hidden, and that a stored view reads back.

[neutral.summary-ranges, compaction.state, pins.shown-again]
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.common import json_text
from app.conversations.view import (
    RETAIN_PREFIX,
    SUMMARY_PREFIX,
    Span,
    Summary,
    View,
    spans_beside,
    spans_through,
    summary_from,
    view_from,
)
from tests.domain.conversations.generated import (
    FAR,
    shown_spans,
    summaries,
    views,
)


def seqs_in(parts: Iterable[Span]) -> list[int]:
    """Return the small seqs of all parts, each as often as it occurs."""
    return [seq for part in parts for seq in range(part.start, min(part.end, FAR + 20))]


# --- what is shown --------------------------------------------------------------------------


@given(shown_spans(), st.integers(-1, FAR + 20))
def test_a_view_shows_the_seqs_of_its_spans(shown: tuple[Span, ...], seq: int) -> None:
    """The binary search equals a check of every span."""
    assert View(spans=shown).shows(seq) == any(span.holds(seq) for span in shown)


@given(shown_spans(), st.integers(0, FAR + 10))
def test_spans_end_with_the_log(shown: tuple[Span, ...], head_seq: int) -> None:
    """A span without an end is cut at the newest message."""
    view = View(spans=shown)
    found = spans_through(shown, head_seq)
    assert seqs_in(found) == [seq for seq in range(1, head_seq + 1) if view.shows(seq)]
    assert all(span.start < span.end for span in found)


@given(st.integers(0, 20), st.sets(st.integers(1, 25)), st.integers(1, 25))
def test_results_are_cleared_up_to_a_seq_except_pinned_ones(
    through: int, uncleared: set[int], seq: int
) -> None:
    """A result up to the seq is a placeholder unless it is in `uncleared_results`."""
    view = View(results_cleared_through=through, uncleared_results=tuple(sorted(uncleared)))
    assert view.clears_result(seq) == (seq <= through and seq not in uncleared)


@pytest.mark.parametrize(
    ("view", "is_whole"),
    [
        (View(), True),
        (View(reasoning_after=9, summary_as_system=True), True),
        (View(spans=spans_beside(Span(2, 4))), False),
        (View(note="[left out]"), False),
        (View(results_cleared_through=1), False),
        (View(summaries=(Summary(Span(1, 3), "s"),)), False),
    ],
)
def test_a_whole_view_shows_the_log_unchanged(view: View, is_whole: bool) -> None:
    """A view with a summary, note or placeholder is not whole."""
    assert view.is_whole is is_whole


# --- what stands for the rest ---------------------------------------------------------------


def test_summaries_span_from_the_first_to_the_last() -> None:
    """The summarised range is that of all summaries together [neutral.summary-ranges]."""
    assert View().summarised is None
    nodes = (Summary(Span(2, 9), "a", level=2), Summary(Span(9, 12), "b"))
    assert View(summaries=nodes).summarised == Span(2, 12)
    assert View(summaries=nodes[:1]).summarised == Span(2, 9)


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (View(), ()),
        (View(note="[n]"), ("[n]",)),
        (
            View(summaries=(Summary(Span(1, 3), "one"), Summary(Span(3, 5), "two"))),
            (f"{SUMMARY_PREFIX}one]", f"{SUMMARY_PREFIX}two]"),
        ),
        (
            View(retain="verbatim", summaries=(Summary(Span(1, 3), "one"),), note="[n]"),
            (
                "[Kept from earlier in the conversation: verbatim]",
                f"{SUMMARY_PREFIX}one]\n[n]",
            ),
        ),
        (
            View(retain="verbatim", note="[n]"),
            ("[Kept from earlier in the conversation: verbatim]\n[n]",),
        ),
        (View(summaries=(Summary(Span(1, 3), ""),)), (f"{SUMMARY_PREFIX}]",)),
    ],
)
def test_summary_texts_are_in_order(view: View, expected: tuple[str, ...]) -> None:
    """The retained text is first, then the summaries by age, the note with the last of them."""
    assert view.summary_texts() == expected


@given(views())
def test_summary_texts_have_every_text_once(view: View) -> None:
    """Each text of a view is in exactly one message, with its label [strategy.sandwich]."""
    found = view.summary_texts()
    labelled = [] if view.retain is None else [f"{RETAIN_PREFIX}{view.retain}]"]
    labelled += [f"{SUMMARY_PREFIX}{summary.text}]" for summary in view.summaries]
    assert len(found) == max(len(labelled), view.note is not None)
    assert all(text.startswith(label) for text, label in zip(found, labelled, strict=False))
    assert "\n".join(found) == "\n".join(
        [*labelled, *([view.note] if view.note is not None else [])]
    )


# --- storage --------------------------------------------------------------------------------


@given(views())
def test_a_stored_view_is_read_back_equal(view: View) -> None:
    """A stored view reads back equal, NUL and lone surrogates included [compaction.resume]."""
    text = view.as_json()
    assert view_from(json_text.loads(text)) == view
    assert "\x00" not in text
    text.encode()
    hash(view)


@given(summaries())
def test_a_stored_summary_is_read_back_equal(summary: Summary) -> None:
    """A receipt's summaries read back equal, their sources included. [compaction.receipt]"""
    [raw] = json_text.loads(View(summaries=(summary,)).as_json())["summaries"]
    assert summary_from(raw) == summary
