"""Snapshots on the wire, in S4's shape (I1-I4)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema

from app.api.http.fields import (
    MAX_SEQ,
    UUID_PATTERN,
    AgentId,
    Answered,
    AnyObject,
    Asked,
    ConversationId,
    MessageObject,
    ModelName,
)
from app.api.http.pages import Page
from app.domain.conversations.active_window import time_from

MAX_DESCRIPTION = 10_000
_YEARS = range(2000, 9000)
_SESSION_ID = "0199a1b2-9c1d-7b2e-8f30-4a5b6c7d8e9f"
_CONVERSATION_ID = "0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b"


def _time(value: Any) -> Any:
    time = time_from(value) if isinstance(value, str) else None
    if time is None or time.year not in _YEARS:
        raise ValueError("must be a time in ISO 8601")
    return time


Time = Annotated[
    datetime,
    BeforeValidator(_time),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]


class SnapshotSave(Asked):
    """A snapshot of what is in the window now."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"description": "Working on auth refactor"}]}
    )

    description: str | None = Field(
        default=None, max_length=MAX_DESCRIPTION, description="What the snapshot is for."
    )


_SNAPSHOT: dict[str, Any] = {
    "session_id": _SESSION_ID,
    "timestamp": "2026-02-12T14:30:00.123456+00:00",
    "description": "Working on auth refactor",
    "summary": "Implemented JWT token validation and the refresh flow. Tests of expiry are open.",
    "message_count": 1,
    "window_start": "2026-02-12T00:00:00+00:00",
    "window_end": "2026-02-12T14:30:00.123456+00:00",
    "agent_id": None,
    "conversation_ids": [_CONVERSATION_ID],
    "imported": False,
    "models": [{"conversation_id": _CONVERSATION_ID, "model": "claude-sonnet-4-5"}],
}
_MESSAGE: dict[str, Any] = {
    "role": "user",
    "content": "Validate the tokens, please.",
    "id": "0199a1b2-5d6e-7f80-9a1b-2c3d4e5f6071",
    "conversation_id": _CONVERSATION_ID,
    "seq": 1,
    "format": "openai_chat",
    "created_at": "2026-02-12T14:12:07.000211+00:00",
    "output_ref": None,
    "content_truncated": False,
    "content_collected": False,
    "given": None,
}


class SnapshotModel(Answered):
    """The model of one of a snapshot's conversations."""

    conversation_id: str = Field(description="The conversation.")
    model: str = Field(
        description="The model that its payloads were built for, its own or an inherited one."
    )


class Snapshot(Answered):
    """A snapshot without its messages."""

    model_config = ConfigDict(json_schema_extra={"examples": [_SNAPSHOT]})

    session_id: str = Field(description="Id of the snapshot.")
    timestamp: datetime = Field(description="When it was taken.")
    description: str | None = Field(description="What its maker said it is for.")
    summary: str = Field(
        description="A few sentences on what was accomplished, decided and left unfinished;"
        " `(summary generation failed)` when the model failed."
    )
    message_count: int = Field(description="Messages it holds.")
    window_start: datetime = Field(
        description="The time after which messages were in the window: the last clear or the"
        " rolling window, else that of the first message."
    )
    window_end: datetime = Field(description="The time up to which they were.")
    agent_id: str | None = Field(description="The agent it was taken of, or of whose conversation.")
    conversation_ids: list[str] = Field(description="The conversations it holds messages of.")
    imported: bool = Field(description="Whether it came from elsewhere, with its messages.")
    models: list[SnapshotModel] = Field(
        description="The models of its conversations, as far as they were known when it was taken."
    )


class SnapshotPage(Page[Snapshot]):
    """Snapshots, newest first."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"data": [_SNAPSHOT], "next_cursor": None}]}
    )


class SnapshotMessage(Answered):
    """A message as it came, with where it was."""

    model_config = ConfigDict(extra="allow")

    id: str = Field(description="Its id in the conversation.")
    conversation_id: str = Field(description="The conversation it was in.")
    seq: int | None = Field(description="Its place there; null for an import that had none.")
    format: str = Field(description="The format it came in.")
    created_at: datetime | None = Field(
        description="When it was received; null for an import that does not say."
    )
    output_ref: AnyObject | None = Field(
        description="What a tool result is read by in its conversation; null for other messages."
    )
    content_truncated: bool = Field(description="Whether the view of a result stands in its place.")
    content_collected: bool = Field(description="Whether the whole result was collected.")
    given: AnyObject | None = Field(
        description="Fields of the message as it came that the service's own of the same name"
        " stand for; null when there are none."
    )


class SnapshotFile(Snapshot):
    """A whole snapshot."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [_SNAPSHOT | {"messages": [_MESSAGE]}]}
    )

    messages: list[SnapshotMessage] = Field(
        description="Its messages, conversation by conversation, each in the order of its log."
    )


