"""Appended messages: their positions in the log, and comparison with messages stored before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.blobs.blobs import ToolOutputRef
from app.blobs.restoring import is_same_result
from app.common import json_text
from app.common.errors import Conflict
from app.common.pages import PAGE_BYTES, Bound
from app.conversations.conversation import Conversation
from app.conversations.messages.batch import Append, BatchShape
from app.conversations.messages.draft import Draft
from app.conversations.messages.stored_message import StoredMessage
from app.formats.message import FormatName
from app.models.budget import ContextBudget
from app.repositories import Repositories


@dataclass(frozen=True, slots=True)
class AppendedMessage:
    """The position of a message in the log; `token_count` includes its reasoning."""

    id: str
    seq: int
    turn: int
    role: str
    token_count: int
    output_ref: ToolOutputRef | None


@dataclass(frozen=True, slots=True)
class AppendAnswer:
    """The answer to an append; pressure and budget are None without a context window.

    `warnings` list what failed although all messages are stored. `system_section` is the section
    that has the first messages of the batch.
    """

    messages: list[AppendedMessage]
    head_seq: int
    pressure: str | None
    notice: bool | None
    next_threshold: str | None
    tokens_to_next: int | None
    budget: ContextBudget | None
    warnings: tuple[str, ...] = ()
    system_section: str | None = None


async def stored_with_ids(
    session: Repositories, conversation_id: str, ids: Sequence[str]
) -> AsyncIterator[StoredMessage]:
    """Yield the stored messages with these ids; only one page of them is in memory."""
    after_seq, has_more = 0, bool(ids)
    while has_more:
        page = await session.log.by_ids(conversation_id, ids, after_seq, Bound(PAGE_BYTES))
        for message in page:
            after_seq = message.seq
            yield message
        has_more = page.has_more


async def is_same_message(stored: StoredMessage, draft: Draft, format: FormatName) -> bool:
    """Whether a stored message is equal to a new one, even if they are offloaded differently."""
    if stored.format != format or stored.role != draft.role:
        return False
    output, new_output = stored.output, draft.stored_output
    if (output.ref if output else None) == (new_output.ref if new_output else None) and (
        stored.body.encode() == draft.body
    ):
        return True
    if output is not None and output.ref is not None:
        return await asyncio.to_thread(
            is_same_result, stored.body, output, draft.raw_message, format
        )
    return await asyncio.to_thread(_is_equal, stored.body, draft.raw_message)


def _is_equal(body: str, raw_message: Mapping[str, Any]) -> bool:
    return bool(json_text.loads(body) == json_text.loads(json_text.dump_stored(raw_message)))


def positions_of_drafts(
    after: Conversation, shape: BatchShape, ids: Sequence[str]
) -> list[AppendedMessage]:
    """Return the positions of a batch that is now the end of the log."""
    first = after.state.head_seq - len(shape.drafts) + 1
    turns_before = after.state.turns - shape.turns[-1]
    positions = []
    for offset, (draft, message_id) in enumerate(zip(shape.drafts, ids, strict=True)):
        turn = turns_before + shape.turns[offset]
        seq, tokens = first + offset, draft.tokens + draft.reasoning_tokens
        ref = draft.output.ref_in(message_id, seq) if draft.output is not None else None
        positions.append(AppendedMessage(message_id, seq, turn, draft.role, tokens, ref))
    return positions


def position_of(message: StoredMessage) -> AppendedMessage:
    """Return the position of a stored message."""
    return AppendedMessage(
        message.id, message.seq, message.turn, message.role, message.token_count, message.output_ref
    )


def check_position(current: Conversation, request: Append) -> None:
    """Raise Conflict when the batch expects another head of the log."""
    state = current.state
    if request.expected_seq is not None and request.expected_seq != state.head_seq:
        raise Conflict(
            f"The log's head is {state.head_seq}, not {request.expected_seq}",
            {"head_seq": state.head_seq, "expected_seq": request.expected_seq},
        )
