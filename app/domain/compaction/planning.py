"""The plan of a compaction: what a strategy plans within the limits of the policy's own window.

1. A compaction has to free a minimum (`min_gain`). A forced one only has to free something.
2. It never hides or clears a pinned message. [pins.verbatim]
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from app.domain.common.policy import Policy, StrategyName
from app.domain.compaction.plans import CompactionPlan, NoCompaction, SlidingCut, tokens_of
from app.domain.compaction.strategies import STRATEGIES
from app.domain.compaction.summary_budget import (
    LABEL_TOKENS,
    NOTE_TOKENS,
    history_budget,
    summary_reserve,
    tree_node_text_limit,
)
from app.domain.compaction.views import agent_tools_tokens, shown_entries, view_summary_tokens
from app.domain.conversations.compaction_receipt import Compaction, Trigger
from app.domain.conversations.conversation import Conversation, ConversationState
from app.domain.conversations.turns import Entry
from app.domain.conversations.view import WHOLE, Span, View, overlap
from app.domain.models.budget import Limits
from app.domain.prompt.resolved_settings import ResolvedSettings


@dataclass(frozen=True, slots=True)
class CompactionOptions:
    """Options of one compaction beyond the policy.

    `forced` accepts any gain. `deep` hides as much as the strategy can, and `deep_within_target`
    does so where the target is met already. `strategy` and `target_tokens` replace those of the
    policy.
    """

    forced: bool = False
    deep: bool = False
    deep_within_target: bool = False
    strategy: StrategyName | None = None
    target_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class CompactionInput:
    """What a compaction is planned on: a conversation, its resolved settings, what it shows.

    `active` is the receipt of the compaction that made the view, None where nothing is compacted.
    """

    tenant_id: str
    conversation: Conversation
    resolved: ResolvedSettings
    view: View
    entries: tuple[Entry, ...]
    active: Compaction | None = None

    @property
    def state(self) -> ConversationState:
        """The state it was read with."""
        return self.conversation.state

    @property
    def shown(self) -> list[Entry]:
        """The entries that are shown now, at their current cost."""
        return shown_entries(self.entries, self.view)

    def tokens_in(self, view: View) -> int:
        """Return the maximum tokens of a payload that shows this view of the same log."""
        shown = sum(entry.tokens for entry in shown_entries(self.entries, view))
        tools = agent_tools_tokens(
            self.resolved, self.state, view.results_cleared_through, shortens=bool(view.shortened)
        )
        return self.resolved.usage(
            shown, view_summary_tokens(view, self.resolved.count), tools
        ).total

    def messages_in(self, view: View) -> int:
        """Return the messages of such a payload, those that carry summaries included."""
        return len(shown_entries(self.entries, view)) + len(view.summary_texts())

    def is_settled(self, strategy: StrategyName) -> bool:
        """Whether a compaction by this strategy went down to the target, and nothing came since."""
        if self.active is None or self.active.strategy != strategy:
            return False
        if self.active.trigger in (Trigger.TOOL_OUTPUT, Trigger.EMERGENCY):
            return False
        limits = self.resolved.compaction_limits()
        target = limits.effective_window * self.resolved.policy.compaction.target
        has_grown = self.messages_in(self.view) > self.active.after_msg_count
        return self.active.before_tokens > target and not has_grown


def plan_compaction(
    entries: Sequence[Entry],
    state: ConversationState,
    resolved: ResolvedSettings,
    used: int,
    options: CompactionOptions,
    view: View | None = None,
) -> NoCompaction | CompactionPlan:
    """Return what to compact of the visible entries in the policy's own window.

    `used` are the payload's tokens, `view` is what it shows. Over the window any gain is accepted,
    because otherwise messages are left out.
    """
    policy, limits = resolved.policy, resolved.compaction_limits()
    if not policy.compaction.enabled:
        return NoCompaction("compaction is disabled")
    strategy = STRATEGIES[options.strategy or policy.strategy]
    if STRATEGIES[policy.strategy].trigger(policy) is None:
        # A policy that never compacts is not overridden by the strategy of one call.
        strategy = STRATEGIES[policy.strategy]
    reserve = max(summary_reserve(strategy.name, limits), state.summary_tokens)
    through = 1 if any(item.clearable for item in entries) else state.results_cleared_through
    fixed = resolved.raw_fixed.fixed + agent_tools_tokens(resolved, state, through)
    budget = history_budget(limits, policy, fixed, reserve, resolved.factor)
    budget = replace(budget, summary_now=max(NOTE_TOKENS, state.summary_tokens))
    if options.target_tokens is not None:
        budget = replace(budget, target=int(options.target_tokens / resolved.factor))
    is_within = budget.is_met_by(entries)
    deep = options.target_tokens is None and (
        options.deep or (options.deep_within_target and is_within)
    )
    accepts_any_gain = options.forced or used > limits.capacity
    min_gain = policy.compaction.min_gain * limits.effective_window
    if not accepts_any_gain and not is_within:
        now = sum(item.tokens for item in entries) + budget.fixed + state.summary_tokens
        lowered = math.floor(now - min_gain / resolved.factor)
        budget = replace(budget, target=min(budget.target, lowered))
    failures = 0 if options.forced else state.failures

    def plan_within(reserved: int) -> NoCompaction | CompactionPlan | SlidingCut:
        return strategy.plan(
            entries,
            state.span,
            replace(budget, summary=reserved),
            policy,
            deep=deep,
            failures=failures,
        )

    plan = plan_within(reserve)
    if isinstance(plan, SlidingCut):
        return NoCompaction(f"{strategy.name} keeps no summary: its window moves with each build")
    # The reserve is that of a whole tree. These chunks need less, so that more messages may stay.
    while isinstance(plan, CompactionPlan) and plan.chunks and not deep:
        needed = _tree_tokens(plan, state, view, policy, limits)
        again = plan_within(needed) if needed < reserve else plan
        if again is plan or not isinstance(again, CompactionPlan):
            break
        # A larger share for history preserves more user messages, which may exceed the target.
        shown = tokens_of(entries) - again.freed_tokens
        if not replace(budget, summary=needed).meets_target(shown):
            break
        plan, reserve = again, needed
    if isinstance(plan, CompactionPlan) and not accepts_any_gain:
        gain = plan.freed_tokens - (reserve if plan.summarises and not state.summary_tokens else 0)
        if gain < min_gain:
            return NoCompaction("too little would be freed")
    return plan


def _tree_tokens(
    plan: CompactionPlan,
    state: ConversationState,
    view: View | None,
    policy: Policy,
    limits: Limits,
) -> int:
    """Return the most that the summaries of a tree cost once a plan is carried out."""
    chunks: Sequence[Span] = plan.chunks
    if view is not None:
        chunks = tree_chunks(plan, view, policy.tree_summary.chunk_size)
    return state.summary_tokens + len(chunks) * (tree_node_text_limit(limits) + LABEL_TOKENS)


def unsummarised_spans(
    hidden: Span,
    summarised: Span | None,
    released: Iterable[int],
    window: tuple[Span, ...] = WHOLE,
) -> list[Span]:
    """Return what a new summary of a hidden range has to be made of.

    That is what of the active window has no summary yet, and the `released` seqs, which were kept
    until now.
    """
    parts = [hidden]
    if summarised is not None:
        parts = [Span(hidden.start, min(summarised.start, hidden.end))]
        parts += [Span(seq, seq + 1) for seq in sorted(released) if summarised.holds(seq)]
        parts.append(Span(max(summarised.end, hidden.start), hidden.end))
    return list(overlap((part for part in parts if part.start < part.end), window))


def tree_chunks(plan: CompactionPlan, view: View, chunk_size: int) -> list[Span]:
    """Return the chunks of a tree: the plan's, and what was left out since its last summary.

    A tree grows at its end only: chunks before its summaries are left out. So are chunks of kept
    messages alone, and chunks outside the active window.
    """
    start = view.summarised.end if view.summarised is not None else 0
    chunks = [chunk for chunk in plan.chunks if chunk.start >= start]
    if (hidden := view.hidden) is not None:
        missed = range(max(start, hidden.start), hidden.end, chunk_size)
        gaps = (Span(at, min(at + chunk_size, hidden.end)) for at in missed)
        kept = set(plan.kept)
        chunks += [gap for gap in gaps if not kept.issuperset(range(gap.start, gap.end))]
    inside = (chunk for chunk in chunks if overlap((chunk,), view.window))
    return sorted(inside, key=lambda chunk: chunk.start)
