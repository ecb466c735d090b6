"""Plans a compaction by a strategy, for the context window that the policy sets.

1. A compaction has to free a minimum (`MIN_GAIN`). One with `any_gain` only has to free something.
2. Where a strategy alone does not, results in the ranges that it preserves are cleared first.
3. It never hides or clears a pinned message. [pins.verbatim]
4. Summaries have a room that depends on what they stand for. [summary.room]
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from app.compaction.shown_history import (
    NO_ROOM,
    NOTE_TOKENS,
    HistoryBudget,
    ShownHistory,
    tokens_of,
)
from app.compaction.strategies import STRATEGIES, Strategy
from app.conversations.conversation import Conversation, ConversationState
from app.conversations.receipt import (
    ChainStage,
    CompactionPlan,
    NoCompaction,
    Receipt,
    SlidingCut,
    Trigger,
)
from app.conversations.turns import Entry, protected
from app.conversations.view import WHOLE, Span, Summary, View, overlap
from app.conversations.view_changes import (
    agent_tools_tokens,
    shown_entries,
    view_after,
    view_summary_tokens,
)
from app.formats.message import Role
from app.models.budget import Limits
from app.policy.policy import Policy, StrategyName
from app.prompt.resolved_settings import ResolvedSettings

MIN_GAIN = 0.1
"""The share of the effective window that an automatic compaction has to free."""
NOT_SHORTER = "the summary would not be shorter"

MIN_SUMMARY_TOKENS = 64
MAX_SUMMARY_TOKENS = 2048
SUMMARY_SHARE = 0.1
"""The share of a request's context window that a summary for this request alone may take."""
SUMMARY_ROOM_SHARE = 0.2
"""The share of what the target leaves that summaries may take, those of a tree together."""
ASKED_ROOM_SHARE = 0.5
"""The same where a caller asks for a target: so it holds what matters of a long history."""
LONG_LOG, LONG_ROOM_SHARE = 12, 0.75
"""At most the same, as the messages that always stay leave it, of a log that is so many times as
long as what the target leaves."""
MIN_ROOM_TOKENS = 400
MIN_ROOM_SHARE = 0.1
"""The room has at least these tokens, or this share of what summaries stand for if that is more."""
MAX_MIN_ROOM_SHARE = 0.25
"""The share of what the context window leaves for history that this minimum may take."""
LOG_TOKENS_PER_TOKEN = 8
TREE_NODES = 8
"""So many summaries of a tree fit at their largest; more of them are merged into the next level."""
LABEL_TOKENS = 32
"""The cost of a summary's message besides its text."""


@dataclass(frozen=True, slots=True)
class CompactionInput:
    """The input of a compaction: a conversation, its resolved settings, its view and entries.

    `active` is the receipt of the compaction that made the view, None where nothing is compacted.
    """

    tenant_id: str
    conversation: Conversation
    resolved: ResolvedSettings
    view: View
    entries: tuple[Entry, ...]
    active: Receipt | None = None
    _shown: dict[View, list[Entry]] = field(init=False, default_factory=dict, compare=False)

    @property
    def state(self) -> ConversationState:
        """The state of the conversation."""
        return self.conversation.state

    @property
    def shown(self) -> list[Entry]:
        """The entries that the view shows, at their cost in it."""
        return self.shown_in(self.view)

    def shown_in(self, view: View) -> list[Entry]:
        """Return what another view of the same log shows; plans and receipts ask several times."""
        if (shown := self._shown.get(view)) is None:
            shown = self._shown[view] = shown_entries(self.entries, view)
        return shown

    def tokens_in(self, view: View) -> int:
        """Return the maximum tokens of a payload that shows this view of the same log."""
        summary_tokens = view_summary_tokens(view, self.resolved.count)
        tool_tokens = agent_tools_tokens(
            self.resolved,
            self.state,
            has_placeholders=view.last_cleared_result > 0,
            has_shortened=bool(view.shortened),
            hides_messages=view.hides_messages,
        )
        return self.resolved.tokens(
            tokens_of(self.shown_in(view)), summary_tokens, tool_tokens
        ).total

    def view_after(
        self, plan: CompactionPlan, summaries: Sequence[Summary] | None = None, retain: str = ""
    ) -> View:
        """Return the view that a plan makes, with these summaries or the current ones."""
        view, kept = self.view, protected(self.entries).uncleared
        if summaries is None:
            return view_after(view, plan, view.summaries, view.retain, kept)
        return view_after(view, plan, summaries, retain or None, kept)

    def messages_in(self, view: View) -> int:
        """Return the number of messages of such a payload, summaries included."""
        return len(self.shown_in(view)) + len(view.summary_texts())

    def is_just_compacted(self, strategy: StrategyName) -> bool:
        """Whether this strategy made the view, and nothing was appended since.

        Compacting once more would hide messages that the strategy shows within the target.
        """
        if self.active is None or self.active.strategy != strategy:
            return False
        is_own = self.active.trigger in (Trigger.BACKGROUND, Trigger.BUILD, Trigger.FORCED)
        return is_own and self.messages_in(self.view) <= self.active.after_messages


