"""Renders the messages of a view into payload items."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace

from app.domain.common.messages import FormatName
from app.domain.conversations.log.row import LogRow
from app.domain.conversations.view import spans_through
from app.domain.payload.assemblers import ASSEMBLERS
from app.services.payload.payload_cache import CachedPayload
from app.services.payload.pipeline.dependencies import BuildDependencies
from app.services.payload.pipeline.epoch import EpochChoice
from app.services.payload.pipeline.notes import with_notes
from app.services.payload.pipeline.state import BuildState

_THREAD_BYTES = 200_000
"""Text of the rows from which they are rendered in a thread, off the event loop."""


async def render(deps: BuildDependencies, state: BuildState, epoch: EpochChoice) -> BuildState:
    """Render the view of an epoch, unless that is done, and write the payload's notes."""
    if state.rendered is None or state.rendered.view != epoch.start.view:
        state = await render_view(deps, replace(state, view=epoch.start.view))
    return with_notes(state, epoch.kept_tools)


async def render_view(deps: BuildDependencies, state: BuildState) -> BuildState:
    """Read the messages of the view and render them."""
    view, head_seq = state.view, state.read.conversation.state.head_seq
    rows: list[LogRow] = []
    async with deps.database.session() as session:
        for span in spans_through(view.spans, head_seq):
            rows += await session.contexts.rows(
                state.attempt.conversation_id,
                span.start,
                span.end,
                as_chat=state.format is FormatName.OPENAI_CHAT,
                trimmed_through=view.trimmed_through,
                untrimmed=view.untrimmed,
            )
    return state.with_rendered(await render_rows(state, rows))


async def render_rows(state: BuildState, rows: Sequence[LogRow]) -> CachedPayload:
    """Render all rows of the view."""
    if sum(len(row.text) for row in rows) > _THREAD_BYTES:
        return await asyncio.to_thread(_render, state, rows)
    return _render(state, rows)


def _render(state: BuildState, rows: Sequence[LogRow]) -> CachedPayload:
    resolved = state.resolved
    assembler = ASSEMBLERS[state.format](
        state.view,
        resolved.count,
        resolved.nameable,
        state.opening,
        resolved.defined(state.tools),
    )
    rendered = CachedPayload("", "", state.view, assembler)
    for row in rows:
        rendered.add(row)
    assembler.finish()
    return rendered


def can_extend(cached: CachedPayload, state: BuildState) -> bool:
    """Whether a cached payload has the texts and tools of this build beside the messages."""
    resolved, assembler = state.resolved, cached.assembler
    return (
        assembler.tools == resolved.nameable
        and assembler.opening == state.opening
        and assembler.defined == resolved.defined(state.tools)
    )


def extend(cached: CachedPayload, rows: Iterable[LogRow]) -> None:
    """Render new rows into a cached payload; a concurrent build may have added some already."""
    for row in rows:
        if row.seq > cached.assembler.rendered_through and cached.view.shows(row.seq):
            cached.add(row)
