"""Truncation: fits any view into its context window without a model. [compaction.emergency]

1. Steps run in order, each only if the view is still too large:
   - clear the older tool results;
   - clear every tool result, if the newest call group with its user message is too large by itself,
     so that dropping messages would not help; see [decision 0003];
   - drop the oldest half of the turns, repeatedly; inside a single turn, of its call groups;
   - keep only the newest user message.
2. No text is shortened here, and the newest user message is never dropped. A pinned call group is
   neither cleared nor dropped. Results of excluded tools are dropped with their turns, but never
   cleared.
3. A step reduces down to the target where it can, so that the next builds change nothing.
4. Each step that ran is named, in order.
5. The result is None if even the pins and the newest user message do not fit. The caller answers
   CONTEXT_OVERFLOW.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from app.conversations.plans import HistoryBudget, oldest_cleared
from app.conversations.turns import (
    Entry,
    group_boundary_after,
    group_boundary_before,
    never_cleared,
    never_hidden,
    newest_user_message,
    parse_turn_boundaries,
)
from app.conversations.view import ENDLESS, Span

RESULTS_CLEARED = "tool_results_cleared"
"""Also the reason why an epoch ends when results are cleared. See [decision 0007]."""
EMERGENCY_CUT = "emergency_cut"
ALL_RESULTS_CLEARED = "all_tool_results_cleared"


@dataclass(frozen=True, slots=True)
class Truncation:
    """A reduction of the visible history.

    Tool results up to `results_cleared_through` are replaced by placeholders, except pinned and
    excluded ones. `shown` are the spans that stay visible, the last one without an end; None leaves
    all visible. `steps` are the steps that ran.
    """

    results_cleared_through: int
    shown: tuple[Span, ...] | None
    steps: tuple[str, ...]


def truncate(
    history: Sequence[Entry],
    results_cleared_through: int,
    budget: HistoryBudget,
    covered: Span | None = None,
) -> Truncation | None:
    """Return the smallest reduction of a history that fits the budget, None if there is none.

    `history` are the entries that the view shows, in order; its tool results up to
    `results_cleared_through` are placeholders already. `covered` is the range that the view hides.
    """
    end = open_end(history, covered)
    visible = _VisibleHistory(tuple(history), never_hidden(history), never_cleared(history), end)
    through = results_cleared_through
    if budget.fits(visible.cost(0, through)):
        return visible.truncation(0, through, ())
    steps: list[str] = []
    through = max(through, _clear_results(visible, results_cleared_through, budget))
    if through > results_cleared_through:
        steps.append(RESULTS_CLEARED)
    last_group, last_seq = visible.last_group, history[-1].seq if history else through
    if not budget.fits(visible.cost(last_group, through)) and budget.fits(
        visible.cost(last_group, last_seq)
    ):
        steps.append(ALL_RESULTS_CLEARED)
        through = last_seq
    if budget.fits(visible.cost(0, through)):
        return visible.truncation(0, through, tuple(steps))
    cut = _drop_halves(visible, through, budget)
    if visible.drops(cut):
        steps.append(EMERGENCY_CUT)
    if budget.fits(visible.cost(cut, through)):
        return visible.truncation(cut, through, tuple(steps))
    return _only_newest(visible, through, budget, steps)


def truncate_with_note(
    history: Sequence[Entry],
    results_cleared_through: int,
    budget: HistoryBudget,
    note_tokens: int,
    covered: Span | None = None,
) -> Truncation | None:
    """Truncate; if messages are dropped, reserve tokens for the note that counts them."""
    without_note = truncate(history, results_cleared_through, budget, covered)
    if without_note is not None and without_note.shown is None:
        return without_note
    budget_with_note = replace(budget, summary=budget.summary + note_tokens)
    return truncate(history, results_cleared_through, budget_with_note, covered)


@dataclass(frozen=True, slots=True)
class _VisibleHistory:
    """The entries that a view shows, and the seqs that are never dropped or never cleared.

    All messages from the seq `end` on are shown. A cut drops the entries before it.
    """

    history: tuple[Entry, ...]
    never_dropped: frozenset[int]
    never_cleared_seqs: frozenset[int]
    end: int

    @property
    def last_group(self) -> int:
        """The cut that leaves the newest call group, besides entries that are never dropped."""
        return group_boundary_before(self.history, len(self.history) - 1) if self.history else 0

    def shown(self, cut: int) -> list[Entry]:
        """Return the entries after a cut, and those before it that are never dropped."""
        undropped = (entry for entry in self.history[:cut] if entry.seq in self.never_dropped)
        return [*undropped, *self.history[cut:]]

    def drops(self, cut: int) -> bool:
        """Whether a cut drops any entry."""
        return any(entry.seq not in self.never_dropped for entry in self.history[:cut])

    def cost(self, cut: int, results_cleared_through: int) -> int:
        """Return the tokens shown after a cut, with placeholders up to a seq."""
        return _cost(self.shown(cut), results_cleared_through, self.never_cleared_seqs)

    def truncation(
        self, cut: int, results_cleared_through: int, steps: tuple[str, ...]
    ) -> Truncation:
        """Return the result of these steps."""
        shown = spans_of_entries(self.shown(cut), self.end) if self.drops(cut) else None
        return Truncation(results_cleared_through, shown, steps)


def open_end(history: Sequence[Entry], covered: Span | None) -> int:
    """Return the seq from which on nothing is hidden."""
    end = history[-1].seq + 1 if history else 1
    return max(end, covered.end) if covered is not None else end


def spans_of_entries(shown: Sequence[Entry], end: int) -> tuple[Span, ...]:
    """Return the spans of these entries and of all seqs from `end` on.

    The seqs between them are hidden: a summary may stand for them.
    """
    gaps = [(a.seq + 1, b.seq) for a, b in pairwise(shown) if b.seq != a.seq + 1]
    starts = (shown[0].seq, *(gap_end for _, gap_end in gaps))
    ends = (*(gap_start for gap_start, _ in gaps), shown[-1].seq + 1)
    spans = tuple(map(Span, starts, ends))
    if ends[-1] == end:
        return (*spans[:-1], Span(starts[-1], ENDLESS))
    return (*spans, Span(end, ENDLESS))


def _cost(
    history: Iterable[Entry], results_cleared_through: int, never_cleared_seqs: frozenset[int]
) -> int:
    return sum(
        entry.placeholder_tokens
        if entry.seq <= results_cleared_through and entry.seq not in never_cleared_seqs
        else entry.tokens
        for entry in history
    )


def _clear_results(
    visible: _VisibleHistory, results_cleared_through: int, budget: HistoryBudget
) -> int:
    """Return the seq up to which results are cleared, oldest first, none of the last group."""
    last_group = group_boundary_before(visible.history, len(visible.history) - 1)
    cost = visible.cost(0, results_cleared_through)
    clearable = (
        item
        for item in visible.history[:last_group]
        if item.clearable
        and item.seq > results_cleared_through
        and item.seq not in visible.never_cleared_seqs
    )
    return oldest_cleared(clearable, lambda freed: budget.meets_target(cost - freed))


def _drop_halves(
    visible: _VisibleHistory, results_cleared_through: int, budget: HistoryBudget
) -> int:
    """Return the cut after dropping the oldest half of the turns until the rest fits the budget.

    Of a single turn the oldest half of its call groups is dropped; the last group stays.
    """
    cut = 0
    while not budget.fits(visible.cost(cut, results_cleared_through)):
        rest = visible.history[cut:]
        turns = parse_turn_boundaries(rest)
        if len(turns) > 1:
            dropped_count = turns[len(turns) // 2]
        else:
            dropped_count = group_boundary_after(rest, max(1, len(rest) // 2))
            if dropped_count >= len(rest):
                dropped_count = group_boundary_before(rest, len(rest) - 1)
        if dropped_count <= 0:
            break
        cut += dropped_count
    return cut


def _only_newest(
    visible: _VisibleHistory,
    results_cleared_through: int,
    budget: HistoryBudget,
    steps: Sequence[str],
) -> Truncation | None:
    """Return a truncation to the newest user message and the pins, None if they do not fit."""
    entries = visible.shown(len(visible.history))
    cost = _cost(entries, results_cleared_through, visible.never_cleared_seqs)
    if newest_user_message(entries) is None or not budget.fits(cost):
        return None
    all_steps = tuple(dict.fromkeys((*steps, EMERGENCY_CUT)))
    return Truncation(results_cleared_through, spans_of_entries(entries, visible.end), all_steps)
