"""The notes of a payload and the service's own tools that its text mentions."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from app.domain.common.messages import FormatName
from app.domain.common.policy import DynamicPosition
from app.domain.payload.service_notes import MAX_ROUNDS, Notes, percent_of
from app.domain.prompt.resolved_settings import STUB_TOOL
from app.domain.tool_output.preview import COMPACT_CONTEXT
from app.services.payload.pipeline.state import BuildState


def with_notes(state: BuildState, kept_tools: tuple[str, ...]) -> BuildState:
    """Write the notes of a rendered payload, and add the own tools that its text mentions.

    A notice that leaves no space for the payload is left out.
    """
    extra = kept_tools
    for _ in range(MAX_ROUNDS):  # a notice counts the tools that it brings
        state = _with_notice(state)
        extra = own_tools(state, extra)
        if extra == state.tools.extra:
            break
        state = replace(state, tools=replace(state.tools, extra=extra))
    if state.notes.percent is not None and not state.fits:
        state = _replace_notes(state, replace(state.notes, percent=None))
        state = replace(state, tools=replace(state.tools, extra=own_tools(state, kept_tools)))
    return state


def own_tools(state: BuildState, kept: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the tools that rendered items need besides the caller's, with those kept.

    They are own tools that items and notes mention, or a stub where Anthropic demands a tool
    definition because the history has calls.
    """
    assert state.items is not None
    own = state.resolved.agent_tools({*state.items.mentions, *state.notes.mentions, *kept})
    has_tools = bool(own or state.resolved.tools)
    if state.format is FormatName.ANTHROPIC and state.items.has_calls and not has_tools:
        return (STUB_TOOL.name,)
    return own


def _with_notice(state: BuildState) -> BuildState:
    names_tool = COMPACT_CONTEXT in state.resolved.nameable
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
    position = state.resolved.policy.dynamic_position
    match position:
        case DynamicPosition.TAIL:
            texts: tuple[str, ...] = (*state.dynamic, *notes.texts)
        case DynamicPosition.BEFORE_WINDOW:
            texts = notes.texts
        case DynamicPosition.SYSTEM:
            texts = ()
        case _:
            assert_never(position)
    tail, items = state.resolved.tail(texts), state.items
    if tail != state.tail and state.rendered is not None:
        items = state.rendered.assembler.items(tail)
    return replace(state, notes=notes, tail=tail, items=items)
