"""Views: what is shown, what is hidden, and that a stored view reads back.

[neutral.summary-ranges, compaction.state, pins.shown-again]
"""

from __future__ import annotations

from hypothesis import given

from app.common import json_text
from app.conversations.view import (
    RETAIN_PREFIX,
    SUMMARY_PREFIX,
    Span,
    Summary,
    View,
    summary_from,
    view_from,
)
from tests.domain.conversations.generated import summaries, views

# --- what is shown --------------------------------------------------------------------------


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
