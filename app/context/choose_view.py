"""Chooses the view that a build starts from, and renders views with their notes.

The last epoch's view is shown while it holds. Its history is that of the payload cache, with the
rows that came since, or it is read from the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import attrgetter

from app.blobs.preview import COMPACT_CONTEXT
from app.common.concurrency import in_thread_if
from app.common.errors import ServiceUnavailable
from app.compaction.planning import history_budget
from app.compaction.reduction import REPEATED_CLEARED, RESULTS_CLEARED
from app.compaction.shown_history import ShownHistory
from app.compaction.strategies import STRATEGIES
from app.context.state import LONG_BYTES, BuildDependencies, BuildState, CachedPayload, Retry
from app.conversations.epoch import EpochStart, PromptChange
from app.conversations.from_rows import epoch_start_from
from app.conversations.messages.row import LogRow
from app.conversations.partial_messages import MEDIA_LEFT_OUT, MESSAGES_SHORTENED
from app.conversations.receipt import SlidingCut
from app.conversations.turns import Entry, newest_user_message
from app.conversations.view import Span, View, spans_beside, spans_through, union
from app.conversations.view_changes import (
    base_view,
    lacks_summary,
    lasting_agent_tools,
    view_for_model,
    with_omission_note,
)
from app.formats import PROVIDERS
from app.formats.message import FormatName, Role
from app.payload.assembler import Assembler
from app.payload.format_assemblers import assembler_of
from app.policy.policy import StrategyName
from app.prompt.resolved_settings import (
    STUB_TOOL,
    PayloadTools,
    ResolvedSettings,
    accepts_all_tools,
)
from app.prompt.sections import NOTE_ROUNDS, DynamicTexts, Notes, percent_of
from app.repositories import Repositories

_MAX_UNKNOWN_TOKENS = 260_000
"""How many tokens are rendered before it is known whether they fit."""
_THREAD_BYTES = 200_000
"""Rows with more text than this are rendered in a thread, off the event loop."""


async def choose_view(deps: BuildDependencies, state: BuildState) -> BuildState | Retry:
    """Return the state to start from, rendered unless its history may be far too long."""
    stored, resolved, last_epoch = state.stored, state.resolved, state.last_epoch
    slides = resolved.policy.strategy is StrategyName.SLIDING_WINDOW
    start = epoch_start_from(last_epoch.start_json) if last_epoch is not None else None
    current = start if is_current(state, start, stored.view_version) else None
    if current is not None and state.input.lacks_pin(current.view):
        current = None
    degraded: tuple[str, ...] = ()
    if current is not None:
        view, degraded = current.view, current.degraded
    else:
        view = await _new_view(deps, state, start)
        if view.sent_item is None and lacks_summary(view) and not state.attempt.is_dry_run:
            return await _add_missing_summary(deps, state)
        if slides and start is not None and _keeps_sliding_window(state, start):
            view = replace(view, spans=start.view.spans)
    degraded += (MESSAGES_SHORTENED,) if view.shortened else ()
    degraded += (MEDIA_LEFT_OUT,) if view.media_cut is not None else ()
    degraded += (REPEATED_CLEARED,) if view.repeated_results else ()
    texts = resolved.dynamic(state.attempt.settings)
    state = replace(state, view=view, dynamic_texts=texts).degrade(*degraded)
    if view.provider_item is not None and view.sent_item is None:
        state = await show_newest_user(deps, state)
    has_same_tools = last_epoch is not None and last_epoch.tools_hash == resolved.tools_hash
    epoch_tools = current.tools if current is not None and has_same_tools else None
    state = await _choose_tools(deps, state, epoch_tools)
    state = await _with_history(deps, state, is_known=current is not None)
    return _slide(state) if slides else state


def is_current(state: BuildState, start: EpochStart | None, view_version: int) -> bool:
    """Whether a build at this version of the conversation's view still shows the last epoch's."""
    epoch, limits = state.last_epoch, state.limits
    return (
        epoch is not None
        and start is not None
        and epoch.view_version == view_version
        and epoch.policy_hash == state.resolved.policy_hash
        and start.limits == (limits.context_window, limits.max_output_tokens)
    )


async def _new_view(deps: BuildDependencies, state: BuildState, start: EpochStart | None) -> View:
    stored, active, resolved = state.stored, state.input.view, state.resolved
    if active is None and stored.compaction_id is not None:
        # The first read leaves it out for a cached epoch.
        async with deps.database.session() as session:
            key, active_id = state.conversation_id, stored.compaction_id
            receipt = await session.contexts.find_receipt(key, active_id)
        active = receipt.view if receipt is not None else None
    view = replace(
        base_view(stored, active, resolved.policy),
        reasoning_of=resolved.accepted_reasoning(state.format),
        late_through=stored.head_seq,
        reasoning_after=start.view.reasoning_after if start is not None else 0,
    )
    return view_for_model(view, resolved.model or "", state.format)


async def _add_missing_summary(deps: BuildDependencies, state: BuildState) -> Retry:
    """Summarise what a provider's item stands for, where this payload cannot send it."""
    attempt = state.attempt
    degraded = await deps.compaction.summarise_before_item(
        attempt.tenant_id, attempt.conversation_id, attempt.settings, state.stored.view_version
    )
    return Retry(replace(attempt, degraded=tuple(dict.fromkeys((*attempt.degraded, *degraded)))))


