"""Messages on the wire."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ConfigDict, Field

from app.blobs.blobs import ToolOutputRef
from app.common.answers import AnyObject, answer
from app.common.schema_errors import NAME_PATTERN
from app.conversations.visibility import Visibility
from app.formats.message import FormatName, Role
from app.http.cursors import Page
from app.http.fields import (
    MAX_SEQ,
    Format,
    MessageObject,
    RequestSchema,
    ResponseSchema,
    Threshold,
    examples,
)
from app.models.budget import ContextBudget, Pressure

_ID = "0199a1b2-5d6e-7f80-9a1b-2c3d4e5f6071"


class MessagesAppend(RequestSchema):
    """A batch to append: all messages or none."""

    model_config = examples(
        {
            "messages": [
                {"role": "user", "content": "What is the weather in Bergen?"},
                {"role": "assistant", "content": "It rains, 8 degrees."},
            ],
            "expected_seq": 0,
        },
    )

    messages: list[MessageObject]
    """1 to 1000 messages in `format`: chat messages, Responses items, Anthropic messages or
    Gemini contents. Consecutive Responses items of the model become one message, `{"role":
    "assistant", "output": [items]}`. A message with several tool results becomes several
    messages. A Gemini call or response without an id has its name as id, the nth of a name in
    its content `name#n`."""
    format: Format = FormatName.OPENAI_CHAT
    expected_seq: int | None = Field(default=None, ge=0, le=MAX_SEQ)
    """409 unless this is the newest seq of the log."""


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


@answer()
@dataclass(frozen=True, slots=True)
class AppendAnswer:
    """The stored batch, and the use of the context window."""

    messages: list[AppendedMessage]
    """The messages of the batch, in order."""
    head_seq: int
    """Seq of the newest message."""
    pressure: Pressure | None = None
    """Null without a context window."""
    notice: bool | None = None
    """Whether `notice_at` is reached."""
    next_threshold: Threshold | None = None
    """The next threshold."""
    tokens_to_next: int | None = None
    """Tokens left until the next threshold."""
    budget: ContextBudget | None = None
    """The context window and its use."""
    warnings: tuple[str, ...] = ()
    """`tool_output_inline`: the blob store failed, so the whole results are in their messages."""
    system_section: str | None = None
    """The section that has the text of the system messages at the beginning of the batch; they
    are not stored as messages. Null where it had none, or the log keeps them."""


_STORED: dict[str, Any] = {
    "role": "user",
    "content": "What is the weather in Bergen?",
    "id": _ID,
    "seq": 1,
    "turn": 1,
    "token_count": 12,
    "format": "openai_chat",
    "created_at": "2026-01-05T09:30:00.123456+00:00",
    "redacted_at": None,
    "conversation_id": "0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b",
    "agent_id": None,
    "output_ref": None,
    "content_truncated": False,
    "content_collected": False,
    "pinned": False,
    "visibility": {
        "state": "summarised",
        "compaction_id": "0199a1b2-7788-7a9b-8c0d-1e2f30415263",
        "restored_at": None,
    },
    "given": None,
}


class ShownMessage(ResponseSchema):
    """A message as it was sent, with fields of the service."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"examples": [_STORED]})

    id: str
    """Its id in the conversation."""
    seq: int
    """Its position, from 1 without gaps."""
    turn: int
    """Number of user messages up to it."""
    role: Role
    """Role of the message."""
    token_count: int
    """Its tokens, including reasoning."""
    format: FormatName
    """The format in which it was sent."""
    created_at: datetime
    """When it was received."""
    redacted_at: datetime | None
    """When its content was replaced by a tombstone; null for other messages."""
    conversation_id: str
    """The conversation it belongs to."""
    agent_id: str | None
    """The agent of that conversation."""
    output_ref: ToolOutputRef | None
    """Reference to read a tool result by; null for other messages."""
    content_truncated: bool
    """Whether only the preview of a result is returned."""
    content_collected: bool
    """Whether garbage collection deleted the whole result."""
    pinned: bool
    """Whether it is pinned, so that no compaction hides it."""
    visibility: Visibility
    """How the current context shows it."""
    given: AnyObject | None
    """Fields of the original message that fields of the service replace; null without any."""


class MessagePage(Page[ShownMessage]):
    """Messages in the requested order."""


class Pinned(ResponseSchema):
    """The messages that were pinned or unpinned."""

    seqs: list[int]
    """Seqs of the message with its call group, or of its turn; ascending."""


class RedactionRequest(RequestSchema):
    """Why a message is redacted."""

    model_config = examples({"reason": "The user withdrew consent"})

    reason: str | None = Field(default=None, max_length=500, pattern=NAME_PATTERN)
    """Kept in the record and in the event; it should quote no content."""
