"""Plans a compaction by a strategy, for the context window that the policy sets.

1. A compaction has to free a minimum (`MIN_GAIN`). A forced one only has to free something.
2. Where a strategy alone does not, results in the ranges that it preserves are cleared first.
3. It never hides or clears a pinned message. [pins.verbatim]
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from app.compaction.strategies import STRATEGIES
from app.compaction.strategies.base import Strategy, smallest
from app.compaction.summary_budget import (
    FLOOR_ROOM_SHARE,
    LABEL_TOKENS,
    MIN_SUMMARY_TOKENS,
    NOTE_TOKENS,
    history_budget,
    summary_floor,
    summary_room,
    tree_node_text_limit,
)
from app.conversations.compaction_receipt import Compaction, Trigger
from app.conversations.conversation import Conversation, ConversationState
from app.conversations.plans import (
    ChainStep,
    CompactionPlan,
    HistoryBudget,
    NoCompaction,
    SlidingCut,
    clearable,
    oldest_cleared,
    placeholder_tokens_of,
    tokens_hidden_by,
    tokens_of,
    with_cleared,
)
from app.conversations.turns import Entry, never_cleared
from app.conversations.view import WHOLE, Span, View, overlap
from app.conversations.views import agent_tools_tokens, shown_entries, view_summary_tokens
from app.formats.message import Role
from app.policy.policy import StrategyName
from app.prompt.resolved_settings import ResolvedSettings

MIN_GAIN = 0.1
"""The share of the effective window that an automatic compaction has to free."""
NOT_SHORTER = "the summary would not be shorter"


@dataclass(frozen=True, slots=True)
class CompactionOptions:
    """Options of one compaction beyond the policy.

    `forced` accepts any gain. `deep` hides as much as the strategy can; `deep_within_target` does
    so only where the target is met already. `strategy` and `target_tokens` replace those of the
    policy. `summary_tokens` are reserved for summaries in the place of `room_for_summaries`.
    """

    forced: bool = False
    deep: bool = False
    deep_within_target: bool = False
    strategy: StrategyName | None = None
    target_tokens: int | None = None
    summary_tokens: int | None = None


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
    active: Compaction | None = None
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

    def tokens_in(self, view: View, summary_tokens: int | None = None) -> int:
        """Return the maximum tokens of a payload that shows this view of the same log.

        `summary_tokens` are those of its summaries where their texts are not written yet.
        """
        history_tokens = sum(entry.tokens for entry in self.shown_in(view))
        if summary_tokens is None:
            summary_tokens = view_summary_tokens(view, self.resolved.count)
        tool_tokens = agent_tools_tokens(
            self.resolved,
            self.state,
            has_placeholders=view.results_cleared_through > 0,
            has_shortened=bool(view.shortened),
            hides_messages=view.hides_messages,
        )
        return self.resolved.usage(history_tokens, summary_tokens, tool_tokens).total

    def messages_in(self, view: View) -> int:
        """Return the number of messages of such a payload, summaries included."""
        return len(self.shown_in(view)) + len(view.summary_texts())

    def is_just_compacted(self, strategy: StrategyName) -> bool:
        """Whether this strategy made the view to reach the target, and nothing was appended since.

        Compacting once more would hide messages that the strategy shows within the target.
        """
        if self.active is None or self.active.strategy != strategy:
            return False
        if self.active.trigger in (Trigger.TOOL_OUTPUT, Trigger.EMERGENCY, Trigger.PROVIDER):
            return False
        limits = self.resolved.compaction_limits()
        target = limits.effective_window * self.resolved.policy.compaction.target
        has_grown = self.messages_in(self.view) > self.active.after_msg_count
        return self.active.before_tokens > target and not has_grown


def plan_compaction(
    entries: Sequence[Entry],
    state: ConversationState,
    resolved: ResolvedSettings,
    options: CompactionOptions,
    view: View | None = None,
) -> NoCompaction | CompactionPlan:
    """Return what to compact of the shown entries."""
    policy = resolved.policy
    if not policy.compaction.enabled:
        return NoCompaction("compaction is disabled")
    strategy = STRATEGIES[options.strategy or policy.strategy]
    if not STRATEGIES[policy.strategy].compacts:
        # A policy that never compacts is not overridden by the strategy of one call.
        strategy = STRATEGIES[policy.strategy]
    if not strategy.compacts:
        plan = strategy.plan(entries, None, HistoryBudget(0, 0, 0, 0), policy)
        if isinstance(plan, NoCompaction):
            return plan
        return NoCompaction(f"{strategy.name} keeps no summary: its window moves with each build")
    return _Planner(entries, state, resolved, options, view, strategy).plan()


class _Planner:
    """Makes the plan of a compaction by a strategy, in raw tokens.

    `room` is that of the summaries, `reserve` what is kept free for them.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        state: ConversationState,
        resolved: ResolvedSettings,
        options: CompactionOptions,
        view: View | None,
        strategy: Strategy,
    ) -> None:
        self._entries, self._state, self._view = entries, state, view
        self._options, self._strategy = options, strategy
        self._resolved, self._policy = resolved, resolved.policy
        target_tokens = options.target_tokens
        self._is_asked = target_tokens is not None
        limits, factor = resolved.compaction_limits(), resolved.factor
        self._room = room_for_summaries(strategy.name, entries, state, resolved, target_tokens)
        shown = self._room if self._is_asked else max(self._room, state.summary_tokens)
        self._reserve = options.summary_tokens or shown
        cleared = state.results_cleared_through > 0 or any(item.clearable for item in entries)
        tool_tokens = agent_tools_tokens(resolved, state, has_placeholders=cleared)
        all_tool_tokens = agent_tools_tokens(
            resolved, state, has_placeholders=cleared, hides_messages=True
        )
        self._added_tool_tokens = all_tool_tokens - tool_tokens
        fixed = resolved.raw_fixed.fixed + tool_tokens
        budget = history_budget(limits, self._policy, fixed, self._reserve, factor)
        budget = replace(budget, current_summary=max(NOTE_TOKENS, state.summary_tokens))
        if target_tokens is not None:
            budget = replace(budget, target=int(target_tokens / factor))
        self._is_within_target = budget.is_met_by(entries)
        self._deep = not self._is_asked and (
            options.deep or (options.deep_within_target and self._is_within_target)
        )
        self._min_gain = MIN_GAIN * limits.effective_window / factor
        self._current_tokens = tokens_of(entries) + fixed + state.summary_tokens
        due_at = limits.due_at or limits.compact_trigger
        self._due_tokens = due_at * limits.effective_window / factor
        if not (options.forced or self._is_within_target):
            # Just above the target, a plan down to it would free less than `MIN_GAIN`.
            lowered_target = math.floor(self._current_tokens - self._min_gain)
            lowered = min(budget.target, lowered_target)
            budget = replace(budget, target=lowered, policy_target=budget.target)
        self._budget = budget

    def plan(self) -> NoCompaction | CompactionPlan:
        """Return the plan, or why there is none."""
        plan = self._asked_plan() if self._is_asked else self._with_smaller_tree(self._plan())
        plan = self._with_results_cleared(plan)
        if isinstance(plan, NoCompaction):
            return plan
        gain = self._gain(plan)
        if not self._options.forced and gain < self._min_gain:
            return NoCompaction("too little would be freed")
        return NoCompaction(NOT_SHORTER) if gain <= 0 else plan

    def _plan(self, entries: Sequence[Entry] | None = None) -> NoCompaction | CompactionPlan:
        plan = self._strategy.plan(
            self._entries if entries is None else entries,
            self._state.hidden_span,
            replace(self._budget, summary=self._reserve + self._added_tool_tokens),
            self._policy,
            deep=self._deep,
            failures=0 if self._options.forced else self._state.failures,
        )
        assert not isinstance(plan, SlidingCut)
        return plan

    def _asked_plan(self) -> NoCompaction | CompactionPlan:
        """Return the plan for an asked target, or that which frees most where none reaches it.

        Preserved messages give way to the target as they do to the window.
        """
        wide = self._budget
        narrow = self._budget = replace(wide, capacity=min(wide.capacity, wide.target))
        plan = self._plan()
        if narrow == wide or narrow.meets_target(tokens_of(self._entries) - _freed_by(plan)):
            return plan
        self._budget = wide
        wide_plan = self._plan()
        if _freed_by(plan) <= _freed_by(wide_plan):
            return wide_plan
        self._budget = narrow
        return plan

    def _with_smaller_tree(
        self, plan: NoCompaction | CompactionPlan
    ) -> NoCompaction | CompactionPlan:
        """Plan again while the planned chunks of a tree need less than is reserved.

        The reserve is that of a full tree. With a smaller one more messages stay, which may need
        still less.
        """
        while isinstance(plan, CompactionPlan) and plan.chunks and not self._deep:
            reserve, needed = self._reserve, self._tree_tokens(plan)
            if needed >= reserve:
                break
            self._reserve = needed
            gentler = self._plan()
            # Its target preserves more user messages, which may exceed it, and fewer hidden
            # messages may make one chunk more.
            if isinstance(gentler, NoCompaction) or not replace(
                self._budget, summary=self._tree_tokens(gentler)
            ).meets_target(tokens_of(self._entries) - gentler.freed_tokens):
                self._reserve = reserve
                break
            if gentler == plan:
                break
            plan = gentler
        return plan

    def _with_results_cleared(
        self, plan: NoCompaction | CompactionPlan
    ) -> NoCompaction | CompactionPlan:
        """Plan again with old results cleared, where what the strategy preserves is too much.

        That is where an asked target is missed, and where a compaction is due and the plan frees
        too little or leaves so much that it is due again.
        """
        budget, gain = self._budget, self._gain(plan)
        if self._is_asked:
            is_new = isinstance(plan, CompactionPlan) and plan.summarises
            goal = replace(budget, summary=self._reserve) if is_new else budget.without_new_summary
        else:
            is_due_again = self._current_tokens - gain >= self._due_tokens
            is_enough = self._options.forced or gain >= self._min_gain
            if self._current_tokens < self._due_tokens or (is_enough and not is_due_again):
                return plan
            target = max(budget.target, math.floor(self._due_tokens - self._min_gain))
            target = min(target, math.floor(self._current_tokens - self._min_gain))
            goal = replace(budget, target=target, summary=self._reserve)
        can_clear = self._policy.tool_output.enabled and not self._is_within_target
        through = _cleared_through(plan, self._entries, goal) if can_clear else 0
        if not through:
            return plan
        cleared = with_cleared(self._entries, through, never_cleared(self._entries))
        return _after_clearing(self._plan(cleared), self._entries, cleared, through)

    def _gain(self, plan: NoCompaction | CompactionPlan) -> int:
        """Return what a plan frees at least, its summaries as long as they may be.

        The tools that read what it takes away cost as well.
        """
        if isinstance(plan, NoCompaction):
            return 0
        state, resolved, shown = self._state, self._resolved, self._state.summary_tokens
        tools = agent_tools_tokens(
            resolved,
            state,
            has_placeholders=max(state.results_cleared_through, plan.results_cleared_through) > 0,
            hides_messages=(plan.hidden or state.hidden_span) is not None,
        )
        freed = plan.freed_tokens - (tools - agent_tools_tokens(resolved, state))
        if not plan.summarises:
            return freed
        longest = min(self._reserve, summary_limit(plan, self._room, self._entries, shown))
        if plan.chunks:
            longest = min(longest, self._tree_tokens(plan))
        return freed - max(0, longest - shown)

    def _tree_tokens(self, plan: CompactionPlan) -> int:
        """Return the maximum tokens of the summaries of a tree after a plan was carried out."""
        chunks: Sequence[Span] = plan.chunks
        if self._view is not None:
            chunks = tree_chunks(plan, self._view, self._policy.tree_summary.chunk_size)
        shown = self._state.summary_tokens
        added = len(chunks) * (tree_node_text_limit(self._room) + LABEL_TOKENS)
        floor = min(self._room, summary_floor(tokens_hidden_by(plan, self._entries) + shown))
        return max(shown + added, floor)


