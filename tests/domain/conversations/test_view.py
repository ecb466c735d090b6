"""Views: what is shown, what is hidden, and that a stored view reads back.

[neutral.summary-ranges, compaction.state, pins.shown-again]
"""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from app.common import json_text
from app.conversations.view import (
    RETAIN_PREFIX,
    SUMMARY_PREFIX,
    Span,
    Summary,
    View,
    spans_through,
    summary_from,
    view_from,
)
from tests.domain.conversations.generated import FAR, shown_spans, summaries, views


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


# --- what stands for the rest ---------------------------------------------------------------


def test_summaries_span_from_the_first_to_the_last() -> None:
    """The summarised range is that of all summaries together [neutral.summary-ranges]."""
    assert View().summarised is None
    nodes = (Summary(Span(2, 9), "a", level=2), Summary(Span(9, 12), "b"))
    assert View(summaries=nodes).summarised == Span(2, 12)
    assert View(summaries=nodes[:1]).summarised == Span(2, 9)


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
