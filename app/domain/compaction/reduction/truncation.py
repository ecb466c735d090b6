"""Truncation: fits any view into its context window without a model. [compaction.emergency]

1. Steps run in order, each only if the view is still too large:
   - trim the older tool results;
   - trim every tool result, if the newest call group and what it answers are too large by
     themselves, so that dropping messages would not help; see [decision 0029];
   - drop the oldest half of the turns, repeatedly; inside a single turn, of its call groups;
   - keep only the newest user message.
2. No text is cut here, and the newest user message is never dropped. A pinned call group is
   neither trimmed nor dropped. Results of excluded tools are dropped with their turns, but never
   trimmed.
3. A step reduces down to the target where it can, so that the next builds change nothing.
4. Each step that ran is named, in order.
5. The result is None where nothing fits, for instance pins beside the newest user message. The
   caller answers CONTEXT_OVERFLOW.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from app.domain.common.messages import Role
from app.domain.compaction.plans import HistoryBudget
from app.domain.conversations.turns import (
    Entry,
    group_boundary_after,
    group_boundary_before,
    never_cleared,
    parse_turn_boundaries,
    pinned_seqs,
)
from app.domain.conversations.view import ENDLESS, Span

RESULTS_CLEARED = "tool_results_cleared"
"""Also the reason why an epoch ends when results are cleared. See [decision 0016]."""
EMERGENCY_CUT = "emergency_cut"
ALL_RESULTS_CLEARED = "all_tool_results_cleared"


@dataclass(frozen=True, slots=True)
class Truncation:
    """A reduction of the visible history.

    Tool results with `seq <= trimmed_through` are replaced by placeholders, but for pinned and
    excluded ones. `shown` are the spans that stay visible, the last one open; None leaves all
    visible. `steps` are the steps that ran.
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

    `history` is what the view shows verbatim, in order; tool results up to `results_cleared_through` are
    placeholders already, and stay so. `covered` is the range that the view hides.
    """
    never_cleared_seqs, end = never_cleared(history), open_end(history, covered)
    newest = newest_user_message(history)
    never_dropped = pinned_seqs(history) | ({newest.seq} if newest is not None else frozenset())
    view = _Visible(tuple(history), never_dropped, never_cleared_seqs, end)
    trim = results_cleared_through
    if budget.fits(view.cost(0, trim)):
        return view.fitted(0, trim, ())
    steps: list[str] = []
    trim = max(trim, _trim(view, results_cleared_through, budget))
    if trim > results_cleared_through:
        steps.append(RESULTS_CLEARED)
    last_group, last_seq = view.last_group, history[-1].seq if history else trim
    if not budget.fits(view.cost(last_group, trim)) and budget.fits(
        view.cost(last_group, last_seq)
    ):
        steps.append(ALL_RESULTS_CLEARED)
        trim = last_seq
    if budget.fits(view.cost(0, trim)):
        return view.fitted(0, trim, tuple(steps))
    cut = _halve(view, trim, budget)
    if view.drops(cut):
        steps.append(EMERGENCY_CUT)
    if budget.fits(view.cost(cut, trim)):
        return view.fitted(cut, trim, tuple(steps))
    return _only_newest(view, trim, budget, steps)


def truncate_with_note(
    history: Sequence[Entry],
    results_cleared_through: int,
    budget: HistoryBudget,
    note_tokens: int,
    covered: Span | None = None,
) -> Truncation | None:
    """Return what `truncate` returns, with tokens reserved for a note of drops."""
    fitted = truncate(history, results_cleared_through, budget, covered)
    if fitted is not None and fitted.shown is None:
        return fitted
    noted = replace(budget, summary=budget.summary + note_tokens)
    return truncate(history, results_cleared_through, noted, covered)


@dataclass(frozen=True, slots=True)
class _Visible:
    """What a view shows, and the seqs of it that are never dropped or never trimmed.

    `end` is the seq from which on new messages are shown.
    """

    history: tuple[Entry, ...]
    never_dropped: frozenset[int]
    never_cleared_seqs: frozenset[int]
    end: int

    @property
    def last_group(self) -> int:
        """The cut that leaves the newest call group and what is never dropped."""
        return group_boundary_before(self.history, len(self.history) - 1) if self.history else 0

    def kept(self, cut: int) -> list[Entry]:
        """Return what is left after a cut: what is never dropped before it, and all after it."""
        before = (entry for entry in self.history[:cut] if entry.seq in self.never_dropped)
        return [*before, *self.history[cut:]]

    def drops(self, cut: int) -> bool:
        """Whether a cut drops anything."""
        return any(entry.seq not in self.never_dropped for entry in self.history[:cut])

    def cost(self, cut: int, results_cleared_through: int) -> int:
        """Return the tokens left after a cut, results up to a seq as placeholders."""
        return _cost(self.kept(cut), results_cleared_through, self.never_cleared_seqs)

    def fitted(self, cut: int, trim: int, steps: tuple[str, ...]) -> Truncation:
        """Return the reduction of a cut and a trim."""
        shown = spans_of_entries(self.kept(cut), self.end) if self.drops(cut) else None
        return Truncation(trim, shown, steps)


def newest_user_message(history: Sequence[Entry]) -> Entry | None:
    """Return the newest user message of a history."""
    return next((entry for entry in reversed(history) if entry.role is Role.USER), None)


def open_end(history: Sequence[Entry], covered: Span | None) -> int:
    """Return the seq from which on nothing is hidden."""
    end = history[-1].seq + 1 if history else 1
    return max(end, covered.end) if covered is not None else end


def spans_of_entries(kept: Sequence[Entry], end: int) -> tuple[Span, ...]:
    """Return the spans of these entries and, from `end` on, of all that follows.

    Gaps between them are hidden: a summary may stand for them.
    """
    gaps = [(a.seq + 1, b.seq) for a, b in pairwise(kept) if b.seq != a.seq + 1]
    starts = (kept[0].seq, *(after for _, after in gaps))
    ends = (*(before for before, _ in gaps), kept[-1].seq + 1)
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


def _trim(view: _Visible, results_cleared_through: int, budget: HistoryBudget) -> int:
    """Return the seq up to which results are trimmed, oldest first, the last group kept."""
    last_group = group_boundary_before(view.history, len(view.history) - 1)
    cost = view.cost(0, results_cleared_through)
    through = results_cleared_through
    for entry in view.history[:last_group]:
        if budget.meets_target(cost):
            break
        if entry.seq <= results_cleared_through or entry.seq in view.never_cleared_seqs:
            continue
        if entry.clearable:
            cost -= entry.tokens - entry.placeholder_tokens
            through = entry.seq
    return through


def _halve(view: _Visible, trim: int, budget: HistoryBudget) -> int:
    """Return the cut that drops the oldest half of the turns while over, then of the last's groups.

    The last call group stays.
    """
    cut = 0
    while not budget.fits(view.cost(cut, trim)):
        left = view.history[cut:]
        turns = parse_turn_boundaries(left)
        if len(turns) > 1:
            further = turns[len(turns) // 2]
        else:
            further = group_boundary_after(left, max(1, len(left) // 2))
            if further >= len(left):
                further = group_boundary_before(left, len(left) - 1)
        if further <= 0:
            break
        cut += further
    return cut


def _only_newest(
    view: _Visible, trim: int, budget: HistoryBudget, steps: Sequence[str]
) -> Truncation | None:
    """Return the last resort: the newest user message and the pins, if they fit."""
    kept = [entry for entry in view.history if entry.seq in view.never_dropped]
    if newest_user_message(kept) is None or not budget.fits(
        _cost(kept, trim, view.never_cleared_seqs)
    ):
        return None
    shown = spans_of_entries(kept, view.end)
    named = tuple(dict.fromkeys((*steps, EMERGENCY_CUT)))
    return Truncation(trim, shown, named)