def _freed_by(plan: NoCompaction | CompactionPlan) -> int:
    return plan.freed_tokens if isinstance(plan, CompactionPlan) else 0


def room_for_summaries(
    strategy: StrategyName,
    entries: Sequence[Entry],
    state: ConversationState,
    resolved: ResolvedSettings,
    target_tokens: int | None = None,
) -> int:
    """Return the tokens that a plan reserves for summaries, labels included. [summary.room]

    Unless a target is asked for, that is at least the floor, as long as the messages that always
    stay leave it.
    """
    limits, fixed, factor = resolved.compaction_limits(), resolved.raw_fixed.fixed, resolved.factor
    tokens = tokens_of(entries)
    room = summary_room(
        strategy,
        limits,
        resolved.policy,
        fixed,
        max(state.tokens, tokens),
        factor,
        target_tokens,
    )
    if target_tokens is not None:
        return room
    free = int(limits.capacity / factor) - fixed
    floor = min(summary_floor(tokens + state.summary_tokens), int(free * FLOOR_ROOM_SHARE))
    left = free - placeholder_tokens_of(smallest(entries, state.hidden_span))
    return max(MIN_SUMMARY_TOKENS, min(max(room, floor), left))


def summary_limit(
    plan: CompactionPlan, room: int, entries: Iterable[Entry], current_tokens: int
) -> int:
    """Return what the summaries of a plan may take, labels included.

    One that is extended grows by at most half of what it newly stands for, so that it frees some.
    """
    if plan.chunks:
        return room
    added = tokens_hidden_by(plan, entries) // 2
    return min(room, max(MIN_SUMMARY_TOKENS, current_tokens + added))


