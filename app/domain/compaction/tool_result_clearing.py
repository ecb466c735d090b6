"""Clearing: tool results give way once there is too much of them in the context (F3).

1. What counts is the output shown: every result but those that are placeholders already.
2. Over its budget the oldest give way, until the rest is within it and at least `least` tokens
   are freed, so that the prefix breaks seldom.
3. The last call group keeps its results. Pinned groups (D8), the results of excluded tools and
   what is kept inside a hidden range are passed over, and count as before.
4. When all that may go frees less than `least`, it goes only if that is enough: output that has
   to stay must not make every build break the prefix.
5. An exclusion holds from when it is set: what was cleared before stays cleared.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from app.domain.common.messages import Role
from app.domain.common.policy import ChainStep, ToolOutputPolicy
from app.domain.compaction.strategies import CompactionPlan, NoCompaction
from app.domain.conversations.turns import TRIMMED_TOKENS, Entry, entry, pinned_seqs
from app.domain.conversations.view import View

BUDGET_SHARE = 0.25
MIN_BUDGET_TOKENS = 20_000
MAX_BUDGET_TOKENS = 60_000
BATCH_SHARE = 0.25
"""The share of the budget that one clearing frees at least."""


def tool_budget(policy: ToolOutputPolicy, window_total: int) -> int:
    """Return the tokens that tool output may take in a window of so many tokens."""
    if policy.context_budget_tokens != "auto":
        return policy.context_budget_tokens
    share = int(window_total * BUDGET_SHARE)
    return max(MIN_BUDGET_TOKENS, min(share, MAX_BUDGET_TOKENS))


def clear_at_least(policy: ToolOutputPolicy, window_total: int) -> int:
    """Return the tokens that one clearing frees at least, where it can (rule 4)."""
    if policy.clear_at_least != "auto":
        return policy.clear_at_least
    return int(tool_budget(policy, window_total) * BATCH_SHARE)


def output_tokens(item: Entry, view: View) -> int:
    """Return what a shown message adds to the tool output: nothing once it was cleared (rule 1)."""
    if item.role is not Role.TOOL or (item.tokens > TRIMMED_TOKENS and view.trims(item.seq)):
        return 0
    return item.tokens


def excluded_seqs(
    entries: Sequence[Entry], view: View, names: Mapping[int, str], tools: Collection[str]
) -> frozenset[int]:
    """Return the seqs of the results of these tools; `names` tells the tool of each (rule 5)."""
    return frozenset(
        item.seq
        for item in entries
        if item.role is Role.TOOL and names.get(item.seq) in tools and not view.trims(item.seq)
    )


def with_excluded(entries: Sequence[Entry], excluded: Collection[int]) -> list[Entry]:
    """Return the entries with exactly these marked as excluded."""
    return [
        entry(item.seq, item.role, item.tokens, item.pinned, item.seq in excluded)
        for item in entries
    ]


def plan_clearing(
    entries: Sequence[Entry], view: View, budget: int, least: int
) -> NoCompaction | CompactionPlan:
    """Return which results to clear of the messages a view shows (rules 2 to 4)."""
    left = sum(output_tokens(item, view) for item in entries)
    if left <= budget:
        return NoCompaction("tool output is within its budget")
    pinned, hidden = pinned_seqs(entries), view.hidden
    freed = through = 0
    for item in entries[: _last_results(entries)]:
        if left <= budget and freed >= least:
            break
        if not item.clearable or item.seq in pinned or view.trims(item.seq):
            continue
        if hidden is not None and hidden.holds(item.seq):
            continue
        left -= item.tokens
        freed += item.tokens - item.trimmed_tokens
        through = item.seq
    if not through or (freed < least and left > budget):
        return NoCompaction("too little of the tool output may be cleared")
    steps = (ChainStep.CLEAR_TOOL_RESULTS.value,)
    return CompactionPlan(steps, freed, trimmed_through=through, summarises=False)


def _last_results(entries: Sequence[Entry]) -> int:
    """Return where the last call group with results begins."""
    index = len(entries) - 1
    while index >= 0 and entries[index].role is not Role.TOOL:
        index -= 1
    while index > 0 and entries[index].role is Role.TOOL:
        index -= 1
    return max(index, 0)
