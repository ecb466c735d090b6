"""Clears tool results and compacts the conversation where a build finds it due."""

from __future__ import annotations

from dataclasses import replace

from app.domain.common.errors import ServiceUnavailable, ValidationError
from app.domain.common.policy import CompactionMode, StrategyName
from app.domain.compaction.plans import NoCompaction
from app.domain.compaction.provider_items import has_compaction
from app.domain.compaction.reduction.tool_result_clearing import (
    excluded_seqs,
    min_cleared_tokens,
    plan_clearing,
    tool_output_budget,
)
from app.domain.compaction.results import CompactionPending
from app.domain.compaction.strategies import STRATEGIES
from app.domain.compaction.views import state_after
from app.domain.conversations.epoch import BuildInput
from app.domain.conversations.turns import entry, pinned_seqs
from app.domain.conversations.view import Span, spans_through
from app.domain.models.budget import Pressure, pressure_status
from app.domain.payload.reported_usage import is_suspended
from app.services.compaction.inline import BuildSource, InlineCompaction
from app.services.payload.pipeline.state import BuildDependencies, BuildState


async def clear_tool_results(deps: BuildDependencies, state: BuildState) -> BuildState:
    """Clear tool results over their budget. Raises Restart when that changed the view."""
    limits, policy = state.resolved.compaction_limits(), state.resolved.policy.tool_output
    budget = _output_budget(state)
    if budget is None or state.output_tokens <= budget:
        return state
    if is_suspended(state.input.conversation.state, state.policy_usage.total, limits):
        return state
    state = await find_excluded_seqs(deps, state)
    min_cleared = min_cleared_tokens(policy, limits.total)
    plan = plan_clearing(state.plan_entries, state.view, budget, min_cleared)
    if isinstance(plan, NoCompaction):
        return state
    cleared = await deps.compaction.clear_tool_results(_source(state), plan)
    if isinstance(cleared, CompactionPending):
        return state
    shown = None
    if cleared is not None and state.rendered is not None:
        shown = state.rendered.with_cleared(cleared.change.visible.view)
    if cleared is None or shown is None:
        raise state.restart()
    attempt = replace(state.attempt, basis=cleared.basis)
    raise replace(state, attempt=attempt).restart(_input_after(state.input, cleared), shown)


def _output_budget(state: BuildState) -> int | None:
    """Return how many tokens of tool results a build shows, None where none are cleared."""
    resolved = state.resolved
    policy = resolved.policy.tool_output
    is_kept = not policy.enabled or resolved.policy.strategy is StrategyName.FULL_HISTORY
    if is_kept or state.attempt.is_preview:
        return None
    return tool_output_budget(policy, resolved.compaction_limits().total)


def is_small_enough(state: BuildState) -> bool:
    """Whether a rendered payload fits, and neither clears results nor compacts."""
    budget = _output_budget(state)
    is_within_budget = budget is None or state.output_tokens <= budget
    return is_within_budget and state.fits and not _is_compaction_due(state)


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
    state = await find_excluded_seqs(deps, state)
    attempt, conversation_state = state.attempt, state.input.conversation.state
    version = (
        conversation_state.head_seq,
        conversation_state.view_version,
        state.resolved.policy_hash,
        state.input.pins,
    )
    state = replace(state, attempt=replace(attempt, may_compact=False))
    try:
        result = await deps.compaction.compact_for_build(_source(state), version)
    except (ServiceUnavailable, ValidationError):
        return state.degrade("summariser_unavailable")
    if isinstance(result, CompactionPending):
        return state.degrade("compaction_pending")
    if isinstance(result, NoCompaction):
        return state
    if result is None:  # the view changed meanwhile
        raise replace(state, attempt=attempt).restart()
    known: BuildInput | None = None
    if isinstance(result, InlineCompaction):
        known, result = _input_after(state.input, result), result.result
    compacted = replace(state, attempt=replace(state.attempt, compaction=result, basis=None))
    raise compacted.degrade(*result.degraded).restart(known)


def _source(state: BuildState) -> BuildSource:
    """Return what a compaction plans on: the entries as stored, pins and exclusions marked."""
    attempt, conversation = state.attempt, state.input.conversation
    pins, excluded = frozenset(state.input.pins), state.excluded_seqs or frozenset()
    entries = [item for item in state.entries if item.seq <= conversation.state.head_seq]
    if pins:
        pins = pinned_seqs([replace(item, pinned=item.seq in pins) for item in entries])
    if pins or excluded:
        entries = [
            entry(item.seq, item.role, item.tokens, item.seq in pins, item.seq in excluded)
            for item in entries
        ]
    return BuildSource(
        attempt.tenant_id,
        conversation,
        attempt.settings,
        state.view,
        tuple(entries),
        attempt.basis,
    )


def _input_after(build_input: BuildInput, inline: InlineCompaction) -> BuildInput:
    """Return what the build would read now, after an inline compaction of its conversation."""
    receipt, rows = inline.change.receipt, inline.rows
    state = state_after(build_input.conversation.state, inline.change)
    has_rows = rows is not None and rows.shown_spans == receipt.view.spans
    return replace(
        build_input,
        conversation=replace(build_input.conversation, state=state),
        view=receipt.view,
        compaction_strategy=receipt.policy_strategy or receipt.strategy,
        compacted_at=receipt.created_at,
        has_rows=has_rows,
        rows=list(rows.shown) if rows is not None and has_rows else [],
    )


def _is_compaction_due(state: BuildState) -> bool:
    resolved, limits = state.resolved, state.resolved.policy_limits
    policy = resolved.policy.compaction
    if not state.attempt.may_compact or limits is None or not policy.enabled:
        return False
    if not STRATEGIES[resolved.policy.strategy].compacts(resolved.policy):
        return False
    is_provider = resolved.policy.strategy is StrategyName.PROVIDER
    if is_provider and has_compaction(state.format, resolved.model or ""):
        return False
    usage = state.policy_usage
    pressure = pressure_status(usage.total, limits).pressure
    if pressure is Pressure.BLOCKED or usage.total > limits.capacity:
        return True
    inline = (
        policy.mode is CompactionMode.INLINE and not state.input.conversation.state.is_suspended
    )
    due_levels = (Pressure.DUE, Pressure.COMPACT) if inline else (Pressure.COMPACT,)
    return pressure in due_levels and policy.auto
