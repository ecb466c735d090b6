"""Shortens messages that are too large for the context window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from app.domain.common.messages import FormatName
from app.domain.common.policy import StrategyName
from app.domain.compaction.plans import HistoryBudget
from app.domain.compaction.reduction.text_shortening import (
    MESSAGES_SHORTENED,
    limits_of_largest,
    limits_of_oversized,
)
from app.domain.compaction.summary_budget import NOTE_TOKENS, history_budget, summary_reserve
from app.domain.conversations.turns import Entry
from app.domain.conversations.view import ShortenedMessage
from app.services.payload.pipeline.state import BuildDependencies, BuildState
from app.services.tool_output.text_shortening import reader_tool_tokens, shortened_messages


def remaining_budget(state: BuildState, overshoot: int = 0) -> HistoryBudget:
    """Return what the history may cost, `overshoot` tokens less than the window leaves."""
    resolved, limits, summary = state.resolved, state.limits, state.summary_tokens
    reserve = max(summary_reserve(StrategyName.SANDWICH, limits), summary)
    fixed = resolved.raw_fixed.fixed + state.added_tool_tokens + state.added_system_tokens
    budget = history_budget(limits, resolved.policy, fixed, reserve, resolved.factor)
    return replace(budget, capacity=budget.capacity - overshoot, summary_now=summary)


async def shorten_oversized(deps: BuildDependencies, state: BuildState) -> BuildState:
    """Shorten the messages that would not fit beside a summary of everything else.

    It comes before a compaction, so that the pressure is that of the payload as it is sent.
    """
    if state.fits:
        return state
    budget = remaining_budget(state, reader_tool_tokens(state.resolved, state.tools.agent_tools))
    left = budget.capacity - budget.fixed - budget.summary
    return await _shorten(deps, state, limits_of_oversized(state.planned, left)) or state


async def shorten_largest(
    deps: BuildDependencies,
    state: BuildState,
    entries: Sequence[Entry],
    overshoot: int,
    *,
    only_large: bool = False,
) -> BuildState | None:
    """Shorten the largest of these messages until they fit alone; None if that is impossible.

    With `only_large`, messages of less than half of the available tokens stay as they are.
    """
    budget = remaining_budget(state, overshoot)
    left = budget.capacity - budget.fixed - state.summary_tokens
    left -= NOTE_TOKENS + reader_tool_tokens(state.resolved, state.tools.agent_tools)
    shortenable = None
    if only_large:
        short = {item.seq for item in state.view.shortened}
        shortenable = {item.seq for item in entries if 2 * item.tokens > left} | short
    return await _shorten(deps, state, limits_of_largest(entries, left, shortenable))


async def _shorten(
    deps: BuildDependencies, state: BuildState, costs: Mapping[int, int]
) -> BuildState | None:
    """Shorten messages to these costs by seq; None where none can be shortened."""
    if not costs or not state.resolved.policy.messages.offload_oversized:
        return None
    shorts = await messages_at(deps, state, costs)
    return state.degrade(MESSAGES_SHORTENED).shortened(shorts) if shorts else None


async def messages_at(
    deps: BuildDependencies, state: BuildState, costs: Mapping[int, int]
) -> list[ShortenedMessage]:
    """Return how to show messages at these costs by seq, without those that stay as they are."""
    return await shortened_messages(
        deps.database,
        state.attempt.conversation_id,
        costs,
        state.resolved,
        as_chat=state.format is FormatName.OPENAI_CHAT,
    )
