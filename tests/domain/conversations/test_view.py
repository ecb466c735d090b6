"""Views: what is shown, what is hidden, and that a stored view reads back.

[neutral.summary-ranges, compaction.state, pins.shown-again]
"""

from __future__ import annotations

from hypothesis import given

from app.conversations.from_rows import view_from
from app.conversations.view import RETAIN_PREFIX, SUMMARY_PREFIX, View
from tests.domain.conversations.generated import views

# --- what is shown --------------------------------------------------------------------------


# --- what stands for the rest ---------------------------------------------------------------


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
    assert view_from(text) == view
    assert "\x00" not in text
    text.encode()
    hash(view)
