"""Renders the messages of a view into payload items, and writes the notes beside them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import assert_never

from app.blobs.preview import COMPACT_CONTEXT
from app.common.concurrency import in_thread_if
from app.context.payload_cache import LONG_BYTES, CachedPayload
from app.context.state import BuildDependencies, BuildState
from app.conversations.messages.row import LogRow
from app.conversations.service_notes import MAX_ROUNDS, Notes, percent_of
from app.conversations.view import View, spans_through
from app.conversations.views import lasting_agent_tools
from app.formats import PROVIDERS
from app.formats.message import FormatName
from app.payload import assembler_of
from app.policy.policy import DynamicPosition
from app.prompt.resolved_settings import STUB_TOOL
from app.repositories import Repositories

_THREAD_BYTES = 200_000
"""Rows with more text than this are rendered in a thread, off the event loop."""


async def render(
    deps: BuildDependencies, state: BuildState, view: View, kept_tools: tuple[str, ...]
) -> BuildState:
    """Render this view, unless it is rendered already, and write the payload's notes."""
    rendered = state.rendered
    if rendered is None or not can_extend(rendered, state):
        state = await render_view(deps, replace(state, view=view))
    elif rendered.view != view:
        if _renders_alike(rendered, view):
            rendered.show(view)
            state = replace(state, view=view)
        else:
            state = await render_view(deps, replace(state, view=view))
    return await noted(state, kept_tools)


async def noted(state: BuildState, kept_tools: tuple[str, ...]) -> BuildState:
    """Write the notes of a rendered payload."""
    assert state.rendered is not None
    return await state.rendered.call(with_notes, state, kept_tools)


def _renders_alike(rendered: CachedPayload, view: View) -> bool:
    """Whether a payload that no other build has yet only replays other reasoning, and has none."""
    assembler = rendered.assembler
    if rendered.epoch_id or assembler.has_reasoning or assembler.drops_reasoning:
        return False
    if not assembler.provider.names_family:
        return False  # others may have reasoning that counts nothing
    other = replace(
        rendered.view, reasoning_after=view.reasoning_after, reasoning_of=view.reasoning_of
    )
    return other == view


async def render_view(deps: BuildDependencies, state: BuildState) -> BuildState:
    """Read the messages of the view and render them."""
    conversation = state.input.conversation
    async with deps.database.session() as session:
        rows = await read_rows(
            session,
            conversation.conversation_id,
            state.format,
            state.view,
            conversation.state.head_seq,
        )
    await deps.long_build.hold(rows)
    rendered = await in_thread_if(_are_long(rows), _render, state, rows)
    return await rendered.call(state.with_rendered, rendered)


async def read_rows(
    session: Repositories, conversation_id: str, format: FormatName, view: View, through_seq: int
) -> list[LogRow]:
    """Read the messages that a view shows up to a seq, for rendering in a format."""
    return await session.contexts.rows(
        conversation_id,
        spans_through(view.spans, through_seq),
        as_chat=PROVIDERS[format].is_stored,
        results_cleared_through=view.results_cleared_through,
        uncleared_results=view.uncleared_results,
    )


def _render(state: BuildState, rows: Sequence[LogRow]) -> CachedPayload:
    resolved = state.resolved
    assembler = assembler_of(state.format)(
        state.view,
        resolved.count,
        state.named_tools,
        state.opening,
        resolved.defined_tool_names(state.tools),
    )
    rendered = CachedPayload("", "", state.view, assembler)
    assembler.expect(rows)
    for row in rows:
        rendered.add(row)
    assembler.finish()
    return rendered


def can_extend(cached: CachedPayload, state: BuildState) -> bool:
    """Whether a cached payload was rendered with the opening and tools of this build."""
    resolved, assembler = state.resolved, cached.assembler
    return (
        assembler.mentionable_tools == state.named_tools
        and assembler.opening == state.opening
        and assembler.defined_tools == resolved.defined_tool_names(state.tools)
    )


