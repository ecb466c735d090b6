"""`tree_summary`: the newest turns after summaries of chunks, and summaries of summaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby, pairwise

from app.compaction.strategies.base import SummaryStrategy
from app.compaction.strategies.cuts import CutSearch
from app.conversations.plans import CompactionPlan, NoCompaction, Plan
from app.conversations.turns import Entry
from app.conversations.view import Span, Summary
from app.policy.policy import StrategyName


class TreeSummary(SummaryStrategy):
    """Summarises chunks one by one, so that the longest tail within the target stays.

    Messages before the hidden range, such as pins, stay as they do in a sandwich: their summary
    would be out of order. [strategy.tree]
    """

    name = StrategyName.TREE_SUMMARY
    description = "As many of the newest turns as fit the target, after summaries of summaries."

    def _plan_summary(self, search: CutSearch, *, deep: bool) -> Plan:
        top = search.covered_start if search.covered is not None else 0
        cut = search.target_cut(top)
        if deep:
            cut = max(cut, search.turns_cut(search.policy.compaction.retain_last_turns))
        plan = self._summary_plan(search, top, cut)
        if isinstance(plan, CompactionPlan) and not _chunks(search, plan):
            # Released messages are summarised with the first chunk, so a chunk is needed.
            later_cut = search.first_hiding_cut()
            if later_cut is None:
                return NoCompaction("nothing is left to summarise but what was kept so far")
            plan = self._summary_plan(search, top, later_cut)
        if isinstance(plan, CompactionPlan):
            plan = replace(plan, chunks=_chunks(search, plan))
        return plan


def _chunks(search: CutSearch, plan: CompactionPlan) -> tuple[Span, ...]:
    """Cut the newly hidden messages, before and after the covered range, into chunks."""
    assert plan.hidden is not None
    parts = [plan.hidden]
    if (covered := search.covered) is not None:
        parts = [Span(plan.hidden.start, covered.start), Span(covered.end, plan.hidden.end)]
    unhidden = set(plan.unhidden_seqs)
    return tuple(
        chunk
        for part in parts
        for chunk in _chunk_spans(
            [item for item in search.history if part.holds(item.seq) and item.seq not in unhidden],
            part,
            search.policy.tree_summary.chunk_size,
        )
    )


def _chunk_spans(entries: Sequence[Entry], part: Span, size: int) -> list[Span]:
    """Divide a range into chunks of about `size` of its entries, between call groups.

    The chunks cover the range without a gap; a small last chunk joins the one before.
    """
    starts: list[int] = []
    count = size
    for entry in entries:
        if count >= size and not entry.joins:
            starts.append(entry.seq)
            count = 0
        count += 1
    if len(starts) > 1 and count < size // 2:
        starts.pop()
    bounds = [part.start, *starts[1:], part.end]
    return [Span(*pair) for pair in pairwise(bounds)] if starts else []


LEVELS = 3
"""The levels of a tree: the summaries of the top one are not summarised again, unless they are too
much."""


def next_merge(
    summaries: Sequence[Summary], fanout: int, max_tokens: int
) -> tuple[int, int] | None:
    """Return the slice `[i, j)` of a tree's summaries to merge into one of the next level, or None.

    1. A level below the top one that has `fanout` summaries merges its oldest `fanout`, the lowest
       level first.
    2. While the summaries take more than `max_tokens`, the lowest level that has two of them
       merges as a whole, so that they fit: at the top into one of the same level.
    3. With one summary a level nothing is merged, however many tokens it takes.

    Levels never rise towards newer summaries, before and after. See [decision 0008].
    """
    fanout = max(fanout, 2)
    runs: list[tuple[int, int, int]] = []
    for level, nodes in groupby(summaries, key=lambda node: node.level):
        start = runs[-1][2] if runs else 0
        runs.append((level, start, start + len(list(nodes))))
    runs.sort()
    for level, start, end in runs:
        if level < LEVELS and end - start >= fanout:
            return start, start + fanout
    if sum(node.tokens for node in summaries) > max_tokens:
        return next(((start, end) for _, start, end in runs if end - start > 1), None)
    return None
