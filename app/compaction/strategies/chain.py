"""`chain`: clears old tool results, then summarises, then drops messages.

The order and depth of the steps suit the conversation. [strategy.chain-signals]

The order of the steps is adjusted by these rules, in order:

1. Little tool output: clearing would free next to nothing and is left out, unless it is the only
   step. Results of excluded tools do not count, because clearing leaves them alone.
2. Much tool output, one huge result, or many parallel calls: clearing keeps the results of the
   last call group only. Otherwise it keeps those of the last three.
3. Several compactions failed in a row: truncation comes before the summary, which would probably
   fail again. One success ends that.
4. Long turns: cuts are made inside a turn, between call groups. Otherwise a turn is cut only when
   it does not fit by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.compaction.strategies.base import (
    NO_MESSAGES,
    WITHIN_TARGET,
    CutSearch,
    Strategy,
    enclosing_range,
)
from app.conversations.plans import (
    ChainStep,
    CompactionPlan,
    HistoryBudget,
    NoCompaction,
    Plan,
    clearable,
    oldest_cleared,
    tokens_of,
    with_cleared,
)
from app.conversations.turns import Entry, call_groups, parse_turn_boundaries
from app.formats.message import Role
from app.policy.policy import StrategyName

LITTLE_OUTPUT_SHARE = 0.1
MUCH_OUTPUT_SHARE = 0.6
HUGE_RESULT_SHARE = 0.25
PARALLEL_CALL_DENSITY = 0.6
"""Calls made one at a time give at most one call to two messages."""
LONG_TURN_MESSAGES = 20
MAX_FAILURES = 3
"""From this many failures in a row, truncation comes before the summary."""

GROUPS_KEPT = 3
MIN_GROUPS_KEPT = 1


def steps_for(
    history: Sequence[Entry], names: Sequence[ChainStep], failures: int = 0
) -> tuple[list[ChainStep], int, bool]:
    """Return the steps to run, whose results clearing keeps, and whether a turn is cut inside.

    Clearing keeps those of so many of the newest call groups. `failures` counts the compactions
    that failed in a row.
    """
    names = list(names)
    clear, summarize, truncate = ChainStep
    tokens, messages = max(tokens_of(history), 1), max(len(history), 1)
    results = [entry for entry in history if entry.role is Role.TOOL]
    output = [entry.tokens for entry in results if not entry.excluded]
    tool_share = sum(output) / tokens
    if tool_share < LITTLE_OUTPUT_SHARE and len(names) > 1 and clear in names:
        names.remove(clear)
    truncate_index = names.index(truncate) if truncate in names else 0
    if failures >= MAX_FAILURES and summarize in names[:truncate_index]:
        names.insert(names.index(summarize), names.pop(truncate_index))
    clears_most = (
        tool_share >= MUCH_OUTPUT_SHARE
        or max(output, default=0) / tokens >= HUGE_RESULT_SHARE
        or len(results) / messages > PARALLEL_CALL_DENSITY
    )
    turns = max(len(parse_turn_boundaries(history)), 1)
    groups_kept = MIN_GROUPS_KEPT if clears_most else GROUPS_KEPT
    return names, groups_kept, len(history) / turns >= LONG_TURN_MESSAGES


class Chain(Strategy):
    """Runs its steps in order, each only while the history is over the target. [strategy.chain]

    A deep plan summarises however many compactions failed before. With `tool_output.enabled`
    false the clearing step is left out.
    """

    name = StrategyName.CHAIN
    description = "Old tool results are cleared, then a summary is made, then messages are dropped."

    def _plan(self, search: CutSearch, *, deep: bool, failures: int) -> Plan:
        if not search.history:
            return NO_MESSAGES
        policy, failures = search.policy, 0 if deep else failures
        steps = [
            step
            for step in ChainStep
            if policy.tool_output.enabled or step is not ChainStep.CLEAR_TOOL_RESULTS
        ]
        budget = search.budget.without_new_summary
        start = _Progress(replace(search, budget=budget), search.budget)
        plan = _chain_plan(start, steps, deep, failures)
        if isinstance(plan, CompactionPlan) and plan.summarises:
            other_steps = [step for step in steps if step is not ChainStep.SUMMARIZE]
            fallback = _chain_plan(start, other_steps, deep, failures)
            if isinstance(fallback, CompactionPlan):
                plan = replace(plan, fallback=fallback)
        elif isinstance(plan, CompactionPlan) and failures >= MAX_FAILURES:
            # Rule 3 ran the truncation instead of the summary before it.
            plan = replace(plan, drops_without_summary=plan.hidden is not None)
        return plan


@dataclass(frozen=True, slots=True)
class _Progress:
    """The history that the steps so far show (in `search`), and the steps that ran.

    `budget` reserves tokens for a new summary or note; the budget of `search` does so only once a
    step has hidden messages.
    """

    search: CutSearch
    budget: HistoryBudget
    steps: tuple[str, ...] = ()
    results_cleared_through: int = 0
    hides_preserved: bool = False

    @property
    def meets_target(self) -> bool:
        return self.search.budget.meets_target(tokens_of(self.search.history))

    def after(
        self, step: ChainStep, shown: Sequence[Entry], *, hides_preserved: bool = False
    ) -> _Progress:
        """Return the progress after a step that shows only these messages."""
        search = self.search
        shown_seqs = {entry.seq for entry in shown}
        hidden_seqs = [entry.seq for entry in search.history if entry.seq not in shown_seqs]
        covered = enclosing_range(hidden_seqs, search.covered)
        next_search = CutSearch.of(shown, covered, search.budget, search.policy)
        steps = tuple(dict.fromkeys((*self.steps, step.value)))
        return replace(
            self,
            search=next_search,
            steps=steps,
            hides_preserved=self.hides_preserved or hides_preserved,
        )


def _chain_plan(
    start: _Progress, names: Sequence[ChainStep], deep: bool, failures: int
) -> NoCompaction | CompactionPlan:
    """Run the steps repeatedly, each time adjusted to the history, until they change nothing."""
    progress, previous = start, None
    while progress != previous:
        previous = progress
        steps, groups_kept, inside_turns = steps_for(progress.search.history, names, failures)
        for step in steps:
            if progress.meets_target and not deep:
                continue
            if step is ChainStep.CLEAR_TOOL_RESULTS:
                progress = _clear_results(progress, groups_kept, deep)
            else:
                progress = _hide_messages(step, progress, inside_turns, deep)
    if not progress.steps:
        if start.meets_target:
            return WITHIN_TARGET
        return NoCompaction("no step of the chain frees more")
    shown = progress.search.history
    plan = start.search.plan_for(shown, progress.steps, hides_preserved=progress.hides_preserved)
    summarises = ChainStep.SUMMARIZE in progress.steps
    return replace(
        plan, results_cleared_through=progress.results_cleared_through, summarises=summarises
    )


def _clear_results(progress: _Progress, groups_kept: int, deep: bool) -> _Progress:
    """Clear the oldest tool results, except pinned and excluded ones and the newest groups."""
    search = progress.search
    groups = [start for start, end in call_groups(search.history) if end - start > 1]
    groups_kept = MIN_GROUPS_KEPT if deep else groups_kept
    end = groups[-groups_kept] if len(groups) > groups_kept else 0
    tokens = tokens_of(search.history)
    through = oldest_cleared(
        clearable(search.history[:end], search.pinned),
        lambda freed: not deep and search.budget.meets_target(tokens - freed),
    )
    if not through:
        return progress
    shown = with_cleared(search.history, through, search.pinned)
    through = max(progress.results_cleared_through, through)
    progress = progress.after(ChainStep.CLEAR_TOOL_RESULTS, shown)
    return replace(progress, results_cleared_through=through)


def _hide_messages(
    step: ChainStep, progress: _Progress, inside_turns: bool, deep: bool
) -> _Progress:
    """Hide all but a tail within the target; a deep plan hides all but the last turns."""
    search = replace(progress.search, budget=progress.budget)
    cut = search.target_cut(0, inside_turns=inside_turns)
    if deep:
        cut = max(cut, search.turns_cut(search.policy.compaction.retain_last_turns))
    fitted = search.shown_to_fit(0, cut)
    if fitted is None or len(fitted[0]) == len(search.history):
        return progress
    shown, hides_preserved = fitted
    return replace(progress, search=search).after(step, shown, hides_preserved=hides_preserved)