def _cleared_through(
    plan: NoCompaction | CompactionPlan, entries: Sequence[Entry], goal: HistoryBudget
) -> int:
    """Return up to which seq results are cleared of what a plan shows, the oldest first.

    Results that the model may not have answered yet stay. 0 where nothing is to be cleared.
    """
    hidden, through = None, 0
    if isinstance(plan, CompactionPlan):
        hidden, through = plan.hidden, plan.results_cleared_through
    tokens = tokens_of(entries) - _freed_by(plan)
    last_said = max((item.seq for item in entries if item.role is Role.ASSISTANT), default=0)
    answered = (item for item in entries if item.seq <= last_said)
    results = clearable(answered, never_cleared(entries), hidden, through)
    return oldest_cleared(results, lambda freed: goal.meets_target(tokens - freed))


def _after_clearing(
    plan: NoCompaction | CompactionPlan,
    entries: Sequence[Entry],
    cleared: Sequence[Entry],
    through: int,
) -> CompactionPlan:
    """Return the plan for cleared entries as one for the entries before."""
    if isinstance(plan, NoCompaction):
        plan = CompactionPlan((), 0, summarises=False)
    steps = dict.fromkeys((*plan.steps, ChainStep.CLEAR_TOOL_RESULTS.value))
    fallback = plan.fallback and _after_clearing(plan.fallback, entries, cleared, through)
    return replace(
        plan,
        steps=tuple(steps),
        freed_tokens=tokens_of(entries) - tokens_of(cleared) + plan.freed_tokens,
        results_cleared_through=max(through, plan.results_cleared_through),
        fallback=fallback,
    )


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
    unhidden messages alone, and chunks outside the active window.
    """
    start = view.summarised.end if view.summarised is not None else 0
    chunks = [chunk for chunk in plan.chunks if chunk.start >= start]
    if (hidden := view.hidden) is not None:
        gap_starts = range(max(start, hidden.start), hidden.end, chunk_size)
        gaps = (Span(first, min(first + chunk_size, hidden.end)) for first in gap_starts)
        unhidden = set(plan.unhidden_seqs)
        chunks += [gap for gap in gaps if not unhidden.issuperset(range(gap.start, gap.end))]
    inside = (chunk for chunk in chunks if overlap((chunk,), view.window))
    return sorted(inside, key=lambda chunk: chunk.start)