# --- plans ----------------------------------------------------------------------------------------


def plan_compaction(
    source: CompactionInput,
    strategy: StrategyName | None = None,
    *,
    any_gain: bool = False,
    minimal: bool = False,
    target_tokens: int | None = None,
    summary_tokens: int | None = None,
) -> NoCompaction | CompactionPlan:
    """Return what to compact.

    `any_gain` accepts less than the minimum. A `minimal` plan keeps only what the strategy must
    keep, as does one that is within its target already: the reported usage may be more than the
    counted one. `strategy` and `target_tokens` replace those of the policy. `summary_tokens` are
    reserved for summaries.
    """
    policy = source.resolved.policy
    if not policy.compaction.enabled:
        return NoCompaction("compaction is disabled")
    if not source.entries:
        where = " in its active window" if source.state.head_seq else ""
        return NoCompaction(f"the conversation has no messages{where}")
    # A policy that never compacts is not overridden by the strategy of one call.
    own = STRATEGIES[policy.strategy]
    chosen = STRATEGIES[strategy or policy.strategy] if own.compacts else own
    if not chosen.compacts:
        plan = chosen.plan(ShownHistory(source.shown, None, NO_ROOM, policy))
        if isinstance(plan, NoCompaction):
            return plan
        return NoCompaction(f"{chosen.name} keeps no summary: its messages change with each build")
    return _Planner(source, chosen, any_gain, target_tokens, summary_tokens).plan(minimal)


