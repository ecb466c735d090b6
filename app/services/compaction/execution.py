"""Carries out the plan of a compaction, or estimates its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from app.domain.common.errors import ServiceUnavailable, ValidationError
from app.domain.compaction.planning import CompactionInput, tree_chunks, unsummarised_spans
from app.domain.compaction.plans import CompactionPlan
from app.domain.compaction.results import CompactResult
from app.domain.compaction.summaries.answer import SummaryResult
from app.domain.compaction.summaries.prompt import SummaryRequest
from app.domain.compaction.summary_budget import (
    expected_summary_tokens,
    summary_text_limit,
    tree_node_text_limit,
)
from app.domain.compaction.views import (
    agent_tools_tokens,
    shown_entries,
    summary_message_tokens,
)
from app.domain.conversations.compaction_receipt import Trigger
from app.domain.conversations.view import Span, Summary, overlap
from app.services.compaction.runs import (
    CompactionRun,
    CompactRequest,
    ExecutedPlan,
    merged_summary,
    nothing_done,
)
from app.services.compaction.summariser import Summariser, summarise_paged
from app.services.ports import Database

DRY_RUN = "dry run"


class PlanExecutor:
    """Carries out plans: makes their summaries, outside any transaction."""

    def __init__(self, database: Database, summariser: Summariser) -> None:
        self._database = database
        self._summariser = summariser

    def model(self, source: CompactionInput, request: CompactRequest) -> str | None:
        """Return the model that summarises; raises ValidationError for one not allowed."""
        resolved = source.resolved
        return self._summariser.choose_model(
            request.model, resolved.policy.compaction.model, resolved.model
        )

    async def execute(self, run: CompactionRun, plan: CompactionPlan) -> ExecutedPlan:
        """Carry out a plan; a build uses the fallback plan if no summary can be made."""
        try:
            if plan.hidden is None or not plan.summarises:
                return ExecutedPlan(plan, run.view_without_summary(plan))
            if plan.chunks:
                return await self._grow_tree(run, plan)
            return await self._summarise(run, plan, plan.hidden)
        except (ServiceUnavailable, ValidationError):
            if plan.fallback is None or run.trigger is not Trigger.PROACTIVE:
                raise
            executed = await self.execute(run, plan.fallback)
            executed.lacks_summary = True
            return executed

    async def _summarise(
        self, run: CompactionRun, plan: CompactionPlan, hidden: Span
    ) -> ExecutedPlan:
        """Extend the current summary to the whole hidden range."""
        view = run.source.view
        new_spans = unsummarised_spans(hidden, view.summarised, plan.released_seqs, view.window)
        previous = "\n\n".join(summary.text for summary in view.summaries) or None
        max_tokens = summary_text_limit(run.source.resolved.compaction_limits())
        result = await self._summary_of(run, plan, new_spans, previous, max_tokens, retains=True)
        sources = tuple(summary.span for summary in view.summaries)
        level = max((summary.level for summary in view.summaries), default=1)
        tokens = summary_message_tokens(result.text, run.source.resolved.count)
        summary = Summary(hidden, result.text, tokens, level, (*sources, *new_spans))
        return ExecutedPlan(plan, run.view_after(plan, (summary,), result.retain), [summary])

    async def _grow_tree(self, run: CompactionRun, plan: CompactionPlan) -> ExecutedPlan:
        """Summarise the new chunks, each once, and merge summaries where a level is full.

        If a model fails, the summaries made before are used and the hidden range ends there.
        """
        view, resolved = run.source.view, run.source.resolved
        nodes = list(view.summaries)
        made: list[Summary] = []
        hidden, failed = plan.hidden, False
        max_tokens = tree_node_text_limit(resolved.compaction_limits())
        released = [Span(seq, seq + 1) for seq in plan.released_seqs]
        for chunk in tree_chunks(plan, view, resolved.policy.tree_summary.chunk_size):
            parts = overlap([*released, chunk] if not made else [chunk], view.window)
            try:
                result = await self._summary_of(run, plan, parts, None, max_tokens)
            except ServiceUnavailable:
                if not made or hidden is None:
                    raise
                end = max(chunk.start, view.hidden.end if view.hidden is not None else 0)
                plan, failed = replace(plan, hidden=Span(hidden.start, end)), True
                break
            tokens = summary_message_tokens(result.text, resolved.count)
            made.append(Summary(chunk, result.text, tokens, 1, parts))
            nodes.append(made[-1])
        made += await self._merge(run, nodes)
        return ExecutedPlan(plan, run.view_after(plan, nodes, view.retain), made, failed)

    async def _merge(self, run: CompactionRun, nodes: list[Summary]) -> list[Summary]:
        """Merge full levels of a tree in place, and return the summaries that this made."""
        resolved = run.source.resolved
        made: list[Summary] = []
        while merge := run.next_merge(nodes):
            first, end = merge
            parts = nodes[first:end]
            try:
                text = await self._summariser.merge(
                    [part.text for part in parts],
                    summary_request(run),
                    self.model(run.source, run.request),
                    tree_node_text_limit(resolved.compaction_limits()),
                    run.calls,
                )
            except ServiceUnavailable:
                break  # the tree is larger than it should be until the next merge succeeds
            made.append(merged_summary(parts, text, summary_message_tokens(text, resolved.count)))
            nodes[first:end] = [made[-1]]
        return made

    async def _summary_of(
        self,
        run: CompactionRun,
        plan: CompactionPlan,
        spans: Sequence[Span],
        previous: str | None,
        max_tokens: int,
        *,
        retains: bool = False,
    ) -> SummaryResult:
        return await summarise_paged(
            self._database,
            self._summariser,
            run.conversation_id,
            spans,
            previous,
            summary_request(run, retains=retains),
            self.model(run.source, run.request),
            max_tokens,
            run.calls,
            verbatim_seqs=frozenset(plan.unhidden_seqs),
            retained=run.source.view.retain if retains else None,
        )


def summary_request(run: CompactionRun, *, retains: bool = False) -> SummaryRequest:
    """Return the request of a summary by the policy and the call, with a retain section or not."""
    policy = run.source.resolved.policy.compaction
    return SummaryRequest(
        prompt=policy.summary_prompt,
        directives=policy.summary_directives,
        retain_prompt=policy.retain_prompt if retains else None,
        retain_directives=policy.retain_directives if retains else (),
        instructions=run.request.instructions,
    )


def estimated_result(run: CompactionRun, plan: CompactionPlan, hidden: Span) -> CompactResult:
    """Return the result of a plan with an expected size of the summaries by a model.

    [compaction.dry-run]
    """
    source, resolved = run.source, run.source.resolved
    if plan.chunks:
        summaries, retain = _expected_tree(run, plan), source.view.retain
    else:
        summaries = [_expected_summary(run, plan, hidden)]
        retain = "" if summary_request(run, retains=True).wants_retain else None
    view = run.view_after(plan, summaries, retain)
    shown_tokens = sum(entry.tokens for entry in shown_entries(source.entries, view))
    summary_tokens = sum(summary.tokens for summary in view.summaries)
    summary_tokens += resolved.count(view.note) if view.note is not None else 0
    tools = agent_tools_tokens(
        resolved, source.state, has_placeholders=view.results_cleared_through > 0
    )
    return replace(
        nothing_done(run, DRY_RUN, plan.steps),
        after_tokens=resolved.usage(shown_tokens, summary_tokens, tools).total,
        after_msg_count=source.messages_in(view),
        summary_range=(hidden.start, hidden.end) if view.summaries else None,
        summary_tokens=summary_tokens,
        estimated=True,
    )


def _expected_summary(run: CompactionRun, plan: CompactionPlan, hidden: Span) -> Summary:
    source = run.source
    limit = summary_text_limit(source.resolved.compaction_limits())
    max_tokens = min(limit, plan.freed_tokens + source.state.summary_tokens)
    return Summary(hidden, "", expected_summary_tokens(source.active, run.strategy, max_tokens))


def _expected_tree(run: CompactionRun, plan: CompactionPlan) -> list[Summary]:
    source, resolved = run.source, run.source.resolved
    chunks = tree_chunks(plan, source.view, resolved.policy.tree_summary.chunk_size)
    limit = tree_node_text_limit(resolved.compaction_limits())
    max_tokens = min(limit, plan.freed_tokens // max(len(chunks), 1))
    tokens = expected_summary_tokens(source.active, run.strategy, max_tokens)
    nodes = [*source.view.summaries, *(Summary(chunk, "", tokens) for chunk in chunks)]
    while merge := run.next_merge(nodes):
        first, end = merge
        nodes[first:end] = [merged_summary(nodes[first:end], "", tokens)]
    return nodes
