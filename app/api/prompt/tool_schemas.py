"""The tools an LLM calls, and their calls, on the wire (L1)."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, WithJsonSchema
from typing_extensions import TypeAliasType

from app.api.http.fields import TOOL_EXAMPLE, Answered, AnyTool, Asked, MessageObject, Tools
from app.domain.common.messages import FormatName
from app.domain.prompt.agent_tools import definitions_in
from app.domain.prompt.tool_deferral import MAX_FOUND, MAX_QUERY, USUALLY_FOUND

_CALL: dict[str, Any] = {
    "id": "call_7",
    "type": "function",
    "function": {
        "name": "tool_output_cache",
        "arguments": '{"ref_id": "blob_9f86d081884c7d659a2feaa0", "offset": 2000}',
    },
}

_FOUND: dict[str, Any] = {
    "format": "openai_chat",
    "tools": [TOOL_EXAMPLE],
    "names": ["get_weather"],
    "total": 527,
    "promoted": ["get_weather"],
}

_DEFINITIONS: dict[str, Any] = {
    "format": "openai_chat",
    "tools": definitions_in(FormatName.OPENAI_CHAT)[:1],
}

NativeFormat = Annotated[FormatName, Field(strict=False, description="The provider's format.")]
ToolCallObject = TypeAliasType(
    "ToolCallObject",
    Annotated[
        Any,
        WithJsonSchema(
            {
                "type": "object",
                "additionalProperties": True,
                "description": "A call as the provider gave it. `openai_chat`: an element of"
                " `tool_calls`; `openai_responses`: a `function_call` or `tool_search_call` item;"
                " `anthropic`: a `tool_use` block; `gemini`: a part with a `functionCall`.",
                "examples": [_CALL],
            }
        ),
    ],
)


class ToolDefinitions(Answered):
    """The service's own tools, as a provider's call takes them."""

    model_config = ConfigDict(json_schema_extra={"examples": [_DEFINITIONS]})

    format: FormatName = Field(description="The format of the definitions.")
    tools: list[AnyTool] = Field(
        description="To be added to `tools`. Gemini: one tool that declares all functions."
    )


class ToolCallRequest(Asked):
    """One call of one of the service's tools, as the model made it."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"tool_call": _CALL}]})

    format: NativeFormat = FormatName.OPENAI_CHAT
    tool_call: ToolCallObject
    native: bool = Field(
        default=False,
        description="Whether the payload the call answers holds tools back in the provider's own"
        " way: then `anthropic` gets references to the tools found, and not their definitions.",
    )


class ToolCallAnswer(Answered):
    """The message that answers the call; appending it is the caller's part."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "format": "openai_chat",
                    "message": {
                        "role": "tool",
                        "tool_call_id": "call_7",
                        "content": "  2001\tok\n  2002\tdone\n[End of output.]",
                    },
                    "is_error": False,
                }
            ]
        }
    )

    format: FormatName = Field(description="The format of the message.")
    message: MessageObject = Field(description="The tool message, for the log and the model.")
    is_error: bool = Field(description="Whether it tells the model what is wrong with its call.")


class ToolSearchRequest(Asked):
    """What a tool should do."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"query": "weather forecast"}]})

    query: str = Field(
        min_length=1,
        max_length=MAX_QUERY,
        pattern=r"\S",
        description="A few words on what the tool should do, or its exact name.",
        examples=["weather forecast"],
    )
    limit: int = Field(default=USUALLY_FOUND, ge=1, le=MAX_FOUND, description="Most tools.")
    format: NativeFormat = FormatName.OPENAI_CHAT
    tools: Tools | None = Field(
        default=None,
        description="Definitions sent with builds only: searched as well, in the place of stored"
        " ones of the same name.",
    )


class ToolSearchAnswer(Answered):
    """The tools that match."""

    model_config = ConfigDict(json_schema_extra={"examples": [_FOUND]})

    format: FormatName = Field(description="The format of the definitions.")
    tools: list[AnyTool] = Field(
        description="Full definitions, best first. Gemini: one tool that declares all functions."
    )
    names: list[str] = Field(description="The names of the tools found, best first.")
    total: int = Field(description="How many tools were searched.")
    promoted: list[str] = Field(
        description="All tools promoted in the current turn: builds do not hold them back."
    )
