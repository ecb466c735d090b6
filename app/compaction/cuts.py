"""Where a history is cut: which messages two cuts hide, and what fits the budget beside them.

The messages between two cuts, `top` and `bottom`, are hidden, except for those that stay.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from app.conversations.plans import (
    CompactionPlan,
    HistoryBudget,
    NoCompaction,
    placeholder_tokens_of,
    tokens_of,
)
from app.conversations.turns import (
    Entry,
    group_boundary_before,
    is_group_boundary,
    never_hidden,
    starts_turn,
)
from app.conversations.view import Span
from app.policy.policy import Policy, StrategyName

MIN_FILL = 0.75
"""A cut at a turn's start has to use this share of the target; else the turn is cut inside."""


@dataclass(frozen=True)
class CutSearch:
    """A history and its budget; a later bottom cut never shows more, so cuts are bisected."""

    history: Sequence[Entry]
    covered: Span | None
    budget: HistoryBudget
    policy: Policy

    @cached_property
    def covered_start(self) -> int:
        """The index of the first entry in the covered range or after it."""
        return sum(item.seq < self.covered.start for item in self.history) if self.covered else 0

    @cached_property
    def covered_end(self) -> int:
        """The index of the first entry after the covered range."""
        return sum(item.seq < self.covered.end for item in self.history) if self.covered else 0

    @cached_property
    def last_group(self) -> int:
        """The index of the last call group behind the covered range."""
        return max(self.covered_end, group_boundary_before(self.history, len(self.history) - 1))

    @cached_property
    def _never_hidden(self) -> frozenset[int]:
        return never_hidden(self.history)

    def shown(self, top: int, bottom: int, *, keeps_users: bool = True) -> list[Entry]:
        """Return the entries that are shown if those from `top` to `bottom` are hidden."""
        between = self.history[top:bottom]
        staying = {item.seq for item in between if item.seq in self._never_hidden}
        users = self.policy.preserve_user_messages and keeps_users
        remaining_tokens = self.budget.user_tokens if users else 0
        for item in reversed(between) if remaining_tokens > 0 else ():
            if starts_turn(item) and item.seq not in staying:
                remaining_tokens -= item.tokens
                if remaining_tokens < 0:
                    break
                staying.add(item.seq)
        middle = [item for item in between if item.seq in staying] if staying else []
        return [*self.history[:top], *middle, *self.history[bottom:]]

    def hides(self, top: int, bottom: int) -> bool:
        """Whether two cuts hide any message."""
        return len(self.shown(top, bottom)) < len(self.history)

    def meets_target(self, top: int, bottom: int) -> bool:
        """Whether the entries that two cuts show are within the target."""
        return self.budget.meets_target(tokens_of(self.shown(top, bottom)))

    def shown_to_fit(self, top: int, bottom: int) -> tuple[list[Entry], bool] | None:
        """Return the entries to show, and whether preserved messages are hidden so that they fit.

        Of preserved messages the whole top is hidden first, then the oldest of the bottom, down to
        the target, so that the next time is far. None when the last call group does not fit beside
        what is never hidden.
        """

        def fits(shown: list[Entry]) -> bool:
            return self.budget.fits(placeholder_tokens_of(shown))

        if fits(shown := self.shown(top, bottom)):
            return shown, False
        cut = _first(self._group_cuts(bottom), lambda cut: self.meets_target(0, cut))
        if fits(shown := self.shown(0, self.last_group if cut is None else cut)):
            return shown, True
        fewest = self.shown(0, self.last_group, keeps_users=False)
        return (fewest, True) if fits(fewest) else None

    def turns_cut(self, turns: int) -> int:
        """Return the cut that leaves the last turns, at least the last call group."""
        starts = self._turn_cuts()
        if turns == 0:
            return self.last_group
        return starts[-turns] if turns <= len(starts) else self.covered_end

    def target_cut(self, top: int, *, latest: int | None = None, inside_turns: bool = True) -> int:
        """Return the bottom cut that shows the most messages within the target, besides the top.

        A turn start is preferred if its messages use most of the target. The last turn is cut
        inside only with `inside_turns`, or if it does not fit. No cut is after `latest`, which by
        default is before the last call group.
        """
        latest = self.last_group if latest is None else latest
        starts = [cut for cut in self._turn_cuts() if top <= cut <= latest]
        inside = [cut for cut in self._group_cuts(max(top, self.covered_end)) if cut <= latest]
        turn = _first(starts, lambda cut: self.meets_target(top, cut))
        group = _first(inside, lambda cut: self.meets_target(top, cut))
        if turn is not None:
            filled = tokens_of(self.shown(top, turn)) >= MIN_FILL * self.budget.history_target
            return turn if group is None or filled else group
        if starts and not inside_turns:
            last = self.shown(top, starts[-1])
            if self.budget.fits(placeholder_tokens_of(last)):
                return starts[-1]
        return latest if group is None else group

    def first_hiding_cut(self) -> int | None:
        """Return the first cut that hides a message after the covered range, turn starts first."""
        for cuts in (self._turn_cuts(), self._group_cuts(self.covered_end)):
            cut = _first(cuts, lambda cut: self.hides(self.covered_end, cut))
            if cut is not None:
                return cut
        return None

    def hidden_beside(self, shown: Sequence[Entry]) -> tuple[list[int], Span | None]:
        """Return the seqs that are not among these entries, and the hidden range with them."""
        shown_seqs = {item.seq for item in shown}
        seqs = [item.seq for item in self.history if item.seq not in shown_seqs]
        bounds = [*((seqs[0], seqs[-1] + 1) if seqs else ())]
        bounds += [self.covered.start, self.covered.end] if self.covered else []
        return seqs, Span(min(bounds), max(bounds)) if bounds else None

    def plan_for(
        self, shown: Sequence[Entry], steps: tuple[str, ...], *, hides_preserved: bool
    ) -> CompactionPlan:
        """Return the plan that shows these entries, of which some may have lower costs."""
        seqs, hidden = self.hidden_beside(shown)
        freed = tokens_of(self.history) - tokens_of(shown)
        if not seqs or hidden is None:
            return CompactionPlan(steps, freed, summarises=False)
        return CompactionPlan(
            steps,
            freed,
            hidden,
            unhidden_seqs=tuple(item.seq for item in shown if hidden.holds(item.seq)),
            hides_preserved=hides_preserved,
            released_seqs=tuple(seq for seq in seqs if self.covered and self.covered.holds(seq)),
        )

    def summary_plan(
        self, name: StrategyName, top: int, bottom: int
    ) -> NoCompaction | CompactionPlan:
        """Return the plan that summarises the messages between two cuts."""
        fitted = self.shown_to_fit(top, bottom)
        if fitted is None:  # the steps without a model take over
            return NoCompaction("the last messages alone do not fit")
        shown, hides_preserved = fitted
        if len(shown) == len(self.history):
            return NoCompaction("no messages between the preserved ends")
        return self.plan_for(shown, (name.value,), hides_preserved=hides_preserved)

    def _turn_cuts(self) -> list[int]:
        """Return the starts of the turns after the covered range; the first may be partial."""
        indices = range(self.covered_end, len(self.history))
        return [i for i in indices if i == self.covered_end or starts_turn(self.history[i])]

    def _group_cuts(self, start: int) -> list[int]:
        """Return the cuts from `start` on that split no call group and show the last one."""
        indices = range(min(start, self.last_group), self.last_group + 1)
        return [index for index in indices if is_group_boundary(self.history, index)]


def _first(cuts: Sequence[int], condition: Callable[[int], bool]) -> int | None:
    """Return the first cut that meets a condition, which all later cuts meet as well."""
    index = bisect_left(cuts, True, key=condition)
    return cuts[index] if index < len(cuts) else None


def smallest(history: Sequence[Entry], covered: Span | None) -> list[Entry]:
    """Return the fewest entries that any plan shows."""
    search = CutSearch(history, covered, HistoryBudget(0, 0, 0, 0), Policy())
    return search.shown(0, search.last_group, keeps_users=False)
