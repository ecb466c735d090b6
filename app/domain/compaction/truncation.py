"""Fitting: the steps that need no model and make any view fit its window (C4, E6).

1. Steps run in order, each only if the view is still over: trim the older tool results; trim
   every one, if the newest call group and what it answers are too much by themselves, so that no
   dropping would help; drop the oldest half of the turns (again and again; inside a single turn,
   of its call groups); keep only the newest user message.
2. No text is cut here, and the newest user message is never dropped. A pinned
   call group is neither trimmed nor dropped, and stays where it stands (D8); results of excluded
   tools are dropped with their turns, but never trimmed (F3).
3. A step frees down to the target where it can, so that the next builds change nothing (D7).
4. Each step that ran is named, in order.
5. What cannot fit even then, such as pins beside the newest user message, is None: the caller
   answers CONTEXT_OVERFLOW.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from app.domain.common.messages import Role
from app.domain.compaction.strategies import HistoryBudget
from app.domain.conversations.turns import (
    Entry,
    group_boundary_after,
    group_boundary_before,
    never_cleared,
    parse_turn_boundaries,
    pinned_seqs,
)
from app.domain.conversations.view import ENDLESS, Span

TRIMMED = "tool_results_cleared"
"""Also why an epoch ends when results give way (decision 16)."""
EMERGENCY = "emergency_cut"
ALL_TRIMMED = "all_tool_results_cleared"


@dataclass(frozen=True, slots=True)
class Truncation:
    """A reduction of the visible history.

    Tool results with `seq <= trimmed_through` give way to placeholders, but for the pinned and
    the excluded ones in `untrimmed`. `shown` holds the seqs that stay visible, the last span open
    for what is still to come; None leaves all visible. `steps` says what was done.
    """

    trimmed_through: int
    shown: tuple[Span, ...] | None
    steps: tuple[str, ...]
    untrimmed: tuple[int, ...] = ()


def truncate(
    history: Sequence[Entry], trimmed_through: int, room: HistoryBudget, covered: Span | None = None
) -> Truncation | None:
    """Return the smallest reduction of `history` that fits `room`, or None.

    `history` is what the view shows verbatim, in order; tool results up to `trimmed_through`
    are placeholders already, and stay so. `covered` is the range the view hides.
    """
    whole, end = never_cleared(history), end_of(history, covered)
    newest = newest_request(history)
    stays = pinned_seqs(history) | ({newest.seq} if newest is not None else frozenset())
    view = _Visible(tuple(history), stays, whole, end)
    trim = trimmed_through
    if room.holds(view.cost(0, trim)):
        return view.fitted(0, trim, trimmed_through, ())
    steps: list[str] = []
    trim = max(trim, _trim(view, trimmed_through, room))
    if trim > trimmed_through:
        steps.append(TRIMMED)
    least, last_seq = view.last_group, history[-1].seq if history else trim
    if not room.holds(view.cost(least, trim)) and room.holds(view.cost(least, last_seq)):
        steps.append(ALL_TRIMMED)
        trim = last_seq
    if room.holds(view.cost(0, trim)):
        return view.fitted(0, trim, trimmed_through, tuple(steps))
    cut = _halve(view, trim, room)
    if view.drops(cut):
        steps.append(EMERGENCY)
    if room.holds(view.cost(cut, trim)):
        return view.fitted(cut, trim, trimmed_through, tuple(steps))
    return _only_newest(view, trim, trimmed_through, room, steps)


def truncate_with_note(
    history: Sequence[Entry],
    trimmed_through: int,
    room: HistoryBudget,
    note_tokens: int,
    covered: Span | None = None,
) -> Truncation | None:
    """Return what `truncate` does, with room left for a note wherever messages are left out."""
    fitted = truncate(history, trimmed_through, room, covered)
    if fitted is not None and fitted.shown is None:
        return fitted
    noted = replace(room, summary=room.summary + note_tokens)
    return truncate(history, trimmed_through, noted, covered)


@dataclass(frozen=True, slots=True)
class _Visible:
    """What a view shows: which of it stays after any cut, and which is never trimmed.

    `end` is where what is to come begins.
    """

    history: tuple[Entry, ...]
    stays: frozenset[int]
    whole: frozenset[int]
    end: int

    @property
    def last_group(self) -> int:
        """The cut that leaves the newest call group, beside what stays."""
        return group_boundary_before(self.history, len(self.history) - 1) if self.history else 0

    def kept(self, cut: int) -> list[Entry]:
        """Return what is left after a cut: what stays of before it, and all that follows."""
        before = (entry for entry in self.history[:cut] if entry.seq in self.stays)
        return [*before, *self.history[cut:]]

    def drops(self, cut: int) -> bool:
        """Whether a cut drops anything."""
        return any(entry.seq not in self.stays for entry in self.history[:cut])

    def cost(self, cut: int, trimmed_through: int) -> int:
        """Return the tokens left after a cut, results up to a seq as placeholders."""
        return _cost(self.kept(cut), trimmed_through, self.whole)

    def fitted(
        self, cut: int, trim: int, trimmed_before: int, steps: tuple[str, ...]
    ) -> Truncation:
        """Return a cut and a trim as a reduction."""
        kept = self.kept(cut)
        shown = spans_kept(kept, self.end) if self.drops(cut) else None
        return Truncation(trim, shown, steps, self.untrimmed(kept, trimmed_before, trim))

    def untrimmed(self, kept: Sequence[Entry], trimmed_before: int, trim: int) -> tuple[int, ...]:
        """Return the seqs of pinned and excluded results that a new trim passes over."""
        return tuple(
            entry.seq
            for entry in kept
            if entry.role is Role.TOOL
            and entry.seq in self.whole
            and trimmed_before < entry.seq <= trim
        )


def newest_request(history: Sequence[Entry]) -> Entry | None:
    """Return the newest user message that is shown."""
    return next((entry for entry in reversed(history) if entry.role is Role.USER), None)


def end_of(history: Sequence[Entry], covered: Span | None) -> int:
    """Return the seq from which on nothing is hidden."""
    end = history[-1].seq + 1 if history else 1
    return max(end, covered.end) if covered is not None else end


def spans_kept(kept: Sequence[Entry], end: int) -> tuple[Span, ...]:
    """Return the seqs of what is kept, gaps left out: a summary may stand for them."""
    gaps = [(a.seq + 1, b.seq) for a, b in pairwise(kept) if b.seq != a.seq + 1]
    starts = (kept[0].seq, *(after for _, after in gaps))
    ends = (*(before for before, _ in gaps), kept[-1].seq + 1)
    spans = tuple(map(Span, starts, ends))
    if ends[-1] == end:
        return (*spans[:-1], Span(starts[-1], ENDLESS))
    return (*spans, Span(end, ENDLESS))


def _cost(history: Iterable[Entry], trimmed_through: int, whole: frozenset[int]) -> int:
    return sum(
        entry.trimmed_tokens
        if entry.seq <= trimmed_through and entry.seq not in whole
        else entry.tokens
        for entry in history
    )


def _trim(view: _Visible, trimmed_through: int, room: HistoryBudget) -> int:
    """Return the seq up to which results are trimmed, oldest first, the last group kept."""
    last_group = group_boundary_before(view.history, len(view.history) - 1)
    cost = view.cost(0, trimmed_through)
    through = trimmed_through
    for entry in view.history[:last_group]:
        if room.aims_at(cost):
            break
        if entry.seq <= trimmed_through or entry.seq in view.whole:
            continue
        if entry.clearable:
            cost -= entry.tokens - entry.trimmed_tokens
            through = entry.seq
    return through


def _halve(view: _Visible, trim: int, room: HistoryBudget) -> int:
    """Return the cut that drops the oldest half of the turns while over, then of the last's groups.

    The last call group stays.
    """
    cut = 0
    while not room.holds(view.cost(cut, trim)):
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
    view: _Visible, trim: int, trimmed_before: int, room: HistoryBudget, steps: Sequence[str]
) -> Truncation | None:
    """Return the last resort: the newest user message and the pins, if they fit."""
    kept = [entry for entry in view.history if entry.seq in view.stays]
    if newest_request(kept) is None or not room.holds(_cost(kept, trim, view.whole)):
        return None
    shown = spans_kept(kept, view.end)
    named = tuple(dict.fromkeys((*steps, EMERGENCY)))
    return Truncation(trim, shown, named, view.untrimmed(kept, trimmed_before, trim))
