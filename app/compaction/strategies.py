"""The strategies: pure planners of what a conversation shows next. [strategy.pure]

1. A planner reads a history and a budget, and returns a plan as data. It stores nothing.
2. The history has the messages that are shown now: see `ShownHistory`.
3. The hidden range only grows, and it is cut between call groups. [strategy.monotonic]
4. Some messages stay wherever they are: pinned call groups; the newest user message; and with
   `preserve_user_messages` the newest others that together take at most half of the history target.
5. Other messages that stayed in the hidden range until now are hidden with the rest.
6. Preserved ranges grow to call groups, and to whole turns where that fits the target. They shrink
   only when they would not fit the capacity even with cleared results, then down to the target:
   preserved user messages last, pins and the newest one never. The last call group always stays.
   [strategy.preserved-ranges-grow]
7. Planning again right after a plan was applied finds nothing to do. [strategy.idempotent]
8. A plan goes down to the target and no further than the next place to cut. As many of the newest
   messages stay as fit the target. Only a `minimal` plan hides all that the strategy does not
   preserve. [strategy.target]

A chain clears old tool results, then summarises or drops messages, each only while the history is
over the target. Its stages suit the conversation [strategy.chain-signals]:

9. Little tool output: clearing would free next to nothing and is left out. Results of excluded
   tools do not count, because clearing leaves them alone.
10. Much tool output, one huge result, or many parallel calls: clearing keeps the results of the
    last call group only. Otherwise it keeps those of the last three.
11. Several compactions failed in a row: truncation comes instead of the summary, which would
    probably fail again. One success ends that.
12. Long turns: cuts are made inside a turn, between call groups. Otherwise a turn is cut only when
    it does not fit by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from app.compaction.shown_history import ShownHistory, tokens_of
from app.conversations.receipt import ChainStage, CompactionPlan, NoCompaction, Plan, SlidingCut
from app.conversations.turns import (
    Entry,
    call_groups,
    group_boundary_after,
    group_boundary_before,
    parse_turn_boundaries,
    starts_turn,
)
from app.conversations.view import Span
from app.formats.message import Role
from app.policy.policy import Policy, StrategyName

LITTLE_OUTPUT_SHARE = 0.1
MUCH_OUTPUT_SHARE = 0.6
HUGE_RESULT_SHARE = 0.25
PARALLEL_CALL_DENSITY = 0.6
"""Calls made one at a time give at most one call to two messages."""
LONG_TURN_MESSAGES = 20
MAX_FAILURES = 3
"""From this many failures in a row, truncation comes instead of the summary."""
GROUPS_KEPT = 3
MIN_GROUPS_KEPT = 1


# --- the plans ------------------------------------------------------------------------------------


def _sliding_window(shown: ShownHistory, minimal: bool, failures: int) -> Plan:
    entries, kept_seqs = shown.entries, shown.protected.unhidden
    cut = group_boundary_before(entries, len(entries) - shown.policy.sliding_window.keep_last_n)
    kept = tuple(item.seq for item in entries[:cut] if item.seq in kept_seqs)
    if len(kept) == cut:
        return NoCompaction("all messages are among the last N")
    return SlidingCut(entries[cut].seq, kept)


def _summarised(
    shown: ShownHistory, name: StrategyName, top: int, bottom: int
) -> NoCompaction | CompactionPlan:
    """Return the plan that summarises the messages between two cuts."""
    fitted = shown.shown_to_fit(top, bottom)
    if fitted is None:  # the stages without a model take over
        return NoCompaction("the last messages alone do not fit")
    left, hides_preserved = fitted
    if len(left) == len(shown.entries):
        return NoCompaction("no messages between the preserved ends")
    after = shown.show(left)
    return shown.plan_to(after, (name.value,), summarises=True, hides_preserved=hides_preserved)


def _sandwich(shown: ShownHistory, minimal: bool, failures: int) -> Plan:
    top, bottom = _top_and_bottom_cuts(shown)
    if not minimal:
        bottom = shown.target_cut(top, latest=bottom)
    return _summarised(shown, StrategyName.SANDWICH, top, bottom)


def _top_and_bottom_cuts(shown: ShownHistory) -> tuple[int, int]:
    """Return the cuts after the top and before the bottom, which grow to safe boundaries.

    Once a range is hidden, the messages before it are the top, even if there are none.
    """
    entries, policy, is_first = shown.entries, shown.policy.sandwich, shown.hidden is None
    top = group_boundary_after(entries, policy.preserve_top) if is_first else shown.hidden_from
    bottom = group_boundary_before(entries, len(entries) - policy.preserve_bottom)
    first = max(top, shown.hidden_to)
    bottom = max(bottom, first)
    within = (i for i in range(bottom, first - 1, -1) if bottom < len(entries))
    turn = next((i for i in within if starts_turn(entries[i])), None)
    if turn is not None and (not is_first or shown.hides(top, turn)):
        if not shown.meets_target(top, turn):
            return top, bottom  # the top does not grow either: newer messages come first
        bottom = turn
    if is_first:
        start = next((i for i in range(top, bottom) if starts_turn(entries[i])), bottom)
        if shown.hides(start, bottom) and shown.meets_target(start, bottom):
            top = start
    return top, bottom


def _retain_summary(shown: ShownHistory, minimal: bool, failures: int) -> Plan:
    cut = shown.turns_cut(shown.policy.compaction.retain_last_turns)
    if not minimal:
        cut = shown.target_cut(0, latest=cut)
    return _summarised(shown, StrategyName.RETAIN_SUMMARY, 0, cut)


def _tree_summary(shown: ShownHistory, minimal: bool, failures: int) -> Plan:
    """Plan a tree, in which messages before the hidden range stay as they do in a sandwich.

    A summary of them would be out of order.
    """
    top = shown.hidden_from
    cut = shown.target_cut(top)
    if minimal:
        cut = max(cut, shown.turns_cut(shown.policy.compaction.retain_last_turns))
    plan = _summarised(shown, StrategyName.TREE_SUMMARY, top, cut)
    if isinstance(plan, NoCompaction):
        return plan
    # Released messages are summarised with the first chunk, so a chunk is needed.
    chunks = _chunks(shown, plan)
    reason = "nothing is left to summarise but what was kept so far"
    return replace(plan, chunks=chunks) if chunks else NoCompaction(reason)


def _chunks(shown: ShownHistory, plan: CompactionPlan) -> tuple[Span, ...]:
    """Cut the newly hidden messages, before and after the hidden range, into chunks.

    A part is divided between call groups, without a gap; a small last chunk joins the one before.
    """
    assert plan.hidden is not None
    parts = [plan.hidden]
    if (former := shown.hidden) is not None:
        parts = [Span(plan.hidden.start, former.start), Span(former.end, plan.hidden.end)]
    size, kept = shown.policy.tree_summary.chunk_size, set(plan.kept_seqs)
    chunks: list[Span] = []
    for part in parts:
        starts, count = list[int](), size
        for item in shown.entries:
            if part.holds(item.seq) and item.seq not in kept:
                if count >= size and not item.joins:
                    starts.append(item.seq)
                    count = 0
                count += 1
        if len(starts) > 1 and count < size // 2:
            starts.pop()
        if starts:
            chunks += [Span(*pair) for pair in pairwise((part.start, *starts[1:], part.end))]
    return tuple(chunks)


def _chain(start: ShownHistory, minimal: bool, failures: int) -> Plan:
    """Run the stages repeatedly, each time adjusted to the history, until they change nothing.

    Tokens for a new summary or note are reserved only once a stage has hidden messages. A `minimal`
    plan summarises however many compactions failed before.
    """
    truncates = failures >= MAX_FAILURES and not minimal
    hiding = ChainStage.TRUNCATE if truncates else ChainStage.SUMMARIZE
    shown = replace(start, budget=start.budget.without_new_summary)
    ran, hides_preserved, has_changed = dict[str, None](), False, True
    while has_changed:
        has_changed = False
        clears, groups_kept, inside_turns = signals_of(shown.entries)
        clears = clears and start.policy.tool_output.enabled
        for stage in (ChainStage.CLEAR_TOOL_RESULTS, hiding) if clears else (hiding,):
            if not minimal and shown.budget.meets_target(shown.tokens):
                break
            if stage is hiding:
                # A tail within the target stays; of a minimal plan no more than the last turns.
                tail = replace(shown, budget=start.budget)
                cut = tail.target_cut(0, inside_turns=inside_turns)
                if minimal:
                    cut = max(cut, tail.turns_cut(tail.policy.compaction.retain_last_turns))
                left, hides = tail.shown_to_fit(0, cut) or (tail.entries, False)
                smaller = tail.show(left) if len(left) < len(tail.entries) else None
            else:
                kept = MIN_GROUPS_KEPT if minimal else groups_kept
                smaller, hides = _without_old_results(shown, kept, minimal), False
            if smaller is not None:
                shown, has_changed, ran[stage.value] = smaller, True, None
                hides_preserved |= hides
    if not ran:
        return NoCompaction("no stage of the chain frees more")
    plan = start.plan_to(
        shown, tuple(ran), summarises=not truncates, hides_preserved=hides_preserved
    )
    return replace(plan, drops_without_summary=truncates and plan.hidden is not None)


def _without_old_results(shown: ShownHistory, kept: int, minimal: bool) -> ShownHistory | None:
    """Return what is left once results are cleared, except those of the newest groups."""
    groups = [start for start, end in call_groups(shown.entries) if end - start > 1]
    end = groups[-kept] if len(groups) > kept else 0
    return shown.clear(
        shown.entries[:end],
        lambda freed: not minimal and shown.budget.meets_target(shown.tokens - freed),
    )


def signals_of(history: Sequence[Entry]) -> tuple[bool, int, bool]:
    """Return whether results are cleared, of how many groups they stay, and if turns are cut."""
    tokens, messages = max(tokens_of(history), 1), max(len(history), 1)
    results = [entry for entry in history if entry.role is Role.TOOL]
    output = [entry.tokens for entry in results if not entry.excluded]
    tool_share = sum(output) / tokens
    clears_most = (
        tool_share >= MUCH_OUTPUT_SHARE
        or max(output, default=0) / tokens >= HUGE_RESULT_SHARE
        or len(results) / messages > PARALLEL_CALL_DENSITY
    )
    turns = max(len(parse_turn_boundaries(history)), 1)
    groups_kept = MIN_GROUPS_KEPT if clears_most else GROUPS_KEPT
    return (
        tool_share >= LITTLE_OUTPUT_SHARE,
        groups_kept,
        len(history) / turns >= LONG_TURN_MESSAGES,
    )


# --- the table ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to keep a history inside a model's context window.

    `preserved` counts the messages that stay at the top and the bottom, None for all. One that
    never `compacts` replaces no message.
    """

    name: StrategyName
    description: str
    planner: Callable[[ShownHistory, bool, int], Plan]
    preserved: Callable[[Policy], tuple[int | None, int | None]]
    compacts: bool = True

    def plan(self, shown: ShownHistory, *, minimal: bool = False, failures: int = 0) -> Plan:
        """Return what to show next, however full the context window is now.

        A `minimal` plan keeps only what the strategy must keep, any other one goes down to the
        target. `failures` counts the compactions of this conversation that failed in a row.
        """
        if self.compacts:
            if not shown.entries:
                return NoCompaction("no messages are shown")
            if not minimal and shown.budget.without_new_summary.meets_target(shown.tokens):
                return NoCompaction("already within the target")
        return self.planner(shown, minimal, failures)