class _Planner:
    """Makes the plan of a compaction by a strategy, in raw tokens.

    `room` is what its summaries may take, `reserve` what messages leave free for them: also the
    current summary. `tokens` are those of the payload before the plan.
    """

    def __init__(
        self,
        source: CompactionInput,
        strategy: Strategy,
        any_gain: bool,
        target_tokens: int | None,
        summary_tokens: int | None,
    ) -> None:
        state, resolved = source.state, source.resolved
        self.source, self.strategy, self.any_gain = source, strategy, any_gain
        self.is_asked = target_tokens is not None
        self.room = room_for_summaries(source, target_tokens)
        self.reserve = summary_tokens or (
            self.room if self.is_asked else max(self.room, state.summary_tokens)
        )
        limits, factor = resolved.compaction_limits(), resolved.factor
        clears = state.results_cleared_through > 0 or any(it.clearable for it in source.shown)
        tools = agent_tools_tokens(resolved, state, has_placeholders=clears)
        hiding = agent_tools_tokens(resolved, state, has_placeholders=clears, hides_messages=True)
        fixed = resolved.raw_fixed.fixed + tools
        self.tokens = tokens_of(source.shown) + fixed + state.summary_tokens
        self.min_gain = MIN_GAIN * limits.effective_window / factor
        self.due_tokens = (
            (limits.due_at or limits.compact_trigger) * limits.effective_window / factor
        )
        budget = replace(
            history_budget(limits, resolved.policy, fixed, self.reserve + hiding - tools, factor),
            current_summary=max(NOTE_TOKENS, state.summary_tokens),
        )
        if target_tokens is not None:
            budget = replace(budget, target=int(target_tokens / factor))
        self.is_within_target = budget.without_new_summary.meets_target(tokens_of(source.shown))
        self.shown = ShownHistory(source.shown, state.hidden_span, budget, resolved.policy)

    def plan(self, minimal: bool) -> NoCompaction | CompactionPlan:
        """Return the plan, or why there is none."""
        goes_on = self.is_within_target and not self.source.is_just_compacted(self.strategy.name)
        self.minimal = not self.is_asked and (minimal or goes_on)
        plan, budget = self._plan(self.shown), self.shown.budget
        if self.is_asked and budget.capacity > budget.target:
            # Preserved messages give way to an asked target as to the context window.
            narrow = replace(self.shown, budget=replace(budget, capacity=budget.target))
            smaller = self._plan(narrow)
            if _freed_by(smaller) > _freed_by(plan):
                plan, self.shown = smaller, narrow
        plan = self._with_results_cleared(plan)
        if isinstance(plan, NoCompaction):
            return plan
        gain = self._gain(plan)
        if not self.any_gain and gain < self.min_gain:
            return NoCompaction("too little would be freed")
        return NoCompaction(NOT_SHORTER) if gain <= 0 else plan

    def _plan(self, shown: ShownHistory) -> NoCompaction | CompactionPlan:
        failures = 0 if self.any_gain else self.source.state.failures
        plan = self.strategy.plan(shown, minimal=self.minimal, failures=failures)
        assert not isinstance(plan, SlidingCut)
        return plan

    def _with_results_cleared(
        self, plan: NoCompaction | CompactionPlan
    ) -> NoCompaction | CompactionPlan:
        """Plan again with old results cleared, where what the strategy preserves is too much.

        That is where an asked target is missed, and where a compaction is due and the plan frees
        too little, or leaves so much that it is soon due again. Results that the model may not have
        answered yet stay.
        """
        gain, goal, shown = self._gain(plan), self.shown.budget.target, self.shown
        if not self.is_asked:
            is_enough = self.any_gain or gain >= self.min_gain
            goal = max(goal, math.floor(self.due_tokens - self.min_gain))
            if self.tokens < self.due_tokens or (is_enough and self.tokens - gain <= goal):
                return plan
            goal = min(goal, math.floor(self.tokens - self.min_gain))
        excess = self.tokens - gain - goal
        if self.is_within_target or not shown.policy.tool_output.enabled:
            return plan
        hidden = plan.hidden if isinstance(plan, CompactionPlan) else None
        through = plan.results_cleared_through if isinstance(plan, CompactionPlan) else 0
        last_said = max((it.seq for it in shown.entries if it.role is Role.ASSISTANT), default=0)
        results = (
            it
            for it in shown.entries
            if through < it.seq <= last_said and not (hidden and hidden.holds(it.seq))
        )
        cleared = shown.clear(results, lambda freed: freed >= excess)
        if cleared is None:
            return plan
        clearing = shown.plan_to(cleared, (ChainStage.CLEAR_TOOL_RESULTS.value,))
        again = self._plan(cleared)
        return clearing if isinstance(again, NoCompaction) else again.after(clearing)

    def _gain(self, plan: NoCompaction | CompactionPlan) -> int:
        """Return what a plan frees at least, its summaries as long as they may be.

        The tools that read what it takes away cost as well.
        """
        if isinstance(plan, NoCompaction):
            return 0
        state, resolved = self.source.state, self.source.resolved
        tools = agent_tools_tokens(
            resolved,
            state,
            has_placeholders=max(state.results_cleared_through, plan.results_cleared_through) > 0,
            hides_messages=(plan.hidden or state.hidden_span) is not None,
        )
        freed = plan.freed_tokens - (tools - agent_tools_tokens(resolved, state))
        if not plan.summarises:
            return freed
        longest = min(self.reserve, summary_limit(plan, self.room, self.source))
        return freed - max(0, longest - state.summary_tokens)


def _freed_by(plan: NoCompaction | CompactionPlan) -> int:
    return plan.freed_tokens if isinstance(plan, CompactionPlan) else 0


# --- the room of summaries ------------------------------------------------------------------------


