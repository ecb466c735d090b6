"""Strategies: pure planners that say what the next view of a history should be (D1, D2, D6).

1. A planner reads a history and a room, and returns a plan as data. It stores nothing.
2. A history is what the window shows verbatim now: the entries before an active summary's
   range, then those after it. The range itself is `covered`.
3. A range only ever grows at its end, unless the kept ends no longer fit (C4).
4. Preserved ends grow, never shrink, to call groups, and to whole turns where that fits the
   target (decision 14). They shrink only when even trimmed they would not fit the capacity.
5. Planning again right after applying a plan finds nothing to do (D7).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from app.domain.messages import Role
from app.domain.policy import Policy, StrategyName
from app.domain.turns import Entry, group_boundary_after, group_boundary_before


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open range of seqs."""

    start: int
    end: int


def spans_through(spans: Sequence[Span], head_seq: int) -> list[Span]:
    """Return what there is of the spans in a log with this head."""
    ended = (Span(span.start, min(span.end, head_seq + 1)) for span in spans)
    return [span for span in ended if span.start < span.end]


ENDLESS = 2**62
"""The end of a span that is still growing."""


@dataclass(frozen=True, slots=True)
class Room:
    """What the history has to fit into, in tokens of the effective window.

    `fixed` is taken by sections and tools, `summary` is kept free for a summary's text,
    `capacity` is the most a payload may have, `target` what a compaction aims for (D7).
    """

    capacity: int
    target: int
    fixed: int
    summary: int

    def holds(self, history_tokens: int) -> bool:
        """Whether a history of this size fits beside the fixed regions and a summary."""
        return history_tokens + self.fixed + self.summary <= self.capacity

    def aims_at(self, history_tokens: int) -> bool:
        """Whether a history of this size is within the target of a compaction."""
        return history_tokens + self.fixed + self.summary <= min(self.target, self.capacity)


@dataclass(frozen=True, slots=True)
class Keep:
    """Nothing to do; `reason` says why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Summarise:
    """Replace `span` by a summary, which takes in the summary that already covers part of it.

    `shrunk` tells that preserved messages had to be given up to fit (C4).
    """

    span: Span
    freed_tokens: int
    shrunk: bool


@dataclass(frozen=True, slots=True)
class Slide:
    """Show only the messages from `tail_start` on."""

    tail_start: int


Plan = Keep | Summarise | Slide


class Strategy(Protocol):
    """One way to keep a history inside a window."""

    name: StrategyName

    def trigger(self, policy: Policy) -> float | None:
        """Return the share of the effective window at which a compaction is due (C3)."""
        ...

    def preserved(self, policy: Policy) -> tuple[int | None, int | None]:
        """Return how many messages stay verbatim at the top and bottom; None is all."""
        ...

    def plan(
        self, history: Sequence[Entry], covered: Span | None, room: Room, policy: Policy
    ) -> Plan:
        """Return what the next view should be, whatever the pressure is now."""
        ...


class Sandwich:
    """Top, a summary of the middle, bottom (D1)."""

    name = StrategyName.SANDWICH

    def trigger(self, policy: Policy) -> float | None:
        """Return S0's compression threshold."""
        return policy.sandwich.compression_threshold

    def preserved(self, policy: Policy) -> tuple[int | None, int | None]:
        """Return S0's preserve_top and preserve_bottom."""
        return policy.sandwich.preserve_top, policy.sandwich.preserve_bottom

    def plan(
        self, history: Sequence[Entry], covered: Span | None, room: Room, policy: Policy
    ) -> Plan:
        """Return the summary range that leaves both preserved ends verbatim."""
        want_top, want_bottom = policy.sandwich.preserve_top, policy.sandwich.preserve_bottom
        few = covered is None and len(history) <= want_top + want_bottom
        if few and room.holds(_kept_trimmed(history, len(history), len(history))):
            return Keep("not enough messages")
        top, bottom = self._ends(history, covered, room, policy)
        top, bottom, shrunk = _shrink(history, top, bottom, room)
        if shrunk and not room.holds(_kept_trimmed(history, top, bottom)):
            # Summarising the rest would lose the newest user message, which alone may fit (E6).
            return Keep("the last messages alone do not fit")
        return _summary_plan(history, covered, top, bottom, shrunk)

    def _ends(
        self, history: Sequence[Entry], covered: Span | None, room: Room, policy: Policy
    ) -> tuple[int, int]:
        """Return the cuts after the top and before the bottom, grown to safe boundaries."""
        if covered is None:
            top = group_boundary_after(history, policy.sandwich.preserve_top)
        else:
            top = sum(entry.seq < covered.start for entry in history)
        bottom = group_boundary_before(history, len(history) - policy.sandwich.preserve_bottom)
        bottom = max(bottom, top)

        turn = _turn_start(history, bottom, top)
        leaves_a_middle = covered is not None or (turn is not None and turn > top)
        if turn is not None and leaves_a_middle and room.aims_at(_kept(history, top, turn)):
            bottom = turn
        if covered is None:
            whole_turn = top
            while whole_turn < bottom and history[whole_turn].role is not Role.USER:
                whole_turn += 1
            if whole_turn < bottom and room.aims_at(_kept(history, whole_turn, bottom)):
                top = whole_turn
        return top, bottom


