"""Payloads that are too long: the refusal of a build, and the cut after a provider's refusal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.domain.common.errors import Conflict, ContextOverflow
from app.domain.common.policy import StrategyName
from app.domain.compaction.planning import CompactionInput
from app.domain.compaction.reduction.overflow_recovery import view_after_overflow
from app.domain.compaction.reduction.text_shortening import MIN_SHORTENED_TOKENS, largest_text
from app.domain.compaction.results import CompactResult
from app.domain.compaction.views import with_shortened
from app.domain.conversations.turns import Entry
from app.domain.conversations.view import View
from app.domain.models.budget import Limits, Usage, measure
from app.domain.payload.contributors import Contributor, contributors, overflow_detail, suggestions
from app.domain.prompt.resolved_settings import ResolvedSettings
from app.services.payload.pipeline.shortening import messages_at
from app.services.payload.pipeline.state import BuildDependencies, BuildState


async def refusal(
    deps: BuildDependencies, state: BuildState, entries: Sequence[Entry]
) -> ContextOverflow:
    """Return the refusal of a payload that shows at least these entries."""
    resolved = state.resolved
    conversation = sum(item.tokens for item in entries)
    usage = resolved.usage(
        conversation, state.summary_tokens, state.added_tool_tokens, state.added_system_tokens
    )
    largest = contributors(resolved, state.tools, usage, entries)
    seqs = [part.seq for part in largest if part.seq]
    ids: Mapping[int, str] = {}
    if seqs:
        async with deps.database.session() as session:
            ids = await session.log.ids(state.attempt.conversation_id, seqs)
    return context_overflow(resolved, state.limits, usage, largest, ids)


def context_overflow(
    resolved: ResolvedSettings,
    limits: Limits,
    usage: Usage,
    largest: Sequence[Contributor],
    ids: Mapping[int, str],
) -> ContextOverflow:
    """Return the error for this usage, with its largest parts and what would help."""
    return ContextOverflow(
        overflow_detail(usage.total, limits, largest),
        {
            "budget": measure(usage, limits),
            "largest": [part.as_json(ids) for part in largest],
            "suggestions": suggestions(resolved, limits, usage, largest),
        },
    )


async def cut_after_overflow(deps: BuildDependencies, state: BuildState) -> CompactResult:
    """Cut the payload that a provider found too long, without a model.

    Raises Restart when the view changed meanwhile, and ContextOverflow when nothing is left to
    cut.
    """
    cut = CompactionInput(
        state.attempt.tenant_id,
        state.read.conversation,
        state.resolved,
        state.view,
        tuple(state.planned),
    )
    view = await _smaller_view(deps, state, cut)
    if view is None:
        raise await refusal(deps, state, state.shown)
    try:
        return await deps.compaction.cut(cut, view)
    except Conflict as conflict:
        raise state.restart() from conflict


async def _smaller_view(
    deps: BuildDependencies, state: BuildState, cut: CompactionInput
) -> View | None:
    """Return a smaller view: turns go first, unless one text is larger than all the rest.

    Such a text is cut to half of itself before turns go. Where no turn can go, the largest text
    is cut as well.
    """
    max_tokens = _max_tokens_after(cut, state.limits)
    shown = state.shown
    largest = largest_text(shown)
    if largest is not None and 2 * largest.tokens > sum(item.tokens for item in shown):
        view = await _halve(deps, state, largest, cut, max_tokens)
        if view is not None:
            return view
    if (view := view_after_overflow(cut, max_tokens)) is not None:
        return view
    return await _halve(deps, state, largest, cut, max_tokens) if largest is not None else None


async def _halve(
    deps: BuildDependencies,
    state: BuildState,
    largest: Entry,
    cut: CompactionInput,
    max_tokens: int,
) -> View | None:
    """Return the view with half of a text, None where the text is short or that is too much."""
    policy = state.resolved.policy.messages
    if largest.tokens < 2 * MIN_SHORTENED_TOKENS or not policy.offload_oversized:
        return None
    shorts = await messages_at(deps, state, {largest.seq: largest.tokens // 2})
    view = with_shortened(state.view, shorts)
    return view if shorts and cut.tokens_in(view) <= max_tokens else None


def _max_tokens_after(cut: CompactionInput, limits: Limits) -> int:
    """Return what a cut may leave: less than before.

    Where no build may reduce what is left, it has to fit as well.
    """
    policy = cut.resolved.policy
    max_tokens = cut.tokens_in(cut.view) - 1
    if policy.strategy is StrategyName.FULL_HISTORY or not policy.compaction.enabled:
        max_tokens = min(max_tokens, limits.capacity)
    return max_tokens
