"""Compacts the conversation where the pressure asks for it."""

from __future__ import annotations

from dataclasses import replace

from app.domain.common.errors import ServiceUnavailable, ValidationError
from app.domain.common.policy import CompactionMode
from app.domain.compaction.plans import NoCompaction
from app.domain.compaction.results import CompactionPending
from app.domain.compaction.strategies import STRATEGIES
from app.domain.models.budget import Pressure, pressure_status
from app.services.payload.pipeline.dependencies import BuildDependencies
from app.services.payload.pipeline.state import BuildState


async def compact(deps: BuildDependencies, state: BuildState) -> BuildState:
    """Compact once in a build, if it is due. Raises Restart when that changed the view."""
    if not _is_wanted(state):
        return state
    attempt, visible = state.attempt, state.read.conversation.state
    version = (visible.head_seq, visible.view_version, state.resolved.policy_hash, state.read.pins)
    state = replace(state, attempt=replace(attempt, may_compact=False))
    try:
        result = await deps.compaction.compact_for_build(
            attempt.tenant_id, attempt.conversation_id, attempt.settings, visible, version
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


def _is_wanted(state: BuildState) -> bool:
    resolved, limits = state.resolved, state.resolved.policy_limits
    policy = resolved.policy.compaction
    if not state.attempt.may_compact or limits is None or not policy.enabled:
        return False
    if STRATEGIES[resolved.policy.strategy].trigger(resolved.policy) is None:
        return False
    visible, usage = state.read.conversation.state, state.policy_usage
    pressure = pressure_status(usage.total, limits).pressure
    if pressure is Pressure.BLOCKED or usage.total > limits.capacity:
        return True
    inline = policy.mode is CompactionMode.INLINE and visible.tokens >= visible.resume_at
    wanted = (Pressure.DUE, Pressure.COMPACT) if inline else (Pressure.COMPACT,)
    return pressure in wanted and policy.auto
