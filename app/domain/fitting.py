"""Fitting: the steps that need no model and make any view fit its window (C4, E6).

1. Steps run in order, each only if the view is still over: trim the older tool results, drop
   the oldest half of the turns (again and again; inside a single turn, of its call groups),
   keep only the newest user message, trim every tool result.
2. User text is never cut (decision 14).
3. A step frees down to the target where it can, so that the next builds change nothing (D7).
4. Each step that ran is named, in order.
5. What cannot fit even then is None: the caller answers CONTEXT_OVERFLOW.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from app.domain.messages import Role
from app.domain.strategies import ENDLESS, Room, Span
from app.domain.turns import (
    Entry,
    group_boundary_after,
    group_boundary_before,
    parse_turn_boundaries,
)

TRIMMED = "tool_results_cleared"
EMERGENCY = "emergency_cut"
ALL_TRIMMED = "all_tool_results_cleared"


@dataclass(frozen=True, slots=True)
class Fitted:
    """A reduction of the visible history.

    Tool results with `seq <= trimmed_through` give way to placeholders. `shown` holds the seqs
    that stay visible, the last span open for what is still to come; None leaves all visible.
    `steps` says what was done.
    """

    trimmed_through: int
    shown: tuple[Span, ...] | None
    steps: tuple[str, ...]


def fit(history: Sequence[Entry], trimmed_through: int, room: Room) -> Fitted | None:
    """Return the smallest reduction of `history` that fits `room`, or None.

    `history` is what the view shows verbatim, in order; tool results up to
    `trimmed_through` are placeholders already, and stay so.
    """
    trim = trimmed_through
    if room.holds(_cost(history, trim)):
        return Fitted(trim, None, ())
    steps: list[str] = []
    trim = max(trim, _trim(history, trim, room))
    if trim > trimmed_through:
        steps.append(TRIMMED)
    if room.holds(_cost(history, trim)):
        return Fitted(trim, None, tuple(steps))
    kept = _halve(history, trim, room)
    if len(kept) < len(history):
        steps.append(EMERGENCY)
    if not room.holds(_cost(kept, trim)) and room.holds(_cost(kept, kept[-1].seq)):
        steps.append(ALL_TRIMMED)
        trim = kept[-1].seq
    if room.holds(_cost(kept, trim)):
        left = _spans(kept) if len(kept) < len(history) else None
        return Fitted(trim, left, tuple(steps))
    newest = next((entry for entry in reversed(history) if entry.role is Role.USER), None)
    if newest is None or not room.holds(newest.tokens):
        return None
    shown = (Span(newest.seq, newest.seq + 1), Span(history[-1].seq + 1, ENDLESS))
    return Fitted(trim, shown, tuple(dict.fromkeys((*steps, EMERGENCY))))


def _spans(kept: Sequence[Entry]) -> tuple[Span, ...]:
    """Return the seqs of what is kept, gaps left out: a summary may stand for them."""
    gaps = [(a.seq + 1, b.seq) for a, b in pairwise(kept) if b.seq != a.seq + 1]
    starts = (kept[0].seq, *(after for _, after in gaps))
    ends = (*(before for before, _ in gaps), ENDLESS)
    return tuple(map(Span, starts, ends))


def fit_with_note(
    history: Sequence[Entry], trimmed_through: int, room: Room, note_tokens: int
) -> Fitted | None:
    """Return what `fit` does, with room left for a note wherever messages are left out."""
    fitted = fit(history, trimmed_through, room)
    if fitted is not None and fitted.shown is None:
        return fitted
    return fit(history, trimmed_through, replace(room, summary=room.summary + note_tokens))


def _cost(history: Sequence[Entry], trimmed_through: int) -> int:
    return sum(
        entry.trimmed_tokens if entry.seq <= trimmed_through else entry.tokens for entry in history
    )


def _trim(history: Sequence[Entry], trimmed_through: int, room: Room) -> int:
    """Return the seq up to which results are trimmed, oldest first, the last group kept."""
    last_group = group_boundary_before(history, len(history) - 1)
    cost = _cost(history, trimmed_through)
    through = trimmed_through
    for entry in history[:last_group]:
        if room.aims_at(cost):
            break
        if entry.seq > trimmed_through and entry.trimmed_tokens < entry.tokens:
            cost -= entry.tokens - entry.trimmed_tokens
            through = entry.seq
    return through


def _halve(history: Sequence[Entry], trim: int, room: Room) -> Sequence[Entry]:
    """Drop the oldest half of the turns, then of the last turn's call groups, while over."""
    kept = history
    while not room.holds(_cost(kept, trim)):
        turns = parse_turn_boundaries(kept)
        if len(turns) > 1:
            cut = turns[len(turns) // 2]
        else:
            cut = group_boundary_after(kept, max(1, len(kept) // 2))
            if cut >= len(kept):
                cut = group_boundary_before(kept, len(kept) - 1)
        if cut <= 0:
            break
        kept = kept[cut:]
    return kept