class SlidingWindow:
    """The last N messages; what came before is not shown (D2)."""

    name = StrategyName.SLIDING_WINDOW

    def trigger(self, policy: Policy) -> float | None:
        """Return None: the window moves by itself (decision 11)."""
        return None

    def preserved(self, policy: Policy) -> tuple[int | None, int | None]:
        """Return nothing at the top, and S0's keep_last_n at the bottom."""
        return 0, policy.sliding_window.keep_last_n

    def plan(
        self, history: Sequence[Entry], covered: Span | None, room: Room, policy: Policy
    ) -> Plan:
        """Return the window that shows the last N messages, grown to whole call groups."""
        cut = group_boundary_before(history, len(history) - policy.sliding_window.keep_last_n)
        if cut <= 0:
            return Keep("all messages are inside the window")
        return Slide(history[cut].seq)


class FullHistory:
    """Everything, always (D2)."""

    name = StrategyName.FULL_HISTORY

    def trigger(self, policy: Policy) -> float | None:
        """Return None: it never compacts (decision 11)."""
        return None

    def preserved(self, policy: Policy) -> tuple[int | None, int | None]:
        """Return None for both ends: all messages stay."""
        return None, None

    def plan(
        self, history: Sequence[Entry], covered: Span | None, room: Room, policy: Policy
    ) -> Plan:
        """Return that nothing is done, even when forced."""
        return Keep("full_history never compacts")


STRATEGIES: dict[StrategyName, Strategy] = {
    strategy.name: strategy for strategy in (Sandwich(), SlidingWindow(), FullHistory())
}


def _turn_start(history: Sequence[Entry], index: int, least: int) -> int | None:
    """Return the start of the turn that `index` stands in, when it is not before `least`."""
    while index >= least and index < len(history):
        if history[index].role is Role.USER:
            return index
        index -= 1
    return None


def _kept(history: Sequence[Entry], top: int, bottom: int) -> int:
    ends = (*history[:top], *history[bottom:])
    return sum(entry.tokens for entry in ends)


def _kept_trimmed(history: Sequence[Entry], top: int, bottom: int) -> int:
    ends = (*history[:top], *history[bottom:])
    return sum(entry.trimmed_tokens for entry in ends)


def _shrink(history: Sequence[Entry], top: int, bottom: int, room: Room) -> tuple[int, int, bool]:
    """Give up preserved messages, the oldest first, until the rest fits when trimmed (C4)."""
    if room.holds(_kept_trimmed(history, top, bottom)):
        return top, bottom, False
    last = group_boundary_before(history, len(history) - 1)
    bottom = min(bottom, last)
    while bottom < last and not room.holds(_kept_trimmed(history, 0, bottom)):
        bottom = min(group_boundary_after(history, bottom + 1), last)
    return 0, bottom, True


def _summary_plan(
    history: Sequence[Entry], covered: Span | None, top: int, bottom: int, shrunk: bool
) -> Plan:
    if top >= bottom:
        return Keep("no messages between the preserved ends")
    start = history[top].seq
    end = history[bottom].seq if bottom < len(history) else history[-1].seq + 1
    if covered is not None:
        start, end = min(start, covered.start), max(end, covered.end)
    freed = sum(entry.tokens for entry in history[top:bottom])
    return Summarise(Span(start, end), freed, shrunk)
