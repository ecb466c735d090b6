"""Shortens messages that are too large for the context window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from app.compaction.summary_budget import NOTE_TOKENS, history_budget, summary_reserve
from app.context.pipeline.state import BuildDependencies, BuildState
from app.conversations.messages.shortened_texts import reader_tool_tokens, shortened_messages
from app.conversations.plans import HistoryBudget
from app.conversations.text_shortening import (
    MESSAGES_SHORTENED,
    limits_of_largest,
    limits_of_oversized,
)
from app.conversations.turns import Entry
from app.conversations.view import ShortenedMessage
from app.formats.message import FormatName
from app.policy.policy import StrategyName


def remaining_budget(state: BuildState, overshoot: int = 0) -> HistoryBudget:
    """Return the budget of the history, `overshoot` tokens smaller than the window allows."""
    resolved, limits, summary = state.resolved, state.limits, state.summary_tokens
    reserve = max(summary_reserve(StrategyName.SANDWICH, limits), summary)
    fixed = resolved.raw_fixed.fixed + state.added_tool_tokens + state.added_system_tokens
    budget = history_budget(limits, resolved.policy, fixed, reserve, resolved.factor)
    return replace(budget, capacity=budget.capacity - overshoot, current_summary=summary)


async def shorten_oversized(deps: BuildDependencies, state: BuildState) -> BuildState:
    """Shorten the messages that would not fit beside a summary of everything else.

    It comes before a compaction, so that the pressure is that of the payload as it is sent.
    """
    if state.fits:
        return state
    budget = remaining_budget(state, reader_tool_tokens(state.resolved, state.tools.agent_tools))
    available_tokens = budget.capacity - budget.fixed - budget.summary
    return (
        await _with_shortened(
            deps, state, limits_of_oversized(state.plan_entries, available_tokens)
        )
        or state
    )


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
    available_tokens = budget.capacity - budget.fixed - state.summary_tokens
    available_tokens -= NOTE_TOKENS + reader_tool_tokens(state.resolved, state.tools.agent_tools)
    shortenable = None
    if only_large:
        shortened_seqs = {item.seq for item in state.view.shortened}
        shortenable = {
            item.seq for item in entries if 2 * item.tokens > available_tokens
        } | shortened_seqs
    return await _with_shortened(
        deps, state, limits_of_largest(entries, available_tokens, shortenable)
    )


async def _with_shortened(
    deps: BuildDependencies, state: BuildState, max_tokens_by_seq: Mapping[int, int]
) -> BuildState | None:
    """Shorten messages to these tokens; None where none can be shortened."""
    if not max_tokens_by_seq or not state.resolved.policy.messages.offload_oversized:
        return None
    shortened = await shorten_messages(deps, state, max_tokens_by_seq)
    return state.degrade(MESSAGES_SHORTENED).with_shortened(shortened) if shortened else None


async def shorten_messages(
    deps: BuildDependencies, state: BuildState, max_tokens_by_seq: Mapping[int, int]
) -> list[ShortenedMessage]:
    """Return the messages shortened to these tokens, without those that cannot be shortened."""
    return await shortened_messages(
        deps.database,
        state.attempt.conversation_id,
        max_tokens_by_seq,
        state.resolved,
        as_chat=state.format is FormatName.OPENAI_CHAT,
    )
