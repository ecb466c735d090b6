"""Schemas of snapshots, forks and exports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, AliasChoices, ConfigDict, Field, WrapValidator

from app.common.answer_schemas import AnyObject, answer
from app.common.schema_errors import UUID_PATTERN
from app.common.texts import sendable
from app.conversations.messages.draft import is_message_id
from app.http.cursors import Page
from app.http.fields import MAX_SEQ, AgentId, ConversationId, Format, ModelName, RequestSchema, Time

MAX_DESCRIPTION = 10_000
MAX_IMPORTED = 50_000
"""Validation of this many messages takes a few seconds in a thread."""
EXAMPLE_ID, _TIME = "0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b", "2026-02-12T14:30:00.123456+00:00"
_EXAMPLE: dict[str, Any] = {
    **dict.fromkeys(("created_at", "window_start", "window_end"), _TIME),
    **{"snapshot_id": EXAMPLE_ID, "description": "Auth", "summary": "Tests of expiry are open."},
    **{"message_count": 1, "agent_id": None, "conversation_ids": [EXAMPLE_ID]},
    "models": [{"conversation_id": EXAMPLE_ID, "model": "claude-sonnet-4-5"}],
    "messages": [
        {
            **{"role": "user", "content": "Validate the tokens, please.", "id": "m1", "seq": 1},
            **{"conversation_id": EXAMPLE_ID, "format": "openai_chat", "created_at": _TIME},
            **dict.fromkeys(("content_truncated", "content_collected"), False),
            **dict.fromkeys(("output_ref", "given")),
        }
    ],
}


Description = Annotated[
    Annotated[str, AfterValidator(sendable)] | None, Field(max_length=MAX_DESCRIPTION)
]


def _message_id(value: str) -> str:
    if not is_message_id(value):
        raise ValueError("must be a string of 1 to 256 characters")
    return value


class SnapshotMessage(RequestSchema):
    """An original message, with its conversation and position."""

    model_config = ConfigDict(extra="allow")

    id: Annotated[str, AfterValidator(_message_id)]
    """Id of the message in its conversation."""
    conversation_id: ConversationId
    """The conversation of the message."""
    seq: int = Field(ge=1)
    """Seq of the message."""
    format: Format
    """The format of the message."""
    created_at: Time
    """When it was received."""
    output_ref: AnyObject | None
    """The stored output of a tool result; null for other messages."""
    content_truncated: bool
    """Whether a preview replaces the content of a tool result."""
    content_collected: bool
    """Whether the stored output was collected."""
    given: AnyObject | None
    """Fields of the original message with the name of a field of the service; null if there are
    none."""


def _either(name: str, earlier: str) -> Any:
    """Return the field of a file by its name, or by the one that it had in earlier files."""
    return Field(validation_alias=AliasChoices(name, earlier))


def _as_it_is(value: Any, check: Any) -> Any:
    check(value)
    return value


@answer()
@dataclass(frozen=True, slots=True)
class SnapshotModel:
    """The model of a conversation in a snapshot."""

    conversation_id: ConversationId
    """The conversation."""
    model: ModelName
    """The model that its payloads were built for, its own or an inherited one. One that is not
    listed has the model of its agent or of the service."""


@answer()
@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot without its messages; its conversations have their public ids."""

    snapshot_id: Annotated[str, _either("snapshot_id", "session_id"), Field(pattern=UUID_PATTERN)]
    """Id of the snapshot."""
    created_at: Annotated[Time, _either("created_at", "timestamp")]
    """When it was saved."""
    description: Description
    """The purpose of the snapshot."""
    summary: Annotated[str, AfterValidator(sendable)]
    """A few sentences on what was accomplished, decided and left unfinished; `(summary
    generation failed)` if the model failed."""
    message_count: Annotated[int, Field(ge=0, le=MAX_SEQ)]
    """The number of messages."""
    window_start: Time
    """Start of the window: the last clear or the rolling window, else the time of the first
    message."""
    window_end: Time
    """End of the window."""
    agent_id: AgentId | None
    """The agent whose conversations were saved, or of the conversation."""
    conversation_ids: tuple[str, ...]
    """The conversations that it has messages of."""
    models: tuple[SnapshotModel, ...]
    """The models of its conversations, without those that have none."""


class SnapshotPage(Page[Snapshot]):
    """Snapshots, newest first."""


@answer(_EXAMPLE)
@dataclass(frozen=True, slots=True)
class SnapshotFile(Snapshot):
    """A snapshot with its messages: what a download is, and what can be imported."""

    messages: Annotated[
        list[Annotated[SnapshotMessage, WrapValidator(_as_it_is)]],
        Field(min_length=1, max_length=MAX_IMPORTED),
    ]
    """The messages by conversation, in the order of the log. In an import, tool results must answer
    calls of their conversation."""
