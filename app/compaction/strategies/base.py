"""The base class of strategies: pure planners of what a conversation shows next.

1. A planner reads a history and a budget, and returns a plan as data. It stores nothing.
   [strategy.pure]
2. The history has the messages that are shown now, each at its current cost. The hidden messages
   lie in one range, `covered`. Entries of the history inside that range stayed shown there.
3. The hidden range only grows, and it is cut between call groups. [strategy.monotonic]
4. Some messages stay wherever they are: pinned call groups; the newest user message; and with
   `preserve_user_messages` the newest others that together take at most half of the history target.
5. Other messages that stayed in the covered range until now are hidden with the rest.
6. Preserved ranges grow to call groups, and to whole turns where that fits the target. They shrink
   only when they would not fit the capacity even with cleared results, then down to the target:
   preserved user messages last, pins and the newest one never. The last call group always stays.
   [strategy.preserved-ranges-grow]
7. Planning again right after a plan was applied finds nothing to do. [strategy.idempotent]
8. A plan goes down to the target and no further than the next place to cut. As many of the newest
   messages stay as fit the target. Only a deep plan hides all that the strategy does not preserve.
   [strategy.target]

A cut is an index into the history. The messages between two cuts, `top` and `bottom`, are hidden,
except for those that stay (rule 4).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from app.conversations.plans import (
    CompactionPlan,
    HistoryBudget,
    NoCompaction,
    Plan,
    placeholder_tokens_of,
    tokens_of,
)
from app.conversations.turns import (
    Entry,
    group_boundary_before,
    is_group_boundary,
    never_hidden,
    pinned_seqs,
    starts_turn,
)
from app.conversations.view import Span
from app.policy.policy import Policy, StrategyName

NO_MESSAGES = NoCompaction("no messages are shown")
WITHIN_TARGET = NoCompaction("already within the target")
LAST_GROUP_TOO_LARGE = NoCompaction("the last messages alone do not fit")
"""Beside what is never hidden; the steps without a model take over."""
MIN_FILL = 0.75
"""A cut at a turn's start has to use this share of the target; else the turn is cut inside."""


@dataclass(frozen=True, slots=True)
class CutSearch:
    """A history, its budget, and the indices that bound the cuts.

    The covered range is what the active compaction hides. `covered_start` is the index of the first
    entry in it or after it, `covered_end` of the first entry after it. `last_group` is the index of
    the last call group behind the range. A later bottom cut never shows more, so cuts are found by
    bisection.
    """

    history: Sequence[Entry]
    covered: Span | None
    budget: HistoryBudget
    policy: Policy
    pinned: frozenset[int]
    never_hidden: frozenset[int]
    covered_start: int
    covered_end: int
    last_group: int

    @classmethod
    def of(
        cls, history: Sequence[Entry], covered: Span | None, budget: HistoryBudget, policy: Policy
    ) -> CutSearch:
        """Return the search for a history, whose hidden range is `covered`."""
        start = sum(entry.seq < covered.start for entry in history) if covered is not None else 0
        end = sum(entry.seq < covered.end for entry in history) if covered is not None else 0
        last_group = max(end, group_boundary_before(history, len(history) - 1))
        pinned, kept = pinned_seqs(history), never_hidden(history)
        return cls(history, covered, budget, policy, pinned, kept, start, end, last_group)

    def shown(self, top: int, bottom: int, *, keeps_users: bool = True) -> list[Entry]:
        """Return the entries that are shown if those from `top` to `bottom` are hidden."""
        between = self.history[top:bottom]
        staying = self._staying_seqs(between, keeps_users)
        middle = [item for item in between if item.seq in staying] if staying else []
        return [*self.history[:top], *middle, *self.history[bottom:]]

    def hides(self, top: int, bottom: int) -> bool:
        """Whether two cuts hide any message."""
        return len(self.shown(top, bottom)) < len(self.history)

    def meets_target(self, top: int, bottom: int) -> bool:
        """Whether the entries that two cuts show are within the target."""
        return self.budget.meets_target(tokens_of(self.shown(top, bottom)))

    def fits(self, top: int, bottom: int) -> bool:
        """Whether the entries that two cuts show fit the capacity with cleared tool results."""
        return self.budget.fits(placeholder_tokens_of(self.shown(top, bottom)))

    def shown_to_fit(self, top: int, bottom: int) -> tuple[list[Entry], bool] | None:
        """Return the entries to show, and whether preserved messages are hidden so that they fit.

        Of preserved messages the whole top is hidden first, then the oldest of the bottom, down to
        the target, so that the next time is far. None when the last call group does not fit beside
        what is never hidden.
        """
        if self.fits(top, bottom):
            return self.shown(top, bottom), False
        cut = _first(self._group_cuts(bottom), lambda cut: self.meets_target(0, cut))
        cut = self.last_group if cut is None else cut
        if self.fits(0, cut):
            return self.shown(0, cut), True
        fewest = self.shown(0, self.last_group, keeps_users=False)
        return (fewest, True) if self.budget.fits(placeholder_tokens_of(fewest)) else None

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
            return turn if group is None or self._fills(top, turn) else group
        if starts and not inside_turns and self.fits(top, starts[-1]):
            return starts[-1]
        return latest if group is None else group

    def first_hiding_cut(self) -> int | None:
        """Return the first cut that hides a message after the covered range, turn starts first."""
        for cuts in (self._turn_cuts(), self._group_cuts(self.covered_end)):
            cut = _first(cuts, lambda cut: self.hides(self.covered_end, cut))
            if cut is not None:
                return cut
        return None

    def plan_for(
        self, shown: Sequence[Entry], steps: tuple[str, ...], *, hides_preserved: bool
    ) -> CompactionPlan:
        """Return the plan that shows these entries, of which some may have lower costs."""
        shown_seqs = {entry.seq for entry in shown}
        hidden_seqs = [entry.seq for entry in self.history if entry.seq not in shown_seqs]
        freed = tokens_of(self.history) - tokens_of(shown)
        hidden = enclosing_range(hidden_seqs, self.covered)
        if not hidden_seqs or hidden is None:
            return CompactionPlan(steps, freed, summarises=False)
        return CompactionPlan(
            steps,
            freed,
            hidden,
            unhidden_seqs=tuple(entry.seq for entry in shown if hidden.holds(entry.seq)),
            hides_preserved=hides_preserved,
            released_seqs=tuple(
                seq for seq in hidden_seqs if self.covered and self.covered.holds(seq)
            ),
        )

    def _fills(self, top: int, bottom: int) -> bool:
        """Whether the entries that two cuts show use most of the history target."""
        return tokens_of(self.shown(top, bottom)) >= MIN_FILL * self.budget.history_target

    def _turn_cuts(self) -> list[int]:
        """Return the starts of the turns after the covered range; the first may be partial."""
        indices = range(self.covered_end, len(self.history))
        return [i for i in indices if i == self.covered_end or starts_turn(self.history[i])]

    def _group_cuts(self, start: int) -> list[int]:
        """Return the cuts from `start` on that split no call group and show the last one."""
        indices = range(min(start, self.last_group), self.last_group + 1)
        return [index for index in indices if is_group_boundary(self.history, index)]

    def _staying_seqs(self, between: Sequence[Entry], keeps_users: bool) -> set[int]:
        """Return the seqs of the messages between two cuts that stay shown."""
        staying = {item.seq for item in between if item.seq in self.never_hidden}
        if not (self.policy.preserve_user_messages and keeps_users):
            return staying
        remaining_tokens = self.budget.user_tokens
        for item in reversed(between) if remaining_tokens > 0 else ():
            if not starts_turn(item) or item.seq in staying:
                continue
            remaining_tokens -= item.tokens
            if remaining_tokens < 0:
                break
            staying.add(item.seq)
        return staying


