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
   - drop the oldest half of the turns, repeatedly; inside a single turn, of its call groups;
   - keep only the newest user message.
7. No text is shortened here, and the newest user message is never dropped. A pinned call group is
   neither cleared nor dropped. Results of excluded tools are dropped with their turns, but never
   cleared.
8. A step reduces down to the target where it can, so that the next builds change nothing.
9. The result is None if even the pins and the newest user message do not fit. The caller answers
   CONTEXT_OVERFLOW.

After a provider reported an overflow:

10. The oldest half of the turns is dropped, at least one; of a single turn the oldest half of its
    call groups, until only the newest user message is left, which always stays. Pinned messages
    stay too, and do not count. Other messages shown in the covered range count as one turn.
11. The results of the last call group are cleared before it is dropped: a model that does not see
    its call makes it again.
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
)
from app.conversations.turns import (
    MAX_PLACEHOLDER_TOKENS,
    Entry,
    call_groups,
    group_boundary_after,
    group_boundary_before,
    marked,
    never_cleared,
    never_hidden,
    newest_user_message,
    parse_turn_boundaries,
    pinned_seqs,
)
from app.conversations.view import ENDLESS, Span, View, overlap
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
    """Return the smallest reduction of a history that fits the budget, None if there is none.

    `history` are the entries that the view shows, in order; its tool results up to
    `results_cleared_through` are placeholders already. `covered` is the range that the view hides.
    Where messages are dropped, `note_tokens` are reserved for the note that counts them.
    """
    found = _truncate(history, results_cleared_through, budget, covered)
    if not note_tokens or (found is not None and found.shown is None):
        return found
    budget = replace(budget, summary=budget.summary + note_tokens)
    return _truncate(history, results_cleared_through, budget, covered)


def _truncate(
    history: Sequence[Entry], through: int, budget: HistoryBudget, covered: Span | None
) -> Truncation | None:
    kept, uncleared, end = never_hidden(history), never_cleared(history), open_end(history, covered)
    last_group = group_boundary_before(history, len(history) - 1)
    steps: list[str] = []

    def shown(cut: int) -> list[Entry]:
        return [*(entry for entry in history[:cut] if entry.seq in kept), *history[cut:]]

    def cost(cut: int) -> int:
        return sum(
            entry.placeholder_tokens
            if entry.seq <= through and entry.seq not in uncleared
            else entry.tokens
            for entry in shown(cut)
        )

    if budget.fits(cost(0)):
        return Truncation(through, None, ())
    results, uncut = clearable(history[:last_group], uncleared, None, through), cost(0)
    if cleared := oldest_cleared(results, lambda freed: budget.meets_target(uncut - freed)):
        through = cleared
        steps.append(RESULTS_CLEARED)
    if history and not budget.fits(cost(last_group)):
        before, through = through, history[-1].seq
        if budget.fits(cost(last_group)):
            steps.append(ALL_RESULTS_CLEARED)
        else:
            through = before
    cut = 0
    while not budget.fits(cost(cut)):
        dropped = _half_of(history[cut:])
        if dropped <= 0:
            break
        cut += dropped
    drops = any(entry.seq not in kept for entry in history[:cut])
    if drops:
        steps.append(EMERGENCY_CUT)
    if not budget.fits(cost(cut)):
        cut = len(history)
        if newest_user_message(shown(cut)) is None or not budget.fits(cost(cut)):
            return None
        drops, steps = True, list(dict.fromkeys((*steps, EMERGENCY_CUT)))
    spans = spans_of_entries(shown(cut), end) if drops else None
    return Truncation(through, spans, tuple(steps))


