"""Clearing: replaces old tool results by placeholders once there is too much tool output.

1. All shown results count, except those that are placeholders already.
2. Over the budget the oldest results are cleared, until the rest is within it and at least
   `min_freed` tokens are freed, so that the prompt cache is broken seldom.
3. The last call group keeps its results. Pinned groups, the results of excluded tools and messages
   shown inside a hidden range are not cleared, but count.
4. When all clearable results free less than `min_freed`, they are cleared only if the rest is then
   within the budget: otherwise results that stay would make every build break the prefix.
5. An exclusion applies from when it is set: results that were cleared before stay cleared.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from app.conversations.plans import ChainStep, CompactionPlan, NoCompaction
from app.conversations.turns import (
    MAX_PLACEHOLDER_TOKENS,
    Entry,
    group_boundary_before,
    marked,
    pinned_seqs,
)
from app.conversations.view import View
from app.formats.message import Role
from app.policy.policy import ToolOutputPolicy

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
    pinned, hidden = pinned_seqs(entries), view.hidden
    freed = through = 0
    for item in entries[: _last_group_with_results(entries)]:
        if output_tokens <= budget and freed >= min_freed:
            break
        if not item.clearable or item.seq in pinned or view.clears_result(item.seq):
            continue
        if hidden is not None and hidden.holds(item.seq):
            continue
        output_tokens -= item.tokens
        freed += item.tokens - item.placeholder_tokens
        through = item.seq
    if not through or (freed < min_freed and output_tokens > budget):
        return NoCompaction("too little of the tool output may be cleared")
    steps = (ChainStep.CLEAR_TOOL_RESULTS.value,)
    return CompactionPlan(steps, freed, results_cleared_through=through, summarises=False)


def _last_group_with_results(entries: Sequence[Entry]) -> int:
    """Return the index at which the last call group with results begins."""
    index = len(entries) - 1
    while index >= 0 and entries[index].role is not Role.TOOL:
        index -= 1
    return group_boundary_before(entries, index)
