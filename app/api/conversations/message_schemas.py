"""Messages on the wire (A1, A2, A6)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field
from typing_extensions import TypeAliasType

from app.api.http.fields import (
    MAX_SEQ,
    Answered,
    AnyObject,
    Asked,
    Format,
    MessageObject,
    Threshold,
)
from app.api.http.pages import Page
from app.api.payload.budget_schemas import READING, Budget
from app.api.tool_output.blob_schemas import ToolOutputRef
from app.domain.common.messages import FormatName, Role
from app.domain.conversations.visibility import State
from app.domain.models.budget import Pressure

_ID = "0199a1b2-5d6e-7f80-9a1b-2c3d4e5f6071"

PinScope = TypeAliasType(
    "PinScope", Annotated[Literal["message", "turn"], Field(description="What a pin holds.")]
)
Order = TypeAliasType(
    "Order", Annotated[Literal["asc", "desc"], Field(description="Oldest or newest first.")]
)
ResultContent = TypeAliasType(
    "ResultContent",
    Annotated[Literal["view", "full"], Field(description="How much of a result is shown.")],
)


class MessagesAppend(Asked):
    """A batch to append, all of it or nothing."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "messages": [
                        {"role": "user", "content": "What is the weather in Bergen?"},
                        {"role": "assistant", "content": "It rains, 8 degrees."},
                    ],
                    "expected_seq": 0,
                },
                {
                    "format": "openai_responses",
                    "messages": [
                        {"role": "user", "content": "What is the weather in Bergen?"},
                        {
                            "type": "function_call",
                            "id": "fc_1",
                            "call_id": "call_1",
                            "name": "weather",
                            "arguments": '{"city":"Bergen"}',
                        },
                        {
                            "type": "function_call_output",
                            "call_id": "call_1",
                            "output": "Rain, 8 degrees.",
                        },
                    ],
                },
                {
                    "format": "gemini",
                    "messages": [
                        {"role": "user", "parts": [{"text": "What is the weather in Bergen?"}]},
                        {"role": "model", "parts": [{"text": "It rains, 8 degrees."}]},
                    ],
                },
            ]
        }
    )

    messages: list[MessageObject] = Field(
        description="1 to 1000 messages in `format`: chat messages, Responses items, Anthropic"
        " messages or Gemini contents. Responses items that the model made in a row become one"
        ' message, `{"role": "assistant", "output": [items]}`; one with several tool results'
        " becomes several. A Gemini call or response without an id is known by its name, the nth"
        " of a name in its content as `name#n`."
    )
    format: Format = FormatName.OPENAI_CHAT
    expected_seq: int | None = Field(
        default=None, ge=0, le=MAX_SEQ, description="409 unless the log's head is this seq."
    )


class AppendedMessage(Answered):
    """Where a message stands in the log."""

    id: str = Field(description="The caller's id, or one made by the service.")
    seq: int = Field(description="Its place, from 1 without gaps.")
    turn: int = Field(description="User messages up to it.")
    role: Role = Field(description="Who speaks.")
    token_count: int = Field(description="Its tokens, reasoning included.")
    output_ref: ToolOutputRef | None = Field(
        description="What a tool result is read by later; null for other messages."
    )


class Appended(Answered):
    """The stored batch, and how full the window is now."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "messages": [
                        {
                            "id": _ID,
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
                }
            ]
        }
    )

    messages: list[AppendedMessage] = Field(description="The messages of the batch, in order.")
    head_seq: int = Field(description="Seq of the newest message.")
    pressure: Pressure | None = Field(description="Null while no window is known.")
    notice: bool | None = Field(description="Whether `notice_at` is reached.")
    next_threshold: Threshold | None = Field(description="The next threshold ahead.")
    tokens_to_next: int | None = Field(description="Tokens left until then.")
    budget: Budget | None = Field(description="The window and its use.")
    warnings: list[Literal["tool_output_inline"]] = Field(
        description="`tool_output_inline`: the blob store failed, so results stayed in their"
        " messages whole."
    )


class Visibility(Answered):
    """How the current context shows a message, which is what a build would start from now."""

    state: State = Field(
        description="`verbatim`: as it came. `cleared`: a tool result that gave way to its"
        " placeholder. `summarised`: a summary stands for it. `left_out`: hidden to fit the window,"
        " with no summary that tells of it. `outside`: outside the active window, by time, by a"
        " clear, or because a sliding window went on."
    )
    compaction_id: str | None = Field(
        description="The compaction that made that summary, or that cleared or hid it; null for"
        " other states, and where hundreds of compactions came since."
    )
    restored_at: datetime | None = Field(
        description="When it was put back into the active window; null unless it is there for that."
    )


class StoredMessage(Answered):
    """A message as it came, with what the service knows of it."""

    model_config = ConfigDict(extra="allow")

    id: str = Field(description="Its id in the conversation.")
    seq: int = Field(description="Its place, from 1 without gaps.")
    turn: int = Field(description="User messages up to it.")
    role: Role = Field(description="Who speaks.")
    token_count: int = Field(description="Its tokens, reasoning included.")
    format: FormatName = Field(description="The format it came in.")
    created_at: datetime = Field(description="When it was received.")
    conversation_id: str = Field(description="The conversation it belongs to.")
    agent_id: str | None = Field(description="The agent of that conversation.")
    output_ref: ToolOutputRef | None = Field(
        description="What a tool result is read by; null for other messages."
    )
    content_truncated: bool = Field(description="Whether the view of a result stands in its place.")
    content_collected: bool = Field(description="Whether the whole result was collected.")
    pinned: bool = Field(description="Whether a pin holds it, so that no compaction hides it.")
    visibility: Visibility = Field(description="How the current context shows it.")
    given: AnyObject | None = Field(
        description="Fields of the message as it came that the service's own of the same name hide;"
        " null when there are none."
    )


_STORED: dict[str, Any] = {
    "role": "user",
    "content": "What is the weather in Bergen?",
    "id": _ID,
    "seq": 1,
    "turn": 1,
    "token_count": 12,
    "format": "openai_chat",
    "created_at": "2026-01-05T09:30:00.123456+00:00",
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


class MessagePage(Page[StoredMessage]):
    """Messages in the order asked for."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"data": [_STORED], "next_cursor": None}]}
    )


class Pinned(Answered):
    """What a pin holds, or held."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"seqs": [12, 13, 14]}]})

    seqs: list[int] = Field(
        description="The message with its call group, or its whole turn; ascending."
    )