STRATEGIES: dict[StrategyName, Strategy] = {
    strategy.name: strategy
    for strategy in (
        Strategy(
            StrategyName.SANDWICH,
            "Top, a summary of the middle, bottom; the bottom is as long as fits the target.",
            _sandwich,
            lambda policy: (policy.sandwich.preserve_top, policy.sandwich.preserve_bottom),
        ),
        Strategy(
            StrategyName.SLIDING_WINDOW,
            "The last N messages; what came before is not shown.",
            _sliding_window,
            lambda policy: (0, policy.sliding_window.keep_last_n),
            compacts=False,
        ),
        Strategy(
            StrategyName.FULL_HISTORY,
            "Everything, always.",
            lambda shown, minimal, failures: NoCompaction("full_history never compacts"),
            lambda policy: (None, None),
            compacts=False,
        ),
        Strategy(
            StrategyName.TREE_SUMMARY,
            "As many of the newest turns as fit the target, after summaries of summaries.",
            _tree_summary,
            lambda policy: (0, 1),
        ),
        Strategy(
            StrategyName.RETAIN_SUMMARY,
            "A summary of everything but the last turns, and of as many more as fit.",
            _retain_summary,
            lambda policy: (0, max(1, policy.compaction.retain_last_turns)),
        ),
        Strategy(
            StrategyName.CHAIN,
            "Old results are cleared, then a summary is made; after three failures, none.",
            _chain,
            lambda policy: (0, 1),
        ),
        Strategy(
            StrategyName.PROVIDER,
            "The provider's own compaction; `retain_summary` where the provider has none.",
            _retain_summary,
            lambda policy: (0, max(1, policy.compaction.retain_last_turns)),
        ),
    )
}
"""The strategies by name. [strategy.full-history, strategy.provider]"""