def _keeps_sliding_window(state: BuildState, start: EpochStart) -> bool:
    """Whether the last N messages are where they were, so that the log need not be read.

    They are when tool results were cleared since, and nothing else happened.
    """
    return (
        state.stored.view_cause == RESULTS_CLEARED
        and is_current(state, start, state.stored.view_version - 1)
        and not start.degraded
        and all(map(start.view.shows, state.input.pins))
    )


async def _choose_tools(
    deps: BuildDependencies, state: BuildState, epoch_tools: PayloadTools | None
) -> BuildState:
    """Choose which tools are deferred: as before in an epoch, else by their last use.

    A tool that a search found in this turn is defined, which ends the epoch.
    """
    resolved, format = state.resolved, state.format
    promoted = state.stored.promoted_now
    if epoch_tools is not None and not set(promoted).intersection(epoch_tools.deferred):
        return replace(state, tools=epoch_tools)
    deferred = resolved.deferral(format, promoted=promoted)
    if deferred:
        try:
            async with deps.database.session() as session:
                last_used = await session.log.last_used(state.conversation_id)
            deferred = resolved.deferral(format, last_used, promoted)
        except ServiceUnavailable:
            state = state.degrade("tool_uses_unread")
            if accepts_all_tools(resolved, format):
                deferred = ()
    wanted = (
        _last_agent_tools(state) if epoch_tools is not None else _expected_agent_tools(deps, state)
    )
    agent_tools = resolved.agent_tools(wanted)
    is_native = bool(deferred) and resolved.defers_natively(format)
    return replace(state, tools=PayloadTools(agent_tools, deferred, is_native))


async def _with_history(
    deps: BuildDependencies, state: BuildState, *, is_known: bool
) -> BuildState:
    """Render the history, by the payload cache or the log; only read entries of a long one.

    One that is too long would be rendered in vain. That of the last epoch's view probably fits.
    """
    cached, rows, changes = state.cached, state.input.rows, state.changes
    if cached is not None and cached.view == state.view and _can_extend(cached, state):
        if _are_long(rows) or cached.assembler.size_bytes > LONG_BYTES:
            # Concurrent builds read the cached one while a thread adds to a copy.
            cached = cached.copied()
            async with deps.place_for(rows):
                await asyncio.to_thread(_extend, cached, rows, changes)
            deps.cache.put(state.attempt.cache_key, cached)
        else:
            _extend(cached, rows, changes)
        return await cached.call(state.with_rendered, cached)
    if is_known or state.stored.shown_tokens <= _MAX_UNKNOWN_TOKENS:
        return await render_view(deps, state)
    return replace(state, entries=await _read_entries(deps, state, state.view))


def _extend(
    cached: CachedPayload, rows: Iterable[LogRow], changes: tuple[PromptChange, ...]
) -> None:
    """Add new rows and changes; a concurrent build may have added some already."""
    cached.assembler.changes = changes
    for row in rows:
        if row.seq > cached.assembler.rendered_through and cached.view.shows(row.seq):
            cached.add(row)
    cached.assembler.finish()


async def _read_entries(deps: BuildDependencies, state: BuildState, view: View) -> list[Entry]:
    entries: list[Entry] = []
    async with deps.database.session() as session:
        for span in spans_through(view.spans, state.stored.head_seq):
            entries += await session.log.entries(state.conversation_id, span.start, span.end)
    return entries


async def show_newest_user(deps: BuildDependencies, state: BuildState) -> BuildState:
    """Show the newest user message where the provider's item for it is not sent."""
    view = state.view
    newest = newest_user_message(await _read_entries(deps, state, View(spans=view.window)))
    if newest is None or view.shows(newest.seq):
        return state
    spans = union((*view.spans, Span(newest.seq, newest.seq + 1)))
    entries = sorted((*state.entries, newest), key=attrgetter("seq"))
    return replace(state, view=with_omission_note(replace(view, spans=spans)), entries=entries)


