"""Visibility: the compaction that explains it, and what is outside.

That visibilities agree with builds is in `tests/services/conversations/test_transcripts.py`.

[transcript.visibility]
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from app.conversations.compaction_receipt import Compaction, Trigger
from app.conversations.turns import entry
from app.conversations.view import Span, View, spans_beside
from app.conversations.visibility import State, visibilities
from app.conversations.windows.active_window import ActiveWindow
from app.formats.message import Role

AT = datetime(2026, 1, 5, tzinfo=UTC)


def receipt(name: str, end: int, parent_id: str | None = None) -> Compaction:
    """Return the receipt of a compaction that hid the messages before `end`."""
    hidden = Span(1, end)
    return Compaction(
        compaction_id=name,
        parent_id=parent_id,
        trigger=Trigger.FORCED,
        strategy="sandwich",
        policy_strategy="sandwich",
        strategies_run=("sandwich",),
        hidden_span=hidden,
        view=replace(View(spans=spans_beside(hidden)), results_cleared_through=5),
    )


def test_a_cause_is_unknown_until_its_receipt_is_read() -> None:
    """Who hid a message is said once the receipt is read, not before."""
    first, second = receipt("first", 3), receipt("second", 4, "first")
    results = [entry(seq, Role.TOOL, 900) for seq in range(1, 7)]
    part = visibilities(results, second.view, [second])
    assert [mark.compaction_id for mark in part.values()] == [None] * 6
    assert [mark.is_explained for mark in part.values()] == [False] * 5 + [True]
    whole = visibilities(results, second.view, [second, first])
    causes = [mark.compaction_id for mark in whole.values()]
    assert causes == ["first", "first", "second", "first", "first", None]
    assert [mark.state for mark in part.values()] == [mark.state for mark in whole.values()]


def test_outside_the_active_window() -> None:
    """Compactions do not change that; restored messages have the time of their restoration.

    [window.cut]
    """
    window = ActiveWindow(8).with_restored([Span(2, 4)], AT)
    view = View(spans=window.spans, window=window.spans)
    log = [entry(seq, Role.USER, 50) for seq in range(1, 10)]
    found = visibilities(log, view, (), window.restored)
    shown = [seq for seq, mark in found.items() if mark.state is State.VERBATIM]
    assert shown == [2, 3, 8, 9]
    assert {found[seq].state for seq in range(1, 10) if seq not in shown} == {State.OUTSIDE}
    assert [seq for seq, mark in found.items() if mark.restored_at == AT] == [2, 3]
