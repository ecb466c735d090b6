"""Chooses the view that a build starts from: the last epoch's while it holds, else a new one."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter

from app.common.errors import ServiceUnavailable
from app.compaction.reduction import RESULTS_CLEARED
from app.compaction.strategies import STRATEGIES
from app.compaction.summary_budget import history_budget
from app.context.history import can_extend, extended, render_view
from app.context.state import BuildDependencies, BuildState, Changed
from app.conversations.epochs import BuildInput, EpochStart, epoch_start_from, is_view_current
from app.conversations.plans import SlidingCut
from app.conversations.sent_media import MEDIA_LEFT_OUT
from app.conversations.text_shortening import MESSAGES_SHORTENED
from app.conversations.turns import Entry, newest_user_message
from app.conversations.view import Span, View, spans_beside, spans_through, union
from app.conversations.views import base_view, lacks_summary, view_for_model, with_omission_note
from app.policy.policy import StrategyName
from app.prompt.resolved_settings import PayloadTools, accepts_all_tools

_MAX_UNKNOWN_TOKENS = 260_000
"""How many tokens are rendered before it is known whether they fit."""


async def choose_view(deps: BuildDependencies, state: BuildState) -> BuildState | Changed:
    """Return the state to start from, rendered unless its history may be far too long."""
    resolved, last_epoch, format = state.resolved, state.last_epoch, state.format
    slides = resolved.policy.strategy is StrategyName.SLIDING_WINDOW
    start = epoch_start_from(last_epoch.start_json) if last_epoch is not None else None
    degraded: tuple[str, ...] = ()
    epoch_tools: PayloadTools | None = None
    is_current = (
        start is not None
        and _is_current(state, start, state.stored.view_version)
        and all(
            start.view.shows(seq) and not start.view.clears_result(seq) for seq in state.input.pins
        )
    )
    if is_current and last_epoch is not None and start is not None:
        view, degraded = start.view, start.degraded
        if last_epoch.tools_hash == resolved.tools_hash:
            epoch_tools = start.tools
    else:
        state = replace(state, input=await _with_active_view(deps, state.input))
        conversation_state = state.stored
        view = replace(
            base_view(conversation_state, state.input.view, resolved.policy),
            reasoning_of=resolved.accepted_reasoning(format),
            late_through=conversation_state.head_seq,
            reasoning_after=start.view.reasoning_after if start is not None else 0,
        )
        view = view_for_model(view, resolved.model or "", format)
        is_sent = state.attempt.is_preview or view.sent_item is not None
        if not is_sent and lacks_summary(view):
            return await _add_missing_summary(deps, state)
        if slides and start is not None and _keeps_sliding_window(state, start):
            view = replace(view, spans=start.view.spans)
    if view.shortened:
        degraded = (*degraded, MESSAGES_SHORTENED)
    if view.media_cut is not None:
        degraded = (*degraded, MEDIA_LEFT_OUT)
    state = replace(state, view=view).degrade(*degraded)
    state = state.with_dynamic_texts(resolved.dynamic(state.attempt.settings))
    if view.provider_item is not None and view.sent_item is None:
        state = await show_newest_user(deps, state)
    state = await _choose_tools(deps, state, epoch_tools)
    state = await _with_history(deps, state, is_current=is_current)
    return _slide(state) if slides else state


async def _add_missing_summary(deps: BuildDependencies, state: BuildState) -> Changed:
    """Summarise what a provider's item stands for, where this payload cannot send it."""
    attempt = state.attempt
    degraded = await deps.compaction.summarise_behind_item(
        attempt.tenant_id,
        attempt.conversation_id,
        attempt.settings,
        state.stored.view_version,
    )
    return Changed(replace(attempt, degraded=tuple(dict.fromkeys((*attempt.degraded, *degraded)))))


def _is_current(state: BuildState, start: EpochStart, view_version: int) -> bool:
    """Whether the last epoch's view is the one of this version of the conversation's."""
    epoch = state.last_epoch
    return epoch is not None and is_view_current(
        epoch, start, state.resolved, state.limits, view_version
    )


def _keeps_sliding_window(state: BuildState, start: EpochStart) -> bool:
    """Whether the last N messages are where they were, so that the log need not be read.

    They are when tool results were cleared since, and nothing else happened.
    """
    conversation_state = state.stored
    return (
        conversation_state.view_cause == RESULTS_CLEARED
        and _is_current(state, start, conversation_state.view_version - 1)
        and not start.degraded
        and all(map(start.view.shows, state.input.pins))
    )