def _half_of(rest: Sequence[Entry]) -> int:
    """Return the cut after the oldest half of the turns; of a single one, of its call groups.

    The last call group stays.
    """
    turns = parse_turn_boundaries(rest)
    if len(turns) > 1:
        return turns[len(turns) // 2]
    half = group_boundary_after(rest, max(1, len(rest) // 2))
    return half if half < len(rest) else group_boundary_before(rest, len(rest) - 1)


def open_end(history: Sequence[Entry], covered: Span | None) -> int:
    """Return the seq from which on nothing is hidden."""
    end = history[-1].seq + 1 if history else 1
    return max(end, covered.end) if covered is not None else end


def spans_of_entries(shown: Sequence[Entry], end: int) -> tuple[Span, ...]:
    """Return the spans of these entries and of all seqs from `end` on.

    The seqs between them are hidden: a summary may stand for them.
    """
    gaps = [(a.seq + 1, b.seq) for a, b in pairwise(shown) if b.seq != a.seq + 1]
    starts = (shown[0].seq, *(gap_end for _, gap_end in gaps))
    ends = (*(gap_start for gap_start, _ in gaps), shown[-1].seq + 1)
    spans = tuple(map(Span, starts, ends))
    if ends[-1] == end:
        return (*spans[:-1], Span(starts[-1], ENDLESS))
    return (*spans, Span(end, ENDLESS))


# --- after an overflow ----------------------------------------------------------------------------


def view_after_overflow(source: CompactionInput, max_tokens: int) -> View | None:
    """Return the view after as many cuts as it takes to fit `max_tokens`, None if it never does."""
    view = source.view
    while (smaller_view := _cut_once(source, view)) is not None:
        view = smaller_view
        if source.tokens_in(view) <= max_tokens:
            return view
    return None


def _cut_once(source: CompactionInput, view: View) -> View | None:
    shown = source.shown_in(view)
    through = clearable_through(shown, view.hidden)
    if through is not None:
        clearing = CompactionPlan((EMERGENCY_CUT,), 0, results_cleared_through=through)
        return view_after(view, clearing, view.summaries, view.retain, never_cleared(shown))
    spans = spans_after_halving(shown, view.hidden)
    return with_omission_note(replace(view, spans=overlap(spans, view.window))) if spans else None


def spans_after_halving(history: Sequence[Entry], covered: Span | None) -> tuple[Span, ...] | None:
    """Return the spans to show after one cut (rule 1), None if nothing can be dropped.

    `covered` is the range that the view hides.
    """
    units = _droppable(history, covered)
    dropped_seqs = {entry.seq for unit in units[: max(1, len(units) // 2)] for entry in unit}
    shown = [entry for entry in history if entry.seq not in dropped_seqs]
    if not dropped_seqs or not shown:
        return None
    return spans_of_entries(shown, open_end(history, covered))


def clearable_through(history: Sequence[Entry], covered: Span | None) -> int | None:
    """Return the seq up to which tool results are cleared (rule 2).

    None where there is something else to drop, or nothing to gain.
    """
    newest, protected = newest_user_message(history), never_cleared(history)
    units = _droppable(history, covered)
    if len(units) != 1 or (newest is not None and units[0][0].seq < newest.seq):
        return None
    return max((entry.seq for entry in clearable(units[0], protected)), default=None)


def _droppable(history: Sequence[Entry], covered: Span | None) -> list[list[Entry]]:
    """Return what may be dropped, oldest first: turns, or the call groups of the last one."""
    user_message = newest_user_message(history)
    newest = user_message.seq if user_message is not None else None
    units = _droppable_turns(history, covered, newest)
    if len(units) == 1 and (newest is None or units[0][0].seq > newest):
        (turn,) = units
        return [turn[start:end] for start, end in call_groups(turn)]
    return units


def _droppable_turns(
    history: Sequence[Entry], covered: Span | None, newest: int | None
) -> list[list[Entry]]:
    """Return the turns without messages that always stay, oldest first; empty ones are left out."""
    pinned = pinned_seqs(history)

    def is_inside(entry: Entry) -> bool:
        return covered is not None and covered.holds(entry.seq) and entry.seq != newest

    turns: list[list[Entry]] = []
    for inside, part in groupby(history, is_inside):
        entries = list(part)
        starts = [0] if inside else parse_turn_boundaries(entries)
        turns += [entries[start:end] for start, end in pairwise([*starts, len(entries)])]
    droppable = (
        [entry for entry in turn if entry.seq not in pinned and entry.seq != newest]
        for turn in turns
    )
    return [turn for turn in droppable if turn]
