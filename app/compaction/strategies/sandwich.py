"""`sandwich`: the first messages, a summary of the middle, the last messages."""

from __future__ import annotations

from collections.abc import Sequence

from app.compaction.strategies.base import SummaryStrategy
from app.compaction.strategies.cuts import CutSearch
from app.conversations.plans import NoCompaction, Plan, placeholder_tokens_of
from app.conversations.turns import Entry, group_boundary_after, group_boundary_before, starts_turn
from app.policy.policy import Policy, StrategyName


class Sandwich(SummaryStrategy):
    """Summarises the middle; the bottom is as long as fits the target. [strategy.sandwich]"""

    name = StrategyName.SANDWICH
    description = "Top, a summary of the middle, bottom; the bottom is as long as fits the target."

    def preserved(self, policy: Policy) -> tuple[int | None, int | None]:
        """Return `preserve_top` and `preserve_bottom`."""
        return policy.sandwich.preserve_top, policy.sandwich.preserve_bottom

    def _plan(self, search: CutSearch, *, deep: bool, failures: int) -> Plan:
        history, policy = search.history, search.policy.sandwich
        is_short = 0 < len(history) <= policy.preserve_top + policy.preserve_bottom
        if (
            search.covered is None
            and is_short
            and search.budget.fits(placeholder_tokens_of(history))
        ):
            return NoCompaction("not enough messages")
        return super()._plan(search, deep=deep, failures=failures)

    def _plan_summary(self, search: CutSearch, *, deep: bool) -> Plan:
        top, bottom = _top_and_bottom_cuts(search)
        if not deep:
            bottom = search.target_cut(top, latest=bottom)
        return self._summary_plan(search, top, bottom)


def _top_and_bottom_cuts(search: CutSearch) -> tuple[int, int]:
    """Return the cuts after the top and before the bottom, which grow to safe boundaries.

    Once a range is hidden, the messages before it are the top, even if there are none.
    """
    history, policy = search.history, search.policy.sandwich
    if search.covered is None:
        top = group_boundary_after(history, policy.preserve_top)
    else:
        top = search.covered_start
    bottom = group_boundary_before(history, len(history) - policy.preserve_bottom)
    bottom = max(bottom, top, search.covered_end)

    turn = _turn_start(history, bottom, max(top, search.covered_end))
    if turn is not None and (search.covered is not None or search.hides(top, turn)):
        if not search.meets_target(top, turn):
            return top, bottom  # the top does not grow either: newer messages come first
        bottom = turn
    if search.covered is None:
        turn_start = next((i for i in range(top, bottom) if starts_turn(history[i])), bottom)
        if search.hides(turn_start, bottom) and search.meets_target(turn_start, bottom):
            top = turn_start
    return top, bottom


def _turn_start(history: Sequence[Entry], index: int, min_index: int) -> int | None:
    """Return the start of the turn that `index` stands in, unless it is before `min_index`."""
    while min_index <= index < len(history):
        if starts_turn(history[index]):
            return index
        index -= 1
    return None