async def _with_active_view(deps: BuildDependencies, build_input: BuildInput) -> BuildInput:
    """Read the active compaction's view, which the first read leaves out for a cached epoch."""
    conversation = build_input.conversation
    if build_input.view is not None or conversation.state.compaction_id is None:
        return build_input
    async with deps.database.session() as session:
        receipt = await session.contexts.find_compaction(
            conversation.conversation_id, conversation.state.compaction_id
        )
    return replace(build_input, view=receipt.view if receipt is not None else None)


async def _choose_tools(
    deps: BuildDependencies, state: BuildState, epoch_tools: PayloadTools | None
) -> BuildState:
    """Choose which tools are deferred: as before in an epoch, else by their last use.

    A tool that a search found in this turn is defined, which ends the epoch.
    """
    resolved, format = state.resolved, state.format
    promoted = state.stored.promoted_now
    if epoch_tools is not None and not set(promoted).intersection(epoch_tools.deferred):
        return state if epoch_tools == state.tools else replace(state, tools=epoch_tools)
    deferred = resolved.deferral(format, promoted=promoted)
    if deferred:
        try:
            async with deps.database.session() as session:
                last_used = await session.log.last_used(state.attempt.conversation_id)
            deferred = resolved.deferral(format, last_used, promoted)
        except ServiceUnavailable:
            state = state.degrade("tool_deferral")
            if accepts_all_tools(resolved, format) and not resolved.has_last_resort(deferred):
                deferred = ()
    agent_tools = resolved.agent_tools(state.last_agent_tools if epoch_tools is not None else ())
    is_native = bool(deferred) and resolved.defers_natively(format)
    return replace(state, tools=PayloadTools(agent_tools, deferred, is_native))


async def _with_history(
    deps: BuildDependencies, state: BuildState, *, is_current: bool
) -> BuildState:
    """Render the history, by the payload cache or the log; only read entries of a long one.

    One that is too long would be rendered in vain. That of the last epoch's view probably fits.
    """
    build_input, last_epoch, cached = state.input, state.last_epoch, state.cached
    # Only a payload of the same view is extended by the rows that were read.
    is_warm = (
        last_epoch is not None
        and state.cached_epoch_id == last_epoch.epoch_id
        and last_epoch.view_version == state.stored.view_version
    )
    if is_warm and cached is not None and cached.view == state.view and can_extend(cached, state):
        await deps.long_build.hold(build_input.rows)
        cached = await extended(deps, state, cached, build_input.rows)
        return await cached.call(state.with_rendered, cached)
    if is_current or state.stored.shown_tokens <= _MAX_UNKNOWN_TOKENS:
        return await render_view(deps, state)
    return replace(state, entries=await read_entries(deps, state, state.view))


async def read_entries(deps: BuildDependencies, state: BuildState, view: View) -> list[Entry]:
    """Read the entries that a view shows."""
    entries: list[Entry] = []
    async with deps.database.session() as session:
        for span in spans_through(view.spans, state.stored.head_seq):
            entries += await session.log.entries(
                state.attempt.conversation_id, span.start, span.end
            )
    return entries


async def show_newest_user(deps: BuildDependencies, state: BuildState) -> BuildState:
    """Show the newest user message, which a provider's item stands for that is not sent."""
    view = state.view
    newest = newest_user_message(await read_entries(deps, state, View(spans=view.window)))
    if newest is None or view.shows(newest.seq):
        return state
    spans = union((*view.spans, Span(newest.seq, newest.seq + 1)))
    entries = sorted((*state.entries, newest), key=attrgetter("seq"))
    return replace(state, view=with_omission_note(replace(view, spans=spans)), entries=entries)


def _slide(state: BuildState) -> BuildState:
    """Move the view to the last N messages."""
    resolved, policy = state.resolved, state.resolved.policy
    budget = history_budget(state.limits, policy, resolved.raw_fixed.fixed, 0, resolved.factor)
    plan = STRATEGIES[policy.strategy].plan(state.plan_entries, None, budget, policy)
    if not isinstance(plan, SlidingCut):
        return state
    spans = spans_beside(Span(1, plan.tail_start), plan.kept_seqs, state.view.spans)
    if spans == state.view.spans:
        return state
    return state.with_narrower_view(replace(state.view, spans=spans, note=None))