async def extended(
    deps: BuildDependencies, state: BuildState, cached: CachedPayload, rows: Sequence[LogRow]
) -> CachedPayload:
    """Return a cached payload with new rows; a concurrent build may have added some already.

    Where they or it are long, rows are added in a thread, to a copy: concurrent builds read the
    cached one meanwhile.
    """
    if not _are_long(rows) and cached.assembler.size_bytes <= LONG_BYTES:
        _extend(cached, rows)
        return cached
    copied = cached.copied()
    await asyncio.to_thread(_extend, copied, rows)
    deps.cache.put(state.attempt.cache_key, copied)
    return copied


def _are_long(rows: Iterable[LogRow]) -> bool:
    return sum(len(row.text) for row in rows) > _THREAD_BYTES


def _extend(cached: CachedPayload, rows: Iterable[LogRow]) -> None:
    for row in rows:
        if row.seq > cached.assembler.rendered_through and cached.view.shows(row.seq):
            cached.add(row)


def with_notes(state: BuildState, kept_tools: tuple[str, ...]) -> BuildState:
    """Write the notes of a rendered payload, and add the agent tools that its text mentions.

    A usage note that does not fit together with the tool that it names names none, and is left out
    where even that does not fit.
    """
    addable = (COMPACT_CONTEXT,) if state.may_add_tools else state.last_agent_tools
    named = state.resolved.named_agent_tools(state.resolved.agent_tools(addable))
    noted = state
    for names_tool in (True, False) if COMPACT_CONTEXT in named else (False,):
        noted = _with_note_and_tools(state, kept_tools, names_tool)
        if noted.notes.percent is None or noted.fits:
            return noted
    state = _replace_notes(noted, replace(noted.notes, percent=None))
    return _with_agent_tools(state, needed_agent_tools(state, kept_tools))


def _with_note_and_tools(
    state: BuildState, kept_tools: tuple[str, ...], names_tool: bool
) -> BuildState:
    tools = kept_tools
    for _ in range(MAX_ROUNDS):  # the percentage in the note includes the tools that it mentions
        state = _with_usage_note(state, names_tool)
        tools = needed_agent_tools(state, tools)
        if tools == state.tools.agent_tools:
            break
        state = _with_agent_tools(state, tools)
    return state


def needed_agent_tools(state: BuildState, kept: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the agent tools that items and notes mention, the lasting and the kept ones.

    In a tool loop that has none of its own they are those of the last epoch. Where there would be
    no tool at all, it is a stub if Anthropic demands a tool definition because the history has
    calls.
    """
    assert state.items is not None
    view = state.view
    if state.may_add_tools:
        lasting = lasting_agent_tools(
            state.resolved.policy,
            has_placeholders=view.results_cleared_through > 0,
            hides_messages=view.hides_messages,
        )
        wanted = {*state.items.mentions, *lasting, *kept}
    else:
        wanted = set(state.last_agent_tools)
    tools = state.resolved.agent_tools(wanted | state.notes.mentions)
    has_tools = bool(tools or state.resolved.tools)
    if PROVIDERS[state.format].needs_tools and state.items.has_calls and not has_tools:
        return (STUB_TOOL.name,)
    return tools


def _with_agent_tools(state: BuildState, names: tuple[str, ...]) -> BuildState:
    return replace(state, tools=state.tools.with_agent_tools(names))


def _with_usage_note(state: BuildState, names_tool: bool) -> BuildState:
    state = _replace_notes(state, Notes(None, len(state.tools.deferred), names_tool))
    limits = state.limits
    for _ in range(MAX_ROUNDS):
        used = state.usage.total
        if state.notes.percent is None and not limits.reached(used, limits.notice_at):
            break
        percent = percent_of(used, limits)
        if percent == state.notes.percent:
            break
        state = _replace_notes(state, replace(state.notes, percent=percent))
    return state


def _replace_notes(state: BuildState, notes: Notes) -> BuildState:
    if notes == state.notes:
        return state
    position = state.resolved.policy.dynamic_position
    match position:
        case DynamicPosition.TAIL:
            texts: tuple[str, ...] = (*state.dynamic_texts, *notes.texts)
        case DynamicPosition.BEFORE_WINDOW:
            texts = notes.texts
        case DynamicPosition.SYSTEM:
            texts = ()
        case _:
            assert_never(position)
    tail, items = state.resolved.dynamic_texts_of(texts), state.items
    if tail != state.tail and state.rendered is not None:
        items = state.rendered.assembler.items(tail)
    return replace(state, notes=notes, tail=tail, items=items)
