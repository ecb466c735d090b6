"""Shortened texts of oversized messages, read from the log [tool-output.shorten-oversized]."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from app.blobs.stored_output import message_ref
from app.conversations.messages.row import LogRow
from app.conversations.text_shortening import READER_TOOLS, shortened_to
from app.conversations.view import ShortenedMessage, Span
from app.models.budget import Limits
from app.prompt.resolved_settings import ResolvedSettings
from app.repositories import Database

_THREAD_BYTES = 65_536
"""Rows with more text are shortened in a thread."""


async def shortened_messages(
    database: Database,
    conversation_id: str,
    max_tokens: Mapping[int, int],
    resolved: ResolvedSettings,
    *,
    as_chat: bool,
) -> list[ShortenedMessage]:
    """Return messages shortened to their maximum of tokens, which `max_tokens` has by seq.

    A message that is large for another reason than its texts is left out. `as_chat` reads the
    messages as a build in the format openai_chat does.
    """
    spans = [Span(seq, seq + 1) for seq in max_tokens]
    async with database.session() as session:
        rows = await session.contexts.rows(conversation_id, spans, as_chat=as_chat)
    if sum(len(row.text) for row in rows) > _THREAD_BYTES:
        return await asyncio.to_thread(_shortened, rows, max_tokens, resolved)
    return _shortened(rows, max_tokens, resolved)


def _shortened(
    rows: Sequence[LogRow], max_tokens: Mapping[int, int], resolved: ResolvedSettings
) -> list[ShortenedMessage]:
    max_bytes = resolved.policy.tool_output.max_message_bytes
    shortened = (
        shortened_to(
            row.message(),
            row.seq,
            message_ref(row.id, row.seq),
            max_tokens[row.seq],
            max_bytes,
            resolved.count,
        )
        for row in rows
    )
    return [message for message in shortened if message is not None]


def reader_tool_tokens(resolved: ResolvedSettings, included: Sequence[str] = ()) -> int:
    """Return the tokens of the tools that read a cut message, without those in `included`."""
    missing = (name for name in resolved.agent_tools(READER_TOOLS) if name not in included)
    return resolved.agent_tool_tokens(tuple(missing))


def text_token_budget(resolved: ResolvedSettings, limits: Limits, other_tokens: int) -> int:
    """Return the tokens that the capacity leaves for texts beside fixed and other content.

    They are tokens of the counter, before the factor of the model's calibration.
    """
    return int(limits.capacity / resolved.factor) - resolved.raw_fixed.fixed - other_tokens
