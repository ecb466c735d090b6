"""Appended messages: their positions in the log, and comparison with messages stored before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.blobs.blobs import ToolOutputRef
from app.blobs.restoring import is_same_result
from app.common import json_text
from app.common.answers import answer
from app.common.errors import Conflict
from app.common.pages import PAGE_BYTES, Bound
from app.conversations.budget_schemas import READING
from app.conversations.conversation import Conversation
from app.conversations.messages.batch import Append, BatchShape
from app.conversations.messages.draft import Draft
from app.conversations.messages.row import StoredMessage
from app.formats.message import FormatName, Role
from app.http.fields import Threshold
from app.models.budget import ContextBudget, Pressure
from app.repositories import Repositories


@answer()
@dataclass(frozen=True, slots=True)
class AppendedMessage:
    """The position of a message in the log."""

    id: str
    """The caller's id, or one that the service created."""
    seq: int
    """Its position, from 1 without gaps."""
    turn: int
    """Number of user messages up to it."""
    role: Role
    """Role of the message."""
    token_count: int
    """Its tokens, including reasoning."""
    output_ref: ToolOutputRef | None
    """Reference to read a tool result by; null for other messages."""


@answer(
    {
        "messages": [
            {
                "id": "0199a1b2-5d6e-7f80-9a1b-2c3d4e5f6071",
                "seq": 1,
                "turn": 1,
                "role": "user",
                "token_count": 12,
                "output_ref": None,
            }
        ],
        "head_seq": 1,
        **READING,
        "warnings": [],
        "system_section": "system",
    }
)
@dataclass(frozen=True, slots=True)
class AppendAnswer:
    """The stored batch, and the use of the context window."""

    messages: list[AppendedMessage]
    """The messages of the batch, in order."""
    head_seq: int
    """Seq of the newest message."""
    pressure: Pressure | None
    """Null without a context window."""
    notice: bool | None
    """Whether `notice_at` is reached."""
    next_threshold: Threshold | None
    """The next threshold."""
    tokens_to_next: int | None
    """Tokens left until the next threshold."""
    budget: ContextBudget | None
    """The context window and its use."""
    warnings: tuple[str, ...] = ()
    """`tool_output_inline`: the blob store failed, so the whole results are in their messages."""
    system_section: str | None = None
    """The section that has the text of the system messages at the beginning of the batch; they
    are not stored as messages. Null where it had none, or the log keeps them."""


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
    first, turns = after.state.head_seq - len(shape.drafts) + 1, shape.turns
    turns_before = after.state.turns - turns[-1]
    positions = []
    placed = zip(shape.drafts, ids, turns, strict=True)
    for seq, (draft, message_id, turn) in enumerate(placed, start=first):
        tokens = draft.tokens + draft.reasoning_tokens
        ref = draft.output.ref_in(message_id, seq) if draft.output is not None else None
        positions.append(
            AppendedMessage(message_id, seq, turns_before + turn, draft.role, tokens, ref)
        )
    return positions


def position_of(message: StoredMessage) -> AppendedMessage:
    """Return the position of a stored message."""
    return AppendedMessage(
        message.id,
        message.seq,
        message.turn,
        Role(message.role),
        message.token_count,
        message.output_ref,
    )


def check_position(current: Conversation, request: Append) -> None:
    """Raise Conflict when the batch expects another head of the log."""
    state = current.state
    if request.expected_seq is not None and request.expected_seq != state.head_seq:
        raise Conflict(
            f"The log's head is {state.head_seq}, not {request.expected_seq}",
            {"head_seq": state.head_seq, "expected_seq": request.expected_seq},
        )
