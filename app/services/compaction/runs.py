"""The state of one running compaction, and its outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from app.domain.common import json_text
from app.domain.common.policy import StrategyName
from app.domain.compaction.planning import (
    CompactionInput,
    CompactionOptions,
    plan_compaction,
)
from app.domain.compaction.plans import CompactionPlan, NoCompaction
from app.domain.compaction.results import CompactResult
from app.domain.compaction.strategies.tree_summary import next_merge
from app.domain.compaction.summary_budget import summary_reserve
from app.domain.compaction.thresholds import compaction_threshold
from app.domain.compaction.views import view_after
from app.domain.conversations.compaction_receipt import Trigger
from app.domain.conversations.turns import never_cleared
from app.domain.conversations.view import Span, Summary, View
from app.services.compaction.summaries.run import SummariserRun


@dataclass(frozen=True, slots=True)
class CompactRequest:
    """A compaction that a caller requests; its settings are for this call alone."""

    model: str | None = None
    instructions: str | None = None
    strategy: StrategyName | None = None
    target_tokens: int | None = None
    dry_run: bool = False

    def as_json(self) -> str:
        """Return the text that is stored with a job."""
        return json_text.dumps(asdict(self))


def request_from(text: str) -> CompactRequest:
    """Read back the request of a job."""
    raw = json_text.loads(text)
    strategy = StrategyName(raw["strategy"]) if raw["strategy"] else None
    return CompactRequest(**{**raw, "strategy": strategy})


@dataclass(frozen=True, slots=True)
class CompactionRun:
    """One compaction: its input, why it runs, its request and its model calls."""

    source: CompactionInput
    trigger: Trigger
    request: CompactRequest
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

    def plan(self) -> NoCompaction | CompactionPlan:
        """Return what to compact."""
        source = self.source
        if not source.entries:
            where = " in its active window" if source.state.head_seq else ""
            return NoCompaction(f"the conversation has no messages{where}")
        threshold = compaction_threshold(source.resolved)
        deep = self.trigger is Trigger.BACKGROUND and threshold.exceeds_messages(source.state)
        return plan_compaction(
            source.shown,
            source.state,
            source.resolved,
            source.tokens_in(source.view),
            CompactionOptions(
                forced=self.trigger is Trigger.FORCED or deep,
                deep=deep,
                # The reported usage may be over the threshold although the counted one is within
                # the target: then a plan has to hide more than the target requires.
                deep_within_target=not source.is_just_compacted(self.strategy),
                strategy=self.request.strategy,
                target_tokens=self.request.target_tokens,
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

    def next_merge(self, nodes: Sequence[Summary]) -> tuple[int, int] | None:
        """Return which summaries of a tree to merge next."""
        resolved = self.source.resolved
        tree, limits = resolved.policy.tree_summary, resolved.compaction_limits()
        max_tokens = summary_reserve(StrategyName.TREE_SUMMARY, limits)
        return next_merge(nodes, tree.levels, tree.chunk_size, max_tokens)


@dataclass(slots=True)
class ExecutedPlan:
    """The outcome of a plan: the new view, and the summaries that were made.

    `lacks_summary` is set when a planned summary could not be made.
    """

    plan: CompactionPlan
    view: View
    made: list[Summary] = field(default_factory=list)
    lacks_summary: bool = False


def merged_summary(parts: Sequence[Summary], text: str, tokens: int) -> Summary:
    """Return the summary that stands for several of one level."""
    span = Span(parts[0].span.start, parts[-1].span.end)
    return Summary(span, text, tokens, parts[0].level + 1, tuple(part.span for part in parts))


def nothing_done(run: CompactionRun, reason: str, steps: tuple[str, ...] = ()) -> CompactResult:
    """Return the result of a compaction that changed nothing."""
    tokens = run.source.tokens_in(run.source.view)
    messages = run.source.messages_in(run.source.view)
    return CompactResult(
        compacted=False,
        reason=reason,
        compaction_id=None,
        before_tokens=tokens,
        after_tokens=tokens,
        before_msg_count=messages,
        after_msg_count=messages,
        strategies_run=steps,
    )
