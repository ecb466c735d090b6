"""Clears tool results and compacts the conversation where a build finds it due."""

from __future__ import annotations

from dataclasses import replace

from app.common.errors import ServiceUnavailable, ValidationError
from app.compaction.reduction.tool_result_clearing import (
    excluded_seqs,
    min_cleared_tokens,
    plan_clearing,
    tool_output_budget,
)
from app.compaction.strategies import STRATEGIES
from app.context.pipeline.state import BuildDependencies, BuildState
from app.conversations.compaction_results import CompactionPending
from app.conversations.plans import NoCompaction
from app.conversations.provider_items import has_compaction
from app.conversations.reported_usage import is_suspended
from app.conversations.thresholds import exceeds_messages
from app.conversations.view import Span, spans_through
from app.models.budget import Pressure, pressure_status
from app.policy.policy import CompactionMode, StrategyName


async def clear_tool_results(deps: BuildDependencies, state: BuildState) -> BuildState:
    """Clear tool results over their budget. Raises Restart when that changed the view."""
    resolved = state.resolved
    limits, policy = resolved.compaction_limits(), resolved.policy.tool_output
    is_kept = not policy.enabled or resolved.policy.strategy is StrategyName.FULL_HISTORY
    if is_kept or state.attempt.is_preview:
        return state
    budget = tool_output_budget(policy, limits.total)
    if state.output_tokens <= budget:
        return state
    if is_suspended(state.input.conversation.state, state.policy_usage.total, limits):
        return state
    state = await find_excluded_seqs(deps, state)
    min_cleared = min_cleared_tokens(policy, limits.total)
    plan = plan_clearing(state.plan_entries, state.view, budget, min_cleared)
    if isinstance(plan, NoCompaction):
        return state
    slides = resolved.policy.strategy is StrategyName.SLIDING_WINDOW
    is_changed = await deps.compaction.clear_tool_results(
        state.attempt.tenant_id,
        state.attempt.conversation_id,
        state.attempt.settings,
        state.input.conversation.state.view_version,
        plan,
        state.view.spans if slides else None,
    )
    if is_changed:
        raise state.restart()
    return state


async def find_excluded_seqs(deps: BuildDependencies, state: BuildState) -> BuildState:
    """Add the seqs of shown results of tools that the policy excludes from clearing.

    A cached payload keeps the names of the tools, so that they are read once.
    """
    tools = state.resolved.policy.tool_output.exclude_tools
    if not tools or state.excluded_seqs is not None:
        return state
    rendered, entries = state.rendered, list(state.entries)  # a copy: the cached ones may grow
    tool_names = rendered.tool_names if rendered is not None else {}
    known_through = rendered.tool_names_through if rendered is not None else 0
    last_seq = entries[-1].seq if entries else 0
    unknown = [Span(max(span.start, known_through + 1), span.end) for span in state.view.spans]
    if missing := spans_through(unknown, last_seq):
        async with deps.database.session() as session:
            for span in missing:
                tool_names.update(
                    await session.log.tool_names(
                        state.attempt.conversation_id, span.start, span.end
                    )
                )
    if rendered is not None:
        rendered.tool_names_through = max(rendered.tool_names_through, last_seq)
    excluded = excluded_seqs(entries, state.view, tool_names, tools)
    return replace(state, entries=entries, excluded_seqs=excluded)


async def compact(deps: BuildDependencies, state: BuildState) -> BuildState:
    """Compact once in a build, if it is due. Raises Restart when that changed the view."""
    if not _is_compaction_due(state):
        return state
    attempt, conversation_state = state.attempt, state.input.conversation.state
    version = (
        conversation_state.head_seq,
        conversation_state.view_version,
        state.resolved.policy_hash,
        state.input.pins,
    )
    state = replace(state, attempt=replace(attempt, may_compact=False))
    try:
        result = await deps.compaction.compact_for_build(
            attempt.tenant_id,
            attempt.conversation_id,
            attempt.settings,
            conversation_state,
            version,
        )
    except (ServiceUnavailable, ValidationError):
        return state.degrade("summariser_unavailable")
    if isinstance(result, CompactionPending):
        return state.degrade("compaction_pending")
    if isinstance(result, NoCompaction):
        return state
    if result is None:  # the view changed meanwhile
        raise replace(state, attempt=attempt).restart()
    compacted = replace(state, attempt=replace(state.attempt, compaction=result))
    raise compacted.degrade(*result.degraded).restart()


def _is_compaction_due(state: BuildState) -> bool:
    resolved, limits = state.resolved, state.resolved.policy_limits
    policy = resolved.policy.compaction
    if not state.attempt.may_compact or limits is None or not policy.enabled:
        return False
    if not STRATEGIES[resolved.policy.strategy].compacts:
        return False
    is_provider = resolved.policy.strategy is StrategyName.PROVIDER
    if is_provider and has_compaction(state.format, resolved.model or ""):
        return False
    usage = state.policy_usage
    pressure = pressure_status(usage.total, limits).pressure
    if pressure is Pressure.BLOCKED or usage.total > limits.capacity:
        return True
    conversation_state = state.input.conversation.state
    inline = policy.mode is CompactionMode.INLINE and not conversation_state.is_suspended
    if inline and limits.due_at is not None and exceeds_messages(policy, conversation_state):
        return True
    due_levels = (Pressure.DUE, Pressure.COMPACT) if inline else (Pressure.COMPACT,)
    return pressure in due_levels and policy.auto
