"""Shortening as a read: how much of the oversized messages of a log to show."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from app.domain.compaction.reduction.text_shortening import READER_TOOLS, shortened_to
from app.domain.conversations.log.row import LogRow
from app.domain.conversations.view import ShortenedMessage
from app.domain.models.budget import Limits
from app.domain.prompt.resolved_settings import ResolvedSettings
from app.domain.tool_output.offloading import message_ref
from app.services.ports import Database

_THREAD_BYTES = 65_536
"""Text of the rows from which they are cut in a thread."""


async def shorts_for(
    database: Database,
    conversation_id: str,
    costs: Mapping[int, int],
    resolved: ResolvedSettings,
    *,
    as_chat: bool,
) -> list[ShortenedMessage]:
    """Return how to show the messages with these seqs so that none costs more than it may.

    Those whose texts are not what makes them large are left out. They are read as the build
    reads them: `as_chat` for openai_chat.
    """
    rows: list[LogRow] = []
    async with database.session() as records:
        for seq in costs:
            rows += await records.contexts.rows(conversation_id, seq, seq + 1, as_chat=as_chat)
    if sum(len(row.text) for row in rows) > _THREAD_BYTES:
        return await asyncio.to_thread(_shorts, rows, costs, resolved)
    return _shorts(rows, costs, resolved)


def _shorts(
    rows: Sequence[LogRow], costs: Mapping[int, int], resolved: ResolvedSettings
) -> list[ShortenedMessage]:
    most_bytes = resolved.policy.tool_output.max_message_bytes
    found = (
        shortened_to(
            row.message(),
            row.seq,
            message_ref(row.id, row.seq),
            costs[row.seq],
            most_bytes,
            resolved.count,
        )
        for row in rows
    )
    return [short for short in found if short is not None]


def reader_tokens(resolved: ResolvedSettings, offered: Sequence[str] = ()) -> int:
    """Return what the tools that read the rest of a message cost beside those offered already."""
    missing = (name for name in resolved.agent_tools(READER_TOOLS) if name not in offered)
    return resolved.extra_tokens(tuple(missing))


def text_room(resolved: ResolvedSettings, limits: Limits, beside: int) -> int:
    """Return the raw tokens that a window leaves for texts beside everything else."""
    return int(limits.capacity / resolved.factor) - resolved.raw_fixed.fixed - beside
