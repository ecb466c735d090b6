"""Plans a compaction by a strategy, for the context window that the policy sets.

1. A compaction has to free a minimum (`min_gain`). A forced one only has to free something.
2. It never hides or clears a pinned message. [pins.verbatim]
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from app.domain.common.policy import ChainStep, Policy, StrategyName
from app.domain.compaction.plans import (
    CompactionPlan,
    HistoryBudget,
    NoCompaction,
    SlidingCut,
    tokens_of,
)
from app.domain.compaction.strategies import STRATEGIES
from app.domain.compaction.summary_budget import (
    LABEL_TOKENS,
    NOTE_TOKENS,
    history_budget,
    summary_room,
    tree_node_text_limit,
)
from app.domain.compaction.views import agent_tools_tokens, shown_entries, view_summary_tokens
from app.domain.conversations.compaction_receipt import Compaction, Trigger
from app.domain.conversations.conversation import Conversation, ConversationState
from app.domain.conversations.turns import Entry, call_groups, pinned_seqs
from app.domain.conversations.view import WHOLE, Span, View, overlap
from app.domain.prompt.resolved_settings import ResolvedSettings


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

    def tokens_in(self, view: View) -> int:
        """Return the maximum tokens of a payload that shows this view of the same log."""
        history_tokens = sum(entry.tokens for entry in self.shown_in(view))
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
    payload_tokens: int,
    options: CompactionOptions,
    view: View | None = None,
) -> NoCompaction | CompactionPlan:
    """Return what to compact of the shown entries.

    `payload_tokens` is the size of the payload that shows `view`. If it exceeds the window any
    gain is accepted, because otherwise messages are left out.
    """
    policy, limits = resolved.policy, resolved.compaction_limits()
    if not policy.compaction.enabled:
        return NoCompaction("compaction is disabled")
    strategy = STRATEGIES[options.strategy or policy.strategy]
    if not STRATEGIES[policy.strategy].compacts(policy):
        # A policy that never compacts is not overridden by the strategy of one call.
        strategy = STRATEGIES[policy.strategy]
    room = room_for_summaries(strategy.name, entries, state, resolved, options.target_tokens)
    reserve = room if options.target_tokens is not None else max(room, state.summary_tokens)
    reserve = options.summary_tokens or reserve
    has_placeholders = state.results_cleared_through > 0 or any(item.clearable for item in entries)
    tool_tokens = agent_tools_tokens(resolved, state, has_placeholders=has_placeholders)
    reserve += (
        agent_tools_tokens(resolved, state, has_placeholders=has_placeholders, hides_messages=True)
        - tool_tokens
    )
    fixed = resolved.raw_fixed.fixed + tool_tokens
    budget = history_budget(limits, policy, fixed, reserve, resolved.factor)
    budget = replace(budget, current_summary=max(NOTE_TOKENS, state.summary_tokens))
    if options.target_tokens is not None:
        budget = replace(budget, target=int(options.target_tokens / resolved.factor))
    is_within_target = budget.is_met_by(entries)
    deep = options.target_tokens is None and (
        options.deep or (options.deep_within_target and is_within_target)
    )
    accepts_any_gain = options.forced or payload_tokens > limits.capacity
    min_gain = policy.compaction.min_gain * limits.effective_window
    if not accepts_any_gain and not is_within_target:
        # Just above the target, a plan down to the target would free less than `min_gain`.
        current_tokens = tokens_of(entries) + budget.fixed + state.summary_tokens
        lowered_target = math.floor(current_tokens - min_gain / resolved.factor)
        budget = replace(budget, target=min(budget.target, lowered_target))
    failures = 0 if options.forced else state.failures

    def plan_with_reserve(summary_tokens: int) -> NoCompaction | CompactionPlan | SlidingCut:
        return strategy.plan(
            entries,
            state.hidden_span,
            replace(budget, summary=summary_tokens),
            policy,
            deep=deep,
            failures=failures,
        )

    wide_budget = budget
    if options.target_tokens is not None:
        # Preserved messages give way to an asked target as they do to the window.
        budget = replace(budget, capacity=min(budget.capacity, budget.target))
    plan = plan_with_reserve(reserve)
    left_tokens = tokens_of(entries) - _freed_by(plan)
    if budget is not wide_budget and not budget.meets_target(left_tokens):
        # No plan reaches the target: the one that frees most is taken.
        asked_plan, asked_budget = plan, budget
        budget = wide_budget
        plan = plan_with_reserve(reserve)
        if _freed_by(asked_plan) > _freed_by(plan):
            plan, budget = asked_plan, asked_budget
    if isinstance(plan, SlidingCut):
        return NoCompaction(f"{strategy.name} keeps no summary: its window moves with each build")
    # The reserve is that of a full tree. The planned chunks need less: plan again with their size,
    # so that more messages stay, which may need still less.
    is_asked = options.target_tokens is not None
    while isinstance(plan, CompactionPlan) and plan.chunks and not (deep or is_asked):
        needed = min(_tree_tokens(plan, state, view, policy, room), reserve)
        gentler_plan = plan_with_reserve(needed) if needed < reserve else plan
        if gentler_plan is plan or not isinstance(gentler_plan, CompactionPlan):
            break
        # The limit of preserved user messages is a share of the history's target: a larger target
        # preserves more of them, which may exceed it.
        shown_tokens = tokens_of(entries) - gentler_plan.freed_tokens
        if not replace(budget, summary=needed).meets_target(shown_tokens):
            break
        plan, reserve = gentler_plan, needed
    can_clear = is_asked and strategy.compacts(policy) and entries and not is_within_target
    if isinstance(plan, NoCompaction) and can_clear:
        # What cannot be hidden may have old results that can be cleared.
        cleared = _with_cleared_results(
            CompactionPlan((), 0, summarises=False), entries, budget.without_new_summary, policy
        )
        plan = cleared if cleared.freed_tokens > 0 else plan
    elif isinstance(plan, CompactionPlan) and is_asked:
        left = replace(budget, summary=reserve) if plan.summarises else budget.without_new_summary
        plan = _with_cleared_results(plan, entries, left, policy)
    if isinstance(plan, CompactionPlan) and not accepts_any_gain:
        # Only a first summary is a new cost.
        gain = plan.freed_tokens - (reserve if plan.summarises and not state.summary_tokens else 0)
        if gain < min_gain:
            return NoCompaction("too little would be freed")
    return plan


def _freed_by(plan: NoCompaction | CompactionPlan | SlidingCut) -> int:
    return plan.freed_tokens if isinstance(plan, CompactionPlan) else 0


def room_for_summaries(
    strategy: StrategyName,
    entries: Sequence[Entry],
    state: ConversationState,
    resolved: ResolvedSettings,
    target_tokens: int | None = None,
) -> int:
    """Return the tokens that a plan reserves for summaries, labels included. [summary.room]"""
    return summary_room(
        strategy,
        resolved.compaction_limits(),
        resolved.policy,
        resolved.raw_fixed.fixed,
        max(state.tokens, tokens_of(entries)),
        resolved.factor,
        target_tokens,
    )


def _tree_tokens(
    plan: CompactionPlan,
    state: ConversationState,
    view: View | None,
    policy: Policy,
    room: int,
) -> int:
    """Return the maximum tokens of the summaries of a tree after a plan was carried out."""
    chunks: Sequence[Span] = plan.chunks
    if view is not None:
        chunks = tree_chunks(plan, view, policy.tree_summary.chunk_size)
    return state.summary_tokens + len(chunks) * (tree_node_text_limit(room) + LABEL_TOKENS)


def _with_cleared_results(
    plan: CompactionPlan, entries: Sequence[Entry], budget: HistoryBudget, policy: Policy
) -> CompactionPlan:
    """Return the plan with as many old results cleared as its history is over an asked target.

    Results of the last call group stay: the model may not have answered them yet.
    """
    hidden, unhidden = plan.hidden, set(plan.unhidden_seqs)
    shown = [
        item
        for item in entries
        if hidden is None or not hidden.holds(item.seq) or item.seq in unhidden
    ]
    tokens = tokens_of(entries) - plan.freed_tokens
    if not policy.tool_output.enabled or not shown or budget.meets_target(tokens):
        return plan
    through = plan.results_cleared_through
    pinned = pinned_seqs(shown)
    groups = [start for start, end in call_groups(shown) if end - start > 1]
    for item in shown[: groups[-1] if groups else 0]:
        if budget.meets_target(tokens):
            break
        stays = item.seq in pinned or item.seq in unhidden
        if item.clearable and item.seq > through and not stays:
            tokens -= item.tokens - item.placeholder_tokens
            through = item.seq
    if through == plan.results_cleared_through:
        return plan
    freed_tokens = tokens_of(entries) - tokens
    steps = tuple(dict.fromkeys((*plan.steps, ChainStep.CLEAR_TOOL_RESULTS.value)))
    return replace(plan, steps=steps, freed_tokens=freed_tokens, results_cleared_through=through)


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
