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
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from app.compaction.strategies.cuts import CutSearch
from app.conversations.plans import CompactionPlan, HistoryBudget, NoCompaction, Plan
from app.conversations.turns import Entry
from app.conversations.view import Span
from app.policy.policy import Policy, StrategyName

NO_MESSAGES = NoCompaction("no messages are shown")
WITHIN_TARGET = NoCompaction("already within the target")
LAST_GROUP_TOO_LARGE = NoCompaction("the last messages alone do not fit")
"""Beside what is never hidden; the steps without a model take over."""


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