def smallest(history: Sequence[Entry], covered: Span | None) -> list[Entry]:
    """Return the fewest entries that any plan shows."""
    search = CutSearch.of(history, covered, HistoryBudget(0, 0, 0, 0), Policy())
    return search.shown(0, search.last_group, keeps_users=False)


def enclosing_range(seqs: Sequence[int], covered: Span | None) -> Span | None:
    """Return the smallest range that holds these ascending seqs and the covered range."""
    if not seqs:
        return covered
    if covered is None:
        return Span(seqs[0], seqs[-1] + 1)
    return Span(min(seqs[0], covered.start), max(seqs[-1] + 1, covered.end))


def _first(cuts: Sequence[int], condition: Callable[[int], bool]) -> int | None:
    """Return the first cut that meets a condition, which all later cuts meet as well."""
    index = bisect_left(cuts, True, key=condition)
    return cuts[index] if index < len(cuts) else None


class Strategy(ABC):
    """One way to keep a history inside a model's context window."""

    name: ClassVar[StrategyName]
    description: ClassVar[str]
    compacts: ClassVar[bool] = True
    """Whether it ever replaces messages."""

    def preserved(self, policy: Policy) -> tuple[int | None, int | None]:
        """Return how many messages stay verbatim at the top and the bottom; None is all."""
        return 0, 1

    def plan(
        self,
        history: Sequence[Entry],
        covered: Span | None,
        budget: HistoryBudget,
        policy: Policy,
        *,
        deep: bool = False,
        failures: int = 0,
    ) -> Plan:
        """Return what to show next, however full the window is now.

        A `deep` plan keeps only what the strategy must keep, any other one goes down to the
        target. `failures` counts the compactions of this conversation that failed in a row.
        """
        search = CutSearch.of(history, covered, budget, policy)
        return self._plan(search, deep=deep, failures=failures)

    @abstractmethod
    def _plan(self, search: CutSearch, *, deep: bool, failures: int) -> Plan: ...


class SummaryStrategy(Strategy):
    """A strategy that puts a summary in the place of the messages between two cuts."""

    def _plan(self, search: CutSearch, *, deep: bool, failures: int) -> Plan:
        if not search.history:
            return NO_MESSAGES
        if not deep and search.budget.is_met_by(search.history):
            return WITHIN_TARGET
        return self._plan_summary(search, deep=deep)

    @abstractmethod
    def _plan_summary(self, search: CutSearch, *, deep: bool) -> Plan: ...

    def _summary_plan(
        self, search: CutSearch, top: int, bottom: int
    ) -> NoCompaction | CompactionPlan:
        """Return the plan that summarises the messages between two cuts."""
        fitted = search.shown_to_fit(top, bottom)
        if fitted is None:
            return LAST_GROUP_TOO_LARGE
        shown, hides_preserved = fitted
        if len(shown) == len(search.history):
            return NoCompaction("no messages between the preserved ends")
        return search.plan_for(shown, (self.name.value,), hides_preserved=hides_preserved)
