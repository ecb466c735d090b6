"""The strategies but for `chain`: what each shows of a history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby, pairwise

from app.compaction.strategies.base import CutSearch, Strategy, SummaryStrategy
from app.conversations.plans import (
    CompactionPlan,
    NoCompaction,
    Plan,
    SlidingCut,
    placeholder_tokens_of,
)
from app.conversations.turns import Entry, group_boundary_after, group_boundary_before, starts_turn
from app.conversations.view import Span, Summary
from app.policy.policy import Policy, StrategyName


class FullHistory(Strategy):
    """Never compacts, not even when forced. [strategy.full-history]"""

    name = StrategyName.FULL_HISTORY
    description = "Everything, always."
    compacts = False

    def preserved(self, policy: Policy) -> tuple[int | None, int | None]:
        """Return None for both ends: all messages stay."""
        return None, None

    def _plan(self, search: CutSearch, *, deep: bool, failures: int) -> Plan:
        return NoCompaction("full_history never compacts")


class SlidingWindow(Strategy):
    """Shows the last `keep_last_n` messages; moves with each build. [strategy.sliding-window]"""

    name = StrategyName.SLIDING_WINDOW
    description = "The last N messages; what came before is not shown."
    compacts = False

    def preserved(self, policy: Policy) -> tuple[int | None, int | None]:
        """Return nothing at the top, and `keep_last_n` at the bottom."""
        return 0, policy.sliding_window.keep_last_n

    def _plan(self, search: CutSearch, *, deep: bool, failures: int) -> Plan:
        history = search.history
        keep = search.policy.sliding_window.keep_last_n
        cut = group_boundary_before(history, len(history) - keep)
        kept = tuple(entry.seq for entry in history[:cut] if entry.seq in search.never_hidden)
        if len(kept) == cut:
            return NoCompaction("all messages are inside the window")
        return SlidingCut(history[cut].seq, kept)


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


class RetainSummary(SummaryStrategy):
    """Summarises all but the last `retain_last_turns` turns. [strategy.retain-summary]"""

    name = StrategyName.RETAIN_SUMMARY
    description = "A summary of everything but the last turns, and of as many more as fit."

    def preserved(self, policy: Policy) -> tuple[int | None, int | None]:
        """Return the minimum that `retain_last_turns` keeps: one message of each turn."""
        return 0, max(1, policy.compaction.retain_last_turns)

    def _plan_summary(self, search: CutSearch, *, deep: bool) -> Plan:
        cut = search.turns_cut(search.policy.compaction.retain_last_turns)
        if not deep:
            cut = search.target_cut(0, latest=cut)
        return self._summary_plan(search, 0, cut)


class Provider(RetainSummary):
    """Leaves compactions to the provider, and runs `retain_summary` where it has none.

    [strategy.provider]
    """

    name = StrategyName.PROVIDER
    description = "The provider's own compaction; `retain_summary` where the provider has none."

    def _plan(self, search: CutSearch, *, deep: bool, failures: int) -> Plan:
        return RetainSummary()._plan(search, deep=deep, failures=failures)


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
