"""Payloads that are too long: the refusal of a build, and the reduction after a provider's."""

from __future__ import annotations

from dataclasses import replace

from app.common.errors import Conflict, ContextOverflow, ValidationError
from app.compaction.planning import CompactionInput
from app.compaction.reduction import view_after_overflow
from app.context.choose_view import render_view
from app.context.fit import input_of, shorten_messages
from app.context.state import BuildDependencies, BuildState, Overflow, Retry
from app.conversations.partial_messages import MIN_SHORTENED_TOKENS, cut_after, largest_text
from app.conversations.receipt import CompactResult, unchanged
from app.conversations.turns import Entry
from app.conversations.view import View
from app.conversations.view_changes import with_shortened, without_item
from app.models.budget import Limits, PayloadTokens, measure
from app.models.error_verdicts import VerdictKind
from app.policy.policy import StrategyName


def refusal(overflow: Overflow) -> ContextOverflow:
    """Return the error for a payload that does not fit."""
    state = overflow.state
    conversation = sum(item.tokens for item in overflow.entries)
    added = state.added_tool_tokens, state.added_system_tokens
    tokens = state.resolved.tokens(conversation, state.summary_tokens, *added)
    return context_overflow(state.limits, tokens)


def context_overflow(limits: Limits, tokens: PayloadTokens) -> ContextOverflow:
    """Return the error for a payload of these tokens."""
    detail = (
        f"No valid payload fits the context window: {tokens.total:,} tokens are needed and"
        f" {limits.capacity:,} are there"
    )
    if tokens.total <= limits.capacity:
        detail = f"No smaller valid payload can be made: {tokens.total:,} tokens are left"
    return ContextOverflow(detail, {"budget": measure(tokens, limits)})


async def reduce_after_overflow(
    deps: BuildDependencies, state: BuildState
) -> CompactResult | Retry | Overflow:
    """Reduce the payload that a provider refused as too long, without a model."""
    compaction_input = input_of(state)
    view = await _smaller_view(deps, state, compaction_input)
    if view is None and state.view.provider_item is not None:
        state = replace(state, view=without_item(state.view))
        compaction_input = input_of(state)
        view = await _smaller_view(deps, state, compaction_input)
    if view is None:
        return Overflow(state, state.view_entries)
    return await _apply(deps, state, compaction_input, view)


async def leave_out_media(deps: BuildDependencies, state: BuildState) -> CompactResult | Retry:
    """Leave out the oldest half of the media, of which a provider refused some.

    Raises ValidationError where no media are sent.
    """
    if state.rendered is None:
        state = await render_view(deps, state)
    assert state.rendered is not None
    if not (sent := state.rendered.assembler.media):
        raise ValidationError.at("/error", "No media are sent that could be left out")
    cut = cut_after(sent, (len(sent) + 1) // 2)
    return await _apply(deps, state, input_of(state), replace(state.view, media_cut=cut))


async def leave_out_reasoning(deps: BuildDependencies, state: BuildState) -> CompactResult:
    """Let the builds of this stream leave out the reasoning that a provider refused.

    Where none is sent, it refused its own compaction item, which ends. Raises ValidationError where
    that is not sent either.
    """
    if state.rendered is None:
        state = await render_view(deps, state)
    assert state.rendered is not None
    conversation = state.input.conversation
    if not state.rendered.assembler.has_reasoning:
        if state.view.sent_item is None:
            raise ValidationError.at("/error", "No reasoning is sent that could be left out")
        async with deps.database.session() as session:
            await session.contexts.show_whole_log(
                conversation.conversation_id, conversation.state.view_version
            )
    messages = conversation.state.shown_messages
    return unchanged(VerdictKind.REASONING_REFUSED, state.tokens.total, messages)


async def _apply(
    deps: BuildDependencies, state: BuildState, compaction_input: CompactionInput, view: View
) -> CompactResult | Retry:
    """Store a smaller view, unless the view changed meanwhile."""
    try:
        return await deps.compaction.store_smaller_view(compaction_input, view)
    except Conflict:
        return state.retry()


async def _smaller_view(
    deps: BuildDependencies, state: BuildState, compaction_input: CompactionInput
) -> View | None:
    """Return a smaller view: the oldest turns are left out first.

    A text that is larger than all the rest is halved before that. Where no turn can be left out,
    the largest text is halved.
    """
    max_tokens = compaction_input.tokens_in(compaction_input.view) - 1
    policy = state.resolved.policy
    if policy.strategy is StrategyName.FULL_HISTORY or not policy.compaction.enabled:
        # The policy does not let a build reduce it further.
        max_tokens = min(max_tokens, state.limits.capacity)
    entries = state.view_entries
    largest = largest_text(entries)
    if largest is not None and 2 * largest.tokens > sum(item.tokens for item in entries):
        view = await _halve(deps, state, largest, compaction_input, max_tokens)
        if view is not None:
            return view
    if (view := view_after_overflow(compaction_input, max_tokens)) is not None:
        return view
    return (
        await _halve(deps, state, largest, compaction_input, max_tokens)
        if largest is not None
        else None
    )


async def _halve(
    deps: BuildDependencies,
    state: BuildState,
    largest: Entry,
    compaction_input: CompactionInput,
    max_tokens: int,
) -> View | None:
    """Return the view with half of a text, None where the text is short or that is too much."""
    if largest.tokens < 2 * MIN_SHORTENED_TOKENS:
        return None
    shortened = await shorten_messages(deps, state, {largest.seq: largest.tokens // 2})
    view = with_shortened(state.view, shortened)
    return view if shortened and compaction_input.tokens_in(view) <= max_tokens else None
