"""The result of a compaction whose summaries a model would write, without calling it.

[compaction.dry-run]
"""

from __future__ import annotations

from dataclasses import replace

from app.domain.compaction.planning import tree_chunks
from app.domain.compaction.plans import CompactionPlan
from app.domain.compaction.results import CompactResult
from app.domain.compaction.summary_budget import (
    expected_summary_tokens,
    summary_text_limit,
    tree_node_text_limit,
)
from app.domain.compaction.views import agent_tools_tokens, shown_entries
from app.domain.conversations.view import Span, Summary
from app.services.compaction.execution import summary_request
from app.services.compaction.runs import CompactionRun, merged_summary, nothing_done

DRY_RUN = "dry run"


def estimated_result(run: CompactionRun, plan: CompactionPlan, hidden: Span) -> CompactResult:
    """Return what a plan leads to, its summaries at their expected size."""
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
    tools = agent_tools_tokens(resolved, source.state, view.trimmed_through)
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
    limit = summary_text_limit(source.resolved.judging_limits())
    max_tokens = min(limit, plan.freed_tokens + source.state.summary_tokens)
    return Summary(hidden, "", expected_summary_tokens(source.active, run.strategy, max_tokens))


def _expected_tree(run: CompactionRun, plan: CompactionPlan) -> list[Summary]:
    source, resolved = run.source, run.source.resolved
    chunks = tree_chunks(plan, source.view, resolved.policy.tree_summary.chunk_size)
    limit = tree_node_text_limit(resolved.judging_limits())
    max_tokens = min(limit, plan.freed_tokens // max(len(chunks), 1))
    tokens = expected_summary_tokens(source.active, run.strategy, max_tokens)
    nodes = [*source.view.summaries, *(Summary(chunk, "", tokens) for chunk in chunks)]
    while merge := run.next_merge(nodes):
        first, end = merge
        nodes[first:end] = [merged_summary(nodes[first:end], "", tokens)]
    return nodes
