"""The state of one running compaction, and its outcome."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from app.compaction.planning import (
    CompactionInput,
    CompactionOptions,
    plan_compaction,
    room_for_summaries,
    summary_limit,
)
from app.compaction.schemas import CompactionRequest
from app.compaction.strategies.kinds import next_merge
from app.compaction.summaries.run import SummariserRun
from app.compaction.summariser import Summariser
from app.compaction.summary_budget import summary_floor
from app.conversations.compaction_receipt import Trigger
from app.conversations.compaction_results import CompactResult, unchanged
from app.conversations.plans import CompactionPlan, NoCompaction, tokens_hidden_by
from app.conversations.thresholds import exceeds_messages
from app.conversations.turns import never_cleared, pinned_seqs
from app.conversations.view import Summary, View
from app.conversations.views import agent_tools_tokens, view_after
from app.models.model_calls import EXTRACTIVE
from app.policy.policy import StrategyName, SummaryInput

SMALL_ROOM_TOKENS = 256
"""Of a short conversation: a summary of the whole room could be longer than what it replaces."""
SUMMARY_SHORT = "summary_short_of_room"
"""In `degraded`: the window has less room for summaries than they should have."""
OVER_TARGET = "target_exceeded_by"
"""Begins what `degraded` has where an asked target is not met: what could not give way."""


@dataclass(frozen=True, slots=True)
class CompactionRun:
    """One compaction: its input, why it runs, its request and its model calls."""

    source: CompactionInput
    trigger: Trigger
    request: CompactionRequest
    calls: SummariserRun
    started_ms: float
    job_id: str | None = None

    @property
    def conversation_id(self) -> str:
        """The conversation that is compacted."""
        return self.source.conversation.conversation_id

    @property
    def strategy(self) -> StrategyName:
        """The strategy of this run."""
        return self.request.strategy or self.source.resolved.policy.strategy

    @property
    def wants_prefix(self) -> bool:
        """Whether the newest payload is to be summarised, unless no model may be called."""
        policy = self.source.resolved.policy.compaction
        is_builtin = (self.request.model or policy.model) == EXTRACTIVE
        return policy.summary_input is SummaryInput.PREFIX and not is_builtin

    def choose_model(self, summariser: Summariser) -> str | None:
        """Return the model that summarises; raises ValidationError for one not allowed."""
        resolved = self.source.resolved
        policy_model = resolved.policy.compaction.model
        return summariser.choose_model(self.request.model, policy_model, resolved.model)

    def plan(self, summary_tokens: int | None = None) -> NoCompaction | CompactionPlan:
        """Return what to compact; with `summary_tokens` its summaries take no more than these."""
        source = self.source
        if not source.entries:
            where = " in its active window" if source.state.head_seq else ""
            return NoCompaction(f"the conversation has no messages{where}")
        policy = source.resolved.policy.compaction
        deep = self.trigger is not Trigger.FORCED and exceeds_messages(policy, source.state)
        return plan_compaction(
            source.shown,
            source.state,
            source.resolved,
            CompactionOptions(
                forced=self.trigger is Trigger.FORCED or deep,
                deep=deep,
                # The reported usage may be over the threshold although the counted one is within
                # the target: then a plan has to hide more than the target requires.
                deep_within_target=not source.is_just_compacted(self.strategy),
                strategy=self.request.strategy,
                target_tokens=self.request.target_tokens,
                summary_tokens=summary_tokens,
            ),
            source.view,
        )

    def view_after(
        self, plan: CompactionPlan, summaries: Sequence[Summary], retain: str | None
    ) -> View:
        """Return the view that a plan makes, given its summaries."""
        source = self.source
        return view_after(source.view, plan, summaries, retain, never_cleared(source.entries))

    def view_without_summary(self, plan: CompactionPlan) -> View:
        """Return the view that a plan makes with the current summaries."""
        view = self.source.view
        return self.view_after(plan, view.summaries, view.retain)

    def lacks_room(self, plan: CompactionPlan) -> bool:
        """Whether the window has less room for summaries than they should have. [summary.room]"""
        if not plan.summarises or self.request.target_tokens is not None:
            return False
        return self.summary_limit(plan) < self.summary_floor(plan)

    def summary_floor(self, plan: CompactionPlan) -> int:
        """Return the tokens that the summaries of a plan should have room for, labels included."""
        replaced = tokens_hidden_by(plan, self.source.shown) + self.source.state.summary_tokens
        return summary_floor(replaced)

    @property
    def summary_room(self) -> int:
        """The tokens that the plan reserves for summaries, labels included."""
        source = self.source
        return room_for_summaries(
            self.strategy, source.shown, source.state, source.resolved, self.request.target_tokens
        )

    def summary_limit(self, plan: CompactionPlan) -> int:
        """Return the tokens that summaries may take, labels included.

        That is the room; with an asked target what it leaves beside the shown messages, at least
        half of the reserve. Where the messages alone miss the target, that is no reason for a poor
        summary. [summary.room]
        """
        room, target_tokens = self.summary_room, self.request.target_tokens
        if self.trigger is Trigger.PROVIDER:
            return room  # of messages that are hidden already
        if target_tokens is None:
            shown = self.source.state.summary_tokens
            return summary_limit(plan, room, self.source.shown, shown)
        without = self.view_after(plan, (), None)
        left = int((target_tokens - self.source.tokens_in(without)) / self.source.resolved.factor)
        # Messages that cannot give way are no reason for a summary that forgets what was kept.
        is_missed = left <= 0 and room > SMALL_ROOM_TOKENS
        return room if is_missed else max(room // 2, left)

    def next_merge(
        self,
        nodes: Sequence[Summary],
        max_tokens: int,
        *,
        merges_all: bool = False,
        has_unlisted: bool = False,
    ) -> tuple[int, int] | None:
        """Return which summaries of a tree to merge next, so that they take `max_tokens`.

        With `merges_all` that are all of them where they take more: what is chosen among the
        statements of all of them loses the fewest. With an asked target so do statements that had
        no room, `has_unlisted`.
        """
        tree = self.source.resolved.policy.tree_summary
        tokens = sum(node.tokens for node in nodes)
        lists_again = has_unlisted and self.request.target_tokens is not None
        if merges_all and len(nodes) > 1 and (tokens > max_tokens or lists_again):
            return 0, len(nodes)
        return next_merge(nodes, tree.chunk_size, max_tokens)


@dataclass(slots=True)
class ExecutedPlan:
    """The outcome of a plan: the new view, and the summaries that were made.

    `lacks_summary` is set when a planned summary could not be made.
    """

    plan: CompactionPlan
    view: View
    made: list[Summary] = field(default_factory=list)
    lacks_summary: bool = False


def nothing_done(run: CompactionRun, reason: str, steps: tuple[str, ...] = ()) -> CompactResult:
    """Return the result of a compaction that changed nothing."""
    tokens = run.source.tokens_in(run.source.view)
    messages = run.source.messages_in(run.source.view)
    degraded = tuple(over_target(run, run.source.view))
    return replace(unchanged(reason, tokens, messages), strategies_run=steps, degraded=degraded)


def over_target(run: CompactionRun, view: View) -> Iterator[str]:
    """Yield what keeps a payload over the target that a caller asked for. [summary.room]"""
    target, resolved = run.request.target_tokens, run.source.resolved
    if target is None or run.source.tokens_in(view) <= target:
        return
    shown = run.source.shown_in(view)
    usage = resolved.usage(0, 0, agent_tools_tokens(resolved, run.source.state))
    if usage.total > target // 2:
        yield f"{OVER_TARGET}_system_and_tools"
    pinned = pinned_seqs(shown)
    if pinned:
        yield f"{OVER_TARGET}_pinned_messages"
    if any(entry.seq not in pinned for entry in shown):
        yield f"{OVER_TARGET}_kept_messages"
