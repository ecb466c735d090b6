"""The view after a provider reported an overflow. [compaction.emergency]

1. The oldest half of the turns is dropped, at least one; of a single turn the oldest half of its
   call groups, until only the newest user message is left, which always stays. Pinned messages
   stay too, and do not count. Other messages shown in the covered range count as one turn.
2. The results of the last call group are cleared before it is dropped: a model that does not see
   its call makes it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby, pairwise

from app.compaction.planning import CompactionInput
from app.compaction.reduction.truncation import EMERGENCY_CUT, open_end, spans_of_entries
from app.conversations.plans import CompactionPlan
from app.conversations.turns import (
    Entry,
    call_groups,
    never_cleared,
    newest_user_message,
    parse_turn_boundaries,
    pinned_seqs,
)
from app.conversations.view import Span, View, overlap
from app.conversations.views import view_after, with_omission_note


def view_after_overflow(compaction_input: CompactionInput, max_tokens: int) -> View | None:
    """Return the view after as many cuts as it takes to fit `max_tokens`, None if it never does."""
    view = compaction_input.view
    while (smaller_view := _cut_once(compaction_input, view)) is not None:
        view = smaller_view
        if compaction_input.tokens_in(view) <= max_tokens:
            return view
    return None


def _cut_once(compaction_input: CompactionInput, view: View) -> View | None:
    shown = compaction_input.shown_in(view)
    through = clearable_through(shown, view.hidden)
    if through is not None:
        clearing = CompactionPlan((EMERGENCY_CUT,), 0, results_cleared_through=through)
        return view_after(view, clearing, view.summaries, view.retain, never_cleared(shown))
    spans = spans_after_halving(shown, view.hidden)
    return with_omission_note(replace(view, spans=overlap(spans, view.window))) if spans else None


def spans_after_halving(history: Sequence[Entry], covered: Span | None) -> tuple[Span, ...] | None:
    """Return the spans to show after one cut (rule 1), None if nothing can be dropped.

    `covered` is the range that the view hides.
    """
    units = _droppable(history, covered)
    dropped_seqs = {entry.seq for unit in units[: max(1, len(units) // 2)] for entry in unit}
    shown = [entry for entry in history if entry.seq not in dropped_seqs]
    if not dropped_seqs or not shown:
        return None
    return spans_of_entries(shown, open_end(history, covered))


def clearable_through(history: Sequence[Entry], covered: Span | None) -> int | None:
    """Return the seq up to which tool results are cleared (rule 2).

    None where there is something else to drop, or nothing to gain.
    """
    newest, protected = newest_user_message(history), never_cleared(history)
    units = _droppable(history, covered)
    if len(units) != 1 or (newest is not None and units[0][0].seq < newest.seq):
        return None
    (group,) = units
    seqs = (entry.seq for entry in reversed(group) if entry.clearable)
    return next((seq for seq in seqs if seq not in protected), None)


def _droppable(history: Sequence[Entry], covered: Span | None) -> list[list[Entry]]:
    """Return what may be dropped, oldest first: turns, or the call groups of the last one."""
    user_message = newest_user_message(history)
    newest = user_message.seq if user_message is not None else None
    units = _droppable_turns(history, covered, newest)
    if len(units) == 1 and (newest is None or units[0][0].seq > newest):
        (turn,) = units
        return [turn[start:end] for start, end in call_groups(turn)]
    return units


def _droppable_turns(
    history: Sequence[Entry], covered: Span | None, newest: int | None
) -> list[list[Entry]]:
    """Return the turns without messages that always stay, oldest first; empty ones are left out."""
    pinned = pinned_seqs(history)

    def is_inside(entry: Entry) -> bool:
        return covered is not None and covered.holds(entry.seq) and entry.seq != newest

    turns: list[list[Entry]] = []
    for inside, part in groupby(history, is_inside):
        entries = list(part)
        starts = [0] if inside else parse_turn_boundaries(entries)
        turns += [entries[start:end] for start, end in pairwise([*starts, len(entries)])]
    droppable = (
        [entry for entry in turn if entry.seq not in pinned and entry.seq != newest]
        for turn in turns
    )
    return [turn for turn in droppable if turn]