def room_for_summaries(source: CompactionInput, target_tokens: int | None = None) -> int:
    """Return how many tokens a compaction reserves for its summaries, labels included.

    That is a share of what the target leaves beside sections and tools, in raw counts. It grows
    with the log, and is at most half of what it stands for. Unless a target is asked for, it is at
    least `min_room`, as long as the messages that always stay leave it.
    """
    state, resolved, entries = source.state, source.resolved, source.shown
    limits, factor = resolved.compaction_limits(), resolved.factor
    fixed, tokens = resolved.raw_fixed.fixed, tokens_of(entries)
    log_tokens = max(state.tokens, tokens)
    target = target_tokens or int(limits.effective_window * resolved.policy.compaction.target)
    free = int(min(target, limits.capacity) / factor) - fixed
    fewest = ShownHistory(entries, state.hidden_span, NO_ROOM).fewest
    if target_tokens is not None:
        left = free - tokens_of(fewest)
        most = min(int(free * LONG_ROOM_SHARE), left) if log_tokens > LONG_LOG * free else 0
        # To show `free` tokens with a summary of half its source, the excess is enough.
        room = min(max(int(free * ASKED_ROOM_SHARE), most), log_tokens - free)
        return max(MIN_SUMMARY_TOKENS, room)
    largest = max(MAX_SUMMARY_TOKENS, log_tokens // LOG_TOKENS_PER_TOKEN)
    room = min(int(free * SUMMARY_ROOM_SHARE), largest, log_tokens // 3)
    largest_history = int(limits.capacity / factor) - fixed
    least = min(min_room(tokens + state.summary_tokens), int(largest_history * MAX_MIN_ROOM_SHARE))
    left = largest_history - sum(item.placeholder_tokens for item in fewest)
    return max(MIN_SUMMARY_TOKENS, min(max(room, least), left))


def summary_limit(plan: CompactionPlan, room: int, source: CompactionInput) -> int:
    """Return what the summaries of a plan may take, labels included.

    One that is extended grows by at most half of what it newly stands for, so that it frees some.
    """
    grown = source.state.summary_tokens + tokens_hidden_by(plan, source.shown) // 2
    return min(room, max(MIN_SUMMARY_TOKENS, grown))


def tokens_hidden_by(plan: CompactionPlan, history: Iterable[Entry]) -> int:
    """Return the tokens of the messages that a plan newly hides."""
    if (hidden := plan.hidden) is None:
        return 0
    shown = set(plan.kept_seqs)
    return tokens_of(item for item in history if hidden.holds(item.seq) and item.seq not in shown)


def min_room(replaced_tokens: int) -> int:
    """Return what summaries may take at least before more messages stay, labels included."""
    least = max(MIN_ROOM_TOKENS, int(replaced_tokens * MIN_ROOM_SHARE))
    return min(least, replaced_tokens // 2)


def summary_reserve(limits: Limits) -> int:
    """Return what a reduction for one request reserves for a summary, its label included."""
    share = int(limits.effective_window * SUMMARY_SHARE)
    return max(MIN_SUMMARY_TOKENS, min(share, MAX_SUMMARY_TOKENS))


def tree_node_text_limit(room: int) -> int:
    """Return how many tokens the text of one new summary of a tree may take."""
    return max(MIN_SUMMARY_TOKENS // 2, room // TREE_NODES - LABEL_TOKENS)


def history_budget(
    limits: Limits, policy: Policy, fixed: int, summary: int, factor: float
) -> HistoryBudget:
    """Return the budget of a history in raw counts, before the model's factor."""
    return HistoryBudget(
        capacity=int(limits.capacity / factor),
        target=int(limits.effective_window * policy.compaction.target / factor),
        fixed=fixed,
        summary=summary,
    )


# --- what a summary is made of --------------------------------------------------------------------


def unsummarised_spans(
    hidden: Span,
    summarised: Span | None,
    released_seqs: Iterable[int],
    window: tuple[Span, ...] = WHOLE,
) -> list[Span]:
    """Return the spans of a hidden range that are in the active window and not in a summary.

    `summarised` is the range of the current summaries. The `released_seqs` lie in it, but were
    shown until now.
    """
    parts = [hidden]
    if summarised is not None:
        parts = [Span(hidden.start, min(summarised.start, hidden.end))]
        parts += [Span(seq, seq + 1) for seq in sorted(released_seqs) if summarised.holds(seq)]
        parts.append(Span(max(summarised.end, hidden.start), hidden.end))
    return list(overlap((part for part in parts if part.start < part.end), window))


def tree_chunks(plan: CompactionPlan, view: View, chunk_size: int) -> list[Span]:
    """Return the chunks to summarise: the plan's, and what was hidden since the last summary.

    A tree grows at its end only: chunks before its summaries are left out. So are chunks of
    kept messages alone, and chunks outside the active window.
    """
    start = view.summarised.end if view.summarised is not None else 0
    chunks = [chunk for chunk in plan.chunks if chunk.start >= start]
    if (hidden := view.hidden) is not None:
        gap_starts = range(max(start, hidden.start), hidden.end, chunk_size)
        gaps = (Span(first, min(first + chunk_size, hidden.end)) for first in gap_starts)
        kept = set(plan.kept_seqs)
        chunks += [gap for gap in gaps if not kept.issuperset(range(gap.start, gap.end))]
    inside = (chunk for chunk in chunks if overlap((chunk,), view.window))
    return sorted(inside, key=lambda chunk: chunk.start)
