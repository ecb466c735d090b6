"""The reducer: reduces what a view shows, stage by stage, without a model. [compaction.overflow]

1. Stages run in order, each until the history fits or the stage has nothing left to do. Builds,
   compactions and overflows differ in their stages and in what fits.
2. Clearing replaces the oldest results by placeholders. The stage for older results leaves those of
   the last call group, and goes down to the target, so that the next builds change nothing.
3. Every result is cleared where the newest call group with its user message is too large by
   itself, so that dropping messages would not help; see [decision 0003].
4. The oldest half of the turns is dropped, at least one; of a single turn the oldest half of its
   call groups, until only the newest user message is left. Messages shown in the hidden range
   count as one turn. The results of the last call group are cleared before it is dropped: a model
   that does not see its call makes it again.
5. Pinned call groups and the newest user message are never dropped. Pinned groups and the results
   of excluded tools are never cleared.

Tool output has a budget of its own in builds. Over it, the oldest results are cleared until the
rest is within it and at least `min_freed` tokens are freed, so that the prompt cache is broken
seldom. Where all of them free less, they are cleared only if the rest is then within the budget:
otherwise results that stay would make every build break the prefix. An exclusion applies from when
it is set: results that were cleared before stay cleared.

A result is repeated when a later one answers a call of the same tool with equal arguments. A call
without arguments repeats none: what it returns, such as a next page, differs each time. Repeated
results are cleared where the prefix breaks anyway. [tool-output.clear-repeated]
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Final

from app.compaction.planning import CompactionInput
from app.compaction.shown_history import NO_ROOM, NOTE_TOKENS, ShownHistory, tokens_of
from app.conversations.receipt import ChainStage, CompactionPlan
from app.conversations.turns import (
    MAX_PLACEHOLDER_TOKENS,
    Entry,
    call_groups,
    group_boundary_before,
    marked,
    newest_user_message,
    parse_turn_boundaries,
)
from app.conversations.view import RepeatedResult, View
from app.formats import json_fields
from app.formats.message import Role, ToolCall
from app.formats.tools import arguments_object
from app.policy.policy import ToolOutputPolicy

RESULTS_CLEARED: Final = "tool_results_cleared"
"""Also the reason why an epoch ends when results are cleared. See [decision 0007]."""
REPEATED_CLEARED = "repeated_results_cleared"
"""In `degraded`: results are cleared that later ones repeat, which takes nothing away."""
TURNS_DROPPED = "oldest_turns_dropped"
ALL_RESULTS_CLEARED = "all_tool_results_cleared"
BUDGET_SHARE = 0.25
MIN_BUDGET_TOKENS = 20_000
MAX_BUDGET_TOKENS = 60_000
BATCH_SHARE = 0.75
"""The minimum share of the budget that one clearing frees."""

Stage = tuple[str, Callable[[ShownHistory], ShownHistory | None]]
"""A stage by its name: from a history to a smaller one, None where it can do no more."""


def reduced(
    start: ShownHistory, stages: Iterable[Stage], fits: Callable[[ShownHistory], bool]
) -> CompactionPlan | None:
    """Return the plan of the stages that it takes to fit, None where they do not suffice."""
    shown, ran = start, dict[str, None]()
    for name, stage in stages:
        while not fits(shown) and (smaller := stage(shown)) is not None:
            shown, ran[name] = smaller, None
    return start.plan_to(shown, tuple(ran)) if fits(shown) else None


def reduced_to_fit(start: ShownHistory) -> CompactionPlan | None:
    """Return the plan of a build that has to fit its capacity."""
    budget = start.budget

    def fits(shown: ShownHistory) -> bool:
        note = NOTE_TOKENS if len(shown.entries) < len(start.entries) else 0
        return budget.fits(shown.tokens + note)

    def newest_fits(shown: ShownHistory) -> bool:
        older, last = shown.entries[: shown.last_group], shown.entries[shown.last_group :]
        kept = [item for item in older if item.seq in shown.protected.unhidden]
        return budget.fits(tokens_of((*kept, *last)) + NOTE_TOKENS)

    def clear_older(shown: ShownHistory) -> ShownHistory | None:
        results = shown.entries[: shown.last_group]
        return shown.clear(results, lambda freed: budget.meets_target(shown.tokens - freed))

    def clear_all(shown: ShownHistory) -> ShownHistory | None:
        cleared = None if newest_fits(shown) else shown.clear(shown.entries, lambda _freed: False)
        return cleared if cleared and (fits(cleared) or newest_fits(cleared)) else None

    stages = (
        (RESULTS_CLEARED, clear_older),
        (ALL_RESULTS_CLEARED, clear_all),
        (TURNS_DROPPED, without_oldest_half),
    )
    return reduced(start, stages, fits)


def view_after_overflow(source: CompactionInput, max_tokens: int) -> View | None:
    """Return the view after as many cuts as it takes to fit `max_tokens`, None if it never does."""
    start = ShownHistory(source.shown, source.view.hidden, NO_ROOM)
    stages = ((TURNS_DROPPED, without_oldest_half),)

    def fits(shown: ShownHistory) -> bool:
        return source.tokens_in(source.view_after(start.plan_to(shown, ()))) <= max_tokens

    plan = reduced(start, stages, fits)
    return None if plan is None else source.view_after(plan)


def without_oldest_half(shown: ShownHistory) -> ShownHistory | None:
    """Return what one cut leaves (rule 4), None if nothing can be dropped."""
    newest, units = newest_user_message(shown.entries), _droppable(shown)
    is_last = len(units) == 1 and (newest is None or units[0][0].seq > newest.seq)
    if is_last and (cleared := shown.clear(units[0], lambda _freed: False)) is not None:
        return cleared
    dropped = {item.seq for unit in units[: max(1, len(units) // 2)] for item in unit}
    left = [item for item in shown.entries if item.seq not in dropped]
    return shown.show(left) if dropped and left else None


def _droppable(shown: ShownHistory) -> list[list[Entry]]:
    """Return what may be dropped, oldest first: turns, or the call groups of the last one."""
    user_message, hidden = newest_user_message(shown.entries), shown.hidden
    newest = user_message.seq if user_message is not None else None
    turns: list[list[Entry]] = []

    def is_inside(item: Entry) -> bool:
        return hidden is not None and hidden.holds(item.seq) and item.seq != newest

    for inside, part in groupby(shown.entries, is_inside):
        entries = list(part)
        starts = [0] if inside else parse_turn_boundaries(entries)
        turns += [entries[start:end] for start, end in pairwise([*starts, len(entries)])]
    kept = shown.protected.unhidden
    units = [unit for turn in turns if (unit := [it for it in turn if it.seq not in kept])]
    if len(units) == 1 and (newest is None or units[0][0].seq > newest):
        (turn,) = units
        return [turn[start:end] for start, end in call_groups(turn)]
    return units


# --- the budget of tool output --------------------------------------------------------------------


def tool_output_limits(policy: ToolOutputPolicy, context_window: int) -> tuple[int, int]:
    """Return the tokens that tool output may take, and what one clearing frees."""
    share = int(context_window * BUDGET_SHARE)
    auto = max(MIN_BUDGET_TOKENS, min(share, MAX_BUDGET_TOKENS))
    budget = auto if policy.context_budget_tokens == "auto" else policy.context_budget_tokens
    least = policy.clear_at_least
    return budget, int(budget * BATCH_SHARE) if least == "auto" else least


def tool_output_tokens(item: Entry, view: View) -> int:
    """Return what a shown message adds to the tool output: nothing once it was cleared."""
    is_cleared = item.tokens > MAX_PLACEHOLDER_TOKENS and view.clears_result(item.seq)
    return 0 if item.role is not Role.TOOL or is_cleared else item.tokens


def plan_clearing(shown: ShownHistory, excess: int, min_freed: int) -> CompactionPlan | None:
    """Return which results to clear where tool output exceeds its budget by so much."""
    older = _before_last_results(shown.entries)
    cleared = shown.clear(older, lambda freed: freed >= max(excess, min_freed))
    if cleared is None or shown.tokens - cleared.tokens < min(excess, min_freed):
        return None
    return shown.plan_to(cleared, (ChainStage.CLEAR_TOOL_RESULTS.value,))


def _before_last_results(entries: Sequence[Entry]) -> Sequence[Entry]:
    """Return the entries before the last call group with results, whose results stay."""
    last = max((i for i, item in enumerate(entries) if item.role is Role.TOOL), default=-1)
    return entries[: group_boundary_before(entries, last)]


def repeated_results(
    shown: ShownHistory, calls: Mapping[int, ToolCall]
) -> tuple[RepeatedResult, ...]:
    """Return the results to clear because the next one of an equal call repeats them.

    `calls` are those that results answer, by the seqs of the results.
    """
    by_call: dict[tuple[str, str], list[Entry]] = {}
    for item in shown.entries:
        if (call := calls.get(item.seq)) is not None and (key := _arguments_key(call)):
            by_call.setdefault((call.name, key), []).append(item)
    older_seqs = {item.seq for item in _before_last_results(shown.entries) if item.clearable}
    older_seqs -= shown.protected.uncleared
    return tuple(
        RepeatedResult(older.seq, newer.seq)
        for items in by_call.values()
        for older, newer in pairwise(items)
        if older.seq in older_seqs
    )


def _arguments_key(call: ToolCall) -> str:
    """Return a text that is equal for equal arguments, empty without any; null is none."""
    arguments = None if call.custom else arguments_object(call.arguments)
    if arguments is None:
        return call.arguments.strip()
    given = {name: value for name, value in sorted(arguments.items()) if value is not None}
    return json_fields.compact(given) if given else ""


def with_excluded(entries: Sequence[Entry], excluded: Collection[int]) -> list[Entry]:
    """Return the entries with exactly these marked as excluded."""
    return [marked(item, pinned=item.pinned, excluded=item.seq in excluded) for item in entries]
