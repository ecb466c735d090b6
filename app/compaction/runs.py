"""The state of one running compaction, and its outcome."""

from __future__ import annotations

from collections.abc import Sequence
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
from app.conversations.turns import never_cleared
from app.conversations.view import Summary, View
from app.conversations.views import view_after
from app.policy.policy import StrategyName

SMALL_ROOM_TOKENS = 256
"""Of a short conversation: a summary of the whole room could be longer than what it replaces."""


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
    return replace(unchanged(reason, tokens, messages), strategies_run=steps)
