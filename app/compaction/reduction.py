"""Reductions without a model: clearing, truncation, and what to drop after an overflow.

Clearing replaces old tool results by placeholders once there is too much tool output:

1. All shown results count, except those that are placeholders already.
2. Over the budget the oldest results are cleared, until the rest is within it and at least
   `min_freed` tokens are freed, so that the prompt cache is broken seldom.
3. The last call group keeps its results. Pinned groups, the results of excluded tools and messages
   shown inside a hidden range are not cleared, but count.
4. When all clearable results free less than `min_freed`, they are cleared only if the rest is then
   within the budget: otherwise results that stay would make every build break the prefix.
5. An exclusion applies from when it is set: results that were cleared before stay cleared.

Truncation fits any view into its context window. [compaction.emergency]

6. Steps run in order, each only if the view is still too large:
   - clear the older tool results;
   - clear every tool result, if the newest call group with its user message is too large by itself,
     so that dropping messages would not help; see [decision 0003];
   - drop the oldest half, repeatedly (rule 9).
7. No text is shortened here. A pinned call group is neither cleared nor dropped. Results of
   excluded tools are dropped with their turns, but never cleared.
8. Clearing reduces down to the target where it can, so that the next builds change nothing. The
   result is None if even the pins and the newest user message do not fit. The caller answers
   CONTEXT_OVERFLOW.
9. The oldest half of the turns is dropped, at least one; of a single turn the oldest half of its
   call groups, until only the newest user message is left, which always stays. Pinned messages
   stay too, and do not count. Other messages shown in the covered range count as one turn.
10. After a provider reported an overflow, the results of the last call group are cleared before it
   is dropped: a model that does not see its call makes it again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from app.compaction.planning import CompactionInput
from app.conversations.plans import (
    ChainStep,
    CompactionPlan,
    HistoryBudget,
    NoCompaction,
    clearable,
    oldest_cleared,
    tokens_of,
    with_cleared,
)
from app.conversations.turns import (
    MAX_PLACEHOLDER_TOKENS,
    Entry,
    call_groups,
    group_boundary_before,
    marked,
    never_cleared,
    never_hidden,
    newest_user_message,
    parse_turn_boundaries,
    pinned_seqs,
)
from app.conversations.view import ENDLESS, Span, View, overlap, union
from app.conversations.views import view_after, with_omission_note
from app.formats.message import Role
from app.policy.policy import ToolOutputPolicy

RESULTS_CLEARED = "tool_results_cleared"
"""Also the reason why an epoch ends when results are cleared. See [decision 0007]."""
EMERGENCY_CUT = "emergency_cut"
ALL_RESULTS_CLEARED = "all_tool_results_cleared"
BUDGET_SHARE = 0.25
MIN_BUDGET_TOKENS = 20_000
MAX_BUDGET_TOKENS = 60_000
BATCH_SHARE = 0.5
"""The minimum share of the budget that one clearing frees."""


def tool_output_budget(policy: ToolOutputPolicy, window_total: int) -> int:
    """Return the tokens that tool output may take in a context window of this size."""
    if policy.context_budget_tokens != "auto":
        return policy.context_budget_tokens
    share = int(window_total * BUDGET_SHARE)
    return max(MIN_BUDGET_TOKENS, min(share, MAX_BUDGET_TOKENS))


def min_cleared_tokens(policy: ToolOutputPolicy, window_total: int) -> int:
    """Return the minimum of tokens that one clearing frees, where it can."""
    if policy.clear_at_least != "auto":
        return policy.clear_at_least
    return int(tool_output_budget(policy, window_total) * BATCH_SHARE)


def tool_output_tokens(item: Entry, view: View) -> int:
    """Return what a shown message adds to the tool output: nothing once it was cleared."""
    if item.role is not Role.TOOL or (
        item.tokens > MAX_PLACEHOLDER_TOKENS and view.clears_result(item.seq)
    ):
        return 0
    return item.tokens


def excluded_seqs(
    entries: Sequence[Entry], view: View, names: Mapping[int, str], tools: Collection[str]
) -> frozenset[int]:
    """Return the seqs of the results of these tools; `names` are the tool names by seq."""
    return frozenset(
        item.seq
        for item in entries
        if item.role is Role.TOOL
        and names.get(item.seq) in tools
        and not view.clears_result(item.seq)
    )


def with_excluded(entries: Sequence[Entry], excluded: Collection[int]) -> list[Entry]:
    """Return the entries with exactly these marked as excluded."""
    return [marked(item, pinned=item.pinned, excluded=item.seq in excluded) for item in entries]


def plan_clearing(
    entries: Sequence[Entry], view: View, budget: int, min_freed: int
) -> NoCompaction | CompactionPlan:
    """Return which results to clear of the messages that a view shows (rules 2 to 4)."""
    output_tokens = sum(tool_output_tokens(item, view) for item in entries)
    if output_tokens <= budget:
        return NoCompaction("tool output is within its budget")
    freed = through = 0
    last = max((i for i, item in enumerate(entries) if item.role is Role.TOOL), default=-1)
    older = entries[: group_boundary_before(entries, last)]
    for item in clearable(older, pinned_seqs(entries), view.hidden):
        if output_tokens <= budget and freed >= min_freed:
            break
        if not view.clears_result(item.seq):
            output_tokens -= item.tokens
            freed += item.tokens - item.placeholder_tokens
            through = item.seq
    if not through or (freed < min_freed and output_tokens > budget):
        return NoCompaction("too little of the tool output may be cleared")
    steps = (ChainStep.CLEAR_TOOL_RESULTS.value,)
    return CompactionPlan(steps, freed, results_cleared_through=through, summarises=False)


# --- truncation -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Truncation:
    """A reduction of the visible history.

    Tool results up to `results_cleared_through` are replaced by placeholders, except pinned and
    excluded ones. `shown` are the spans that stay visible, the last one without an end; None leaves
    all visible. `steps` are the steps that ran.
    """

    results_cleared_through: int
    shown: tuple[Span, ...] | None
    steps: tuple[str, ...]


def truncate(
    history: Sequence[Entry],
    results_cleared_through: int,
    budget: HistoryBudget,
    covered: Span | None = None,
    note_tokens: int = 0,
) -> Truncation | None:
    """Return a reduction of a history that fits the budget, None if there is none.

    `history` are the entries that the view shows, in order; its tool results up to
    `results_cleared_through` are placeholders already. `covered` is the range that the view hides.
    Where messages are dropped, `note_tokens` are reserved for the note that counts them.
    """
    through, uncleared = results_cleared_through, never_cleared(history)
    with_note = replace(budget, summary=budget.summary + note_tokens)
    steps: list[str] = []

    def cost(shown: Sequence[Entry]) -> int:
        return tokens_of(with_cleared(shown, through, uncleared))

    if budget.fits(uncut := cost(history)):
        return Truncation(through, None, ())
    last_group = group_boundary_before(history, len(history) - 1)
    results = clearable(history[:last_group], uncleared, None, through)
    if cleared := oldest_cleared(results, lambda freed: budget.meets_target(uncut - freed)):
        through = cleared
        steps.append(RESULTS_CLEARED)
    kept = never_hidden(history)
    newest = [*(it for it in history[:last_group] if it.seq in kept), *history[last_group:]]
    if not (budget.fits(cost(history)) or with_note.fits(cost(newest))):
        before, through = through, history[-1].seq if history else 0
        if budget.fits(cost(history)) or with_note.fits(cost(newest)):
            steps.append(ALL_RESULTS_CLEARED)
        else:
            through = before
    if budget.fits(cost(history)):
        return Truncation(through, None, tuple(steps))
    shown: Sequence[Entry] | None = history
    while shown is not None and not with_note.fits(cost(shown)):
        shown = without_oldest_half(shown, covered)
    if shown is None:
        return None
    steps.append(EMERGENCY_CUT)
    return Truncation(through, _spans_of_entries(shown, history, covered), tuple(steps))


def _spans_of_entries(
    shown: Sequence[Entry], history: Sequence[Entry], covered: Span | None
) -> tuple[Span, ...]:
    """Return the spans of these entries of a history and of all seqs after it.

    The seqs between them are hidden: a summary may stand for them.
    """
    end = max(history[-1].seq + 1, covered.end if covered is not None else 0)
    return union((*(Span(item.seq, item.seq + 1) for item in shown), Span(end, ENDLESS)))


def without_oldest_half(history: Sequence[Entry], covered: Span | None) -> list[Entry] | None:
    """Return the entries to show after one cut (rule 9), None if nothing can be dropped."""
    units = _droppable(history, covered)
    dropped = {item.seq for unit in units[: max(1, len(units) // 2)] for item in unit}
    shown = [item for item in history if item.seq not in dropped]
    return shown if dropped and shown else None


def _droppable(history: Sequence[Entry], covered: Span | None) -> list[list[Entry]]:
    """Return what may be dropped, oldest first: turns, or the call groups of the last one."""
    user_message = newest_user_message(history)
    newest, kept = user_message.seq if user_message is not None else None, never_hidden(history)
    turns: list[list[Entry]] = []

    def is_inside(item: Entry) -> bool:
        return covered is not None and covered.holds(item.seq) and item.seq != newest

    for inside, part in groupby(history, is_inside):
        entries = list(part)
        starts = [0] if inside else parse_turn_boundaries(entries)
        turns += [entries[start:end] for start, end in pairwise([*starts, len(entries)])]
    units = [unit for turn in turns if (unit := [it for it in turn if it.seq not in kept])]
    if len(units) == 1 and (newest is None or units[0][0].seq > newest):
        (turn,) = units
        return [turn[start:end] for start, end in call_groups(turn)]
    return units


# --- after an overflow ----------------------------------------------------------------------------


def view_after_overflow(source: CompactionInput, max_tokens: int) -> View | None:
    """Return the view after as many cuts as it takes to fit `max_tokens`, None if it never does."""
    view = source.view
    while (smaller := _cut_once(source.shown_in(view), view)) is not None:
        view = smaller
        if source.tokens_in(view) <= max_tokens:
            return view
    return None


def _cut_once(shown: Sequence[Entry], view: View) -> View | None:
    """Return the view after one cut, or with the last results cleared (rule 10)."""
    newest, kept = newest_user_message(shown), never_cleared(shown)
    units = _droppable(shown, view.hidden)
    if len(units) == 1 and (newest is None or units[0][0].seq > newest.seq):
        through = max((item.seq for item in clearable(units[0], kept)), default=0)
        if through:
            clearing = CompactionPlan((EMERGENCY_CUT,), 0, results_cleared_through=through)
            return view_after(view, clearing, view.summaries, view.retain, kept)
    fewer = without_oldest_half(shown, view.hidden)
    if fewer is None:
        return None
    spans = overlap(_spans_of_entries(fewer, shown, view.hidden), view.window)
    return with_omission_note(replace(view, spans=spans))