def _slide(state: BuildState) -> BuildState:
    """Move the view to the last N messages."""
    resolved, policy = state.resolved, state.resolved.policy
    budget = history_budget(state.limits, policy, resolved.raw_fixed.fixed, 0, resolved.factor)
    plan = STRATEGIES[policy.strategy].plan(ShownHistory(state.plan_entries, None, budget, policy))
    if not isinstance(plan, SlidingCut):
        return state
    spans = spans_beside(Span(1, plan.tail_start), plan.kept_seqs, state.view.spans)
    if spans == state.view.spans:
        return state
    return state.with_view(replace(state.view, spans=spans, note=None))


# --- rendering ------------------------------------------------------------------------------------


async def render(
    deps: BuildDependencies, state: BuildState, view: View, kept_tools: tuple[str, ...]
) -> BuildState:
    """Render this view, unless it is rendered already, and write the payload's notes."""
    rendered = state.rendered
    if rendered is None or not (_can_extend(rendered, state) and _renders_alike(rendered, view)):
        state = await render_view(deps, replace(state, view=view))
    elif rendered.view != view:
        rendered.view = rendered.assembler.view = view
        state = replace(state, view=view)
    return await noted(state, kept_tools)


def _can_extend(cached: CachedPayload, state: BuildState) -> bool:
    """Whether a payload was rendered with the leading text, tools and changes of this build."""
    assembler, changes = cached.assembler, state.changes
    placed = assembler.changes[: assembler.placed]
    # A change that is not stored yet is not in the payloads of other builds.
    is_apart = state.has_new_change and len(placed) < len(changes)
    return (
        not is_apart
        and changes[: len(placed)] == placed
        and assembler.mentionable_tools == state.resolved.named_agent_tools(state.tools.agent_tools)
        and assembler.leading == state.leading
        and assembler.defined_tools == state.resolved.defined_tool_names(state.tools)
    )


def _renders_alike(rendered: CachedPayload, view: View) -> bool:
    """Whether a rendered payload is that of this view.

    A payload that no other build uses yet may also be that of a view which differs only in the
    limits of reasoning, if it has no reasoning. Only the Chat format tells that for certain.
    """
    if rendered.view == view:
        return True
    assembler = rendered.assembler
    if rendered.epoch_id or assembler.has_reasoning or assembler.drops_reasoning:
        return False
    return assembler.provider.names_family and view == replace(
        rendered.view, reasoning_after=view.reasoning_after, reasoning_of=view.reasoning_of
    )


async def render_view(deps: BuildDependencies, state: BuildState) -> BuildState:
    """Read the messages of the view and render them."""
    async with deps.database.session() as session:
        key, head_seq = state.conversation_id, state.stored.head_seq
        rows = await read_rows(session, key, state.format, state.view, head_seq)
    assembler = new_assembler(state.format, state.view, state.resolved, state.tools, state.leading)
    assembler.changes = state.changes
    async with deps.place_for(rows):
        rendered = await in_thread_if(_are_long(rows), rendered_rows, rows, assembler)
    return await rendered.call(state.with_rendered, rendered)


async def read_rows(
    session: Repositories, conversation_id: str, format: FormatName, view: View, through_seq: int
) -> list[LogRow]:
    """Read the messages that a view shows up to a seq, for rendering in a format."""
    return await session.contexts.rows(
        conversation_id,
        spans_through(view.spans, through_seq),
        as_chat=PROVIDERS[format].stores_items,
        results_cleared_through=view.results_cleared_through,
        uncleared_results=view.uncleared_results,
    )


def new_assembler(
    format: FormatName,
    view: View,
    resolved: ResolvedSettings,
    tools: PayloadTools,
    leading: DynamicTexts,
) -> Assembler:
    """Return what renders the history of a view."""
    return assembler_of(format)(
        view,
        resolved.count,
        resolved.named_agent_tools(tools.agent_tools),
        leading,
        resolved.defined_tool_names(tools),
    )


def rendered_rows(rows: Sequence[LogRow], assembler: Assembler) -> CachedPayload:
    """Return the rendered history of a view, of which these are the rows."""
    rendered = CachedPayload(assembler.view, assembler)
    assembler.expect(rows)
    for row in rows:
        rendered.add(row)
    assembler.finish()
    return rendered