MAX_IMPORTED = 50_000
"""Checking so many messages takes some seconds of a thread."""


class ImportedModel(Asked):
    """The model of one of an import's conversations."""

    conversation_id: ConversationId | None = Field(
        default=None, description="The conversation; null for messages that name none."
    )
    model: ModelName = Field(description="The model that its payloads are built for.")


class SnapshotImport(Asked):
    """A snapshot that was downloaded, or made elsewhere in the same shape."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                _SNAPSHOT | {"messages": [_MESSAGE]},
                {
                    "session_id": _SESSION_ID,
                    "timestamp": "2026-02-12T14:30:00Z",
                    "description": "Working on auth refactor",
                    "summary": "Implemented JWT token validation and refresh flow.",
                    "message_count": 2,
                    "window_start": "2026-02-12T00:00:00Z",
                    "window_end": "2026-02-12T14:30:00Z",
                    "messages": [
                        {"role": "user", "content": "Validate the tokens, please."},
                        {"role": "assistant", "content": "Done: they are checked on each call."},
                    ],
                },
            ]
        }
    )

    session_id: str | None = Field(
        default=None, pattern=UUID_PATTERN, description="UUID it keeps; 409 when it is taken."
    )
    timestamp: Time | None = Field(default=None, description="When it was taken; now by default.")
    description: str | None = Field(
        default=None, max_length=MAX_DESCRIPTION, description="What it is for."
    )
    summary: str = Field(default="", description="What happened in it.")
    message_count: int | None = Field(
        default=None, ge=0, le=MAX_SEQ, description="Must be the number of messages, if given."
    )
    window_start: Time | None = Field(
        default=None, description="Start of its window; `timestamp` by default."
    )
    window_end: Time | None = Field(
        default=None, description="End of its window; `timestamp` by default."
    )
    agent_id: AgentId | None = Field(default=None, description="The agent it was taken of.")
    conversation_ids: list[str] | None = Field(
        default=None, description="Taken from the messages; what is said here does not matter."
    )
    imported: bool | None = Field(default=None, description="What is said here does not matter.")
    models: list[ImportedModel] | None = Field(
        default=None,
        max_length=MAX_IMPORTED,
        description="Models of the conversations that a restore makes. One without an entry has"
        " the model of its agent or of the service.",
    )
    messages: list[MessageObject] = Field(
        min_length=1,
        max_length=MAX_IMPORTED,
        description="Messages as a snapshot shows them, or bare ones: OpenAI chat unless `format`"
        " names another. Those without `conversation_id` belong together; tool results must answer"
        " calls of their conversation.",
    )


class SnapshotRestore(Asked):
    """Where to restore to."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{}, {"conversation_id": _CONVERSATION_ID}]}
    )

    conversation_id: ConversationId | None = Field(
        default=None,
        description="Another conversation to copy the messages to; by default they go back to"
        " where they came from.",
    )


class RestoredConversation(Answered):
    """What one conversation got back."""

    conversation_id: str = Field(description="The conversation that has the messages now.")
    source_conversation_id: str = Field(description="The conversation they were saved from.")
    restored: int = Field(description="Messages that are in its window again.")
    skipped: int = Field(description="Messages that were in its window already.")


class Restored(Answered):
    """What a restore did."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "session_id": _SESSION_ID,
                    "restored": 46,
                    "skipped": 1,
                    "conversations": [
                        {
                            "conversation_id": _CONVERSATION_ID,
                            "source_conversation_id": _CONVERSATION_ID,
                            "restored": 46,
                            "skipped": 1,
                        }
                    ],
                }
            ]
        }
    )

    session_id: str = Field(description="Id of the snapshot.")
    restored: int = Field(description="Messages that are in a window again.")
    skipped: int = Field(description="Messages that were in their window already.")
    conversations: list[RestoredConversation] = Field(description="The same by conversation.")