def _are_long(rows: Iterable[LogRow]) -> bool:
    return sum(len(row.text) for row in rows) > _THREAD_BYTES


# --- notes and agent tools ------------------------------------------------------------------------


async def noted(state: BuildState, kept_tools: tuple[str, ...]) -> BuildState:
    """Write the notes of a rendered payload, and add the agent tools that its text mentions.

    A usage note that does not fit together with the tool that it names names none, and is left out
    where even that does not fit.
    """
    assert state.rendered is not None
    return await state.rendered.call(_noted, state, kept_tools)


def _noted(state: BuildState, kept_tools: tuple[str, ...]) -> BuildState:
    addable = (COMPACT_CONTEXT,) if _may_add_tools(state) else _last_agent_tools(state)
    named = state.resolved.named_agent_tools(state.resolved.agent_tools(addable))
    noted = state
    for names_tool in (True, False) if COMPACT_CONTEXT in named else (False,):
        noted, tools = state, kept_tools
        for _ in range(NOTE_ROUNDS):  # the percentage includes the tools that the note mentions
            noted = _with_usage_note(noted, names_tool)
            tools = needed_agent_tools(noted, tools)
            if tools == noted.tools.agent_tools:
                break
            noted = _with_agent_tools(noted, tools)
        if noted.notes.percent is None or noted.fits:
            return noted
    noted = noted.with_notes(replace(noted.notes, percent=None))
    return _with_agent_tools(noted, needed_agent_tools(noted, kept_tools))


def _with_usage_note(state: BuildState, names_tool: bool) -> BuildState:
    state = state.with_notes(Notes(None, len(state.tools.deferred), names_tool))
    limits = state.limits
    for _ in range(NOTE_ROUNDS):
        used = state.tokens.total
        if state.notes.percent is None and not limits.reached(used, limits.notice_at):
            break
        percent = percent_of(used, limits)
        if percent == state.notes.percent:
            break
        state = state.with_notes(replace(state.notes, percent=percent))
    return state


def _with_agent_tools(state: BuildState, names: tuple[str, ...]) -> BuildState:
    return replace(state, tools=state.tools.with_agent_tools(names))


def _last_agent_tools(state: BuildState) -> tuple[str, ...]:
    """Return the agent tools of the stream's last epoch."""
    epoch = state.input.epoch
    return epoch_start_from(epoch.start_json).tools.agent_tools if epoch is not None else ()


def _lasting_agent_tools(state: BuildState) -> tuple[str, ...]:
    return lasting_agent_tools(
        state.resolved.policy,
        has_placeholders=state.view.last_cleared_result > 0,
        hides_messages=state.view.hides_messages,
    )


def _expected_agent_tools(deps: BuildDependencies, state: BuildState) -> tuple[str, ...]:
    """Return the agent tools that the payload probably has; if it has others, it is rendered again.

    Whether tools may come depends on the newest message, which the payload cache may have.
    """
    if state.input.epoch is not None:
        cached = deps.cache.find(state.attempt.cache_key)
        if cached is None or cached.assembler.rendered_through < state.stored.head_seq:
            return ()
        if not _may_add_tools(replace(state, entries=cached.entries[-1:])):
            return _last_agent_tools(state)
    return () if state.view.shortened else (*_lasting_agent_tools(state), *state.stored.named_tools)


def _may_add_tools(state: BuildState) -> bool:
    """Whether agent tools may come or go: not in a tool loop, whose prefix that would break."""
    newest = state.entries[-1].role if state.entries else Role.USER
    has_calls = newest is Role.ASSISTANT and bool(state.stored.open_calls)
    in_loop = newest is Role.TOOL or has_calls
    return state.input.epoch is None or not in_loop or bool(state.resolved.agent_tools(()))


def needed_agent_tools(state: BuildState, kept: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the agent tools of the payload.

    These are the ones that items and notes mention, those that last, and `kept`; in a tool loop,
    where none may be added, those of the last epoch. If there is no tool at all, Anthropic demands
    a definition for the calls in the history: it gets a stub.
    """
    assert state.items is not None
    if _may_add_tools(state):
        wanted = {*state.items.mentions, *_lasting_agent_tools(state), *kept}
    else:
        wanted = set(_last_agent_tools(state))
    tools = state.resolved.agent_tools(wanted | state.notes.mentions)
    has_tools = bool(tools or state.resolved.tools)
    if PROVIDERS[state.format].needs_tools and state.items.has_calls and not has_tools:
        return (STUB_TOOL.name,)
    return tools
