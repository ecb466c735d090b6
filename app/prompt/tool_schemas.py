"""Request and response schemas of agent tools and of tool search."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, WithJsonSchema
from typing_extensions import TypeAliasType

from app.formats.message import FormatName
from app.http.fields import (
    TOOL_EXAMPLE,
    AnyTool,
    MessageObject,
    RequestSchema,
    ResponseSchema,
    Tools,
    examples,
)
from app.prompt.agent_tools import definitions_in
from app.prompt.tool_deferral import DEFAULT_TOOL_MATCHES, MAX_QUERY, MAX_TOOL_MATCHES

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
                "description": "A call as the provider returned it. `openai_chat`: an element of"
                " `tool_calls`; `openai_responses`: a `function_call` or `tool_search_call` item;"
                " `anthropic`: a `tool_use` block; `gemini`: a part with a `functionCall`.",
                "examples": [_CALL],
            }
        ),
    ],
)


class ToolDefinitions(ResponseSchema):
    """The service's own tools in a provider's format."""

    model_config = examples(_DEFINITIONS)

    format: FormatName
    """The format of the definitions."""
    tools: list[AnyTool]
    """Definitions to add to `tools`. Gemini: one tool that declares all functions."""


class ToolCallRequest(RequestSchema):
    """One call of a tool of the service."""

    model_config = examples({"tool_call": _CALL})

    format: NativeFormat = FormatName.OPENAI_CHAT
    tool_call: ToolCallObject
    native: bool = False
    """Whether the call's payload defers tools with the provider's own mechanism: then
    `anthropic` gets references to the tools found instead of their definitions."""


class ToolCallAnswer(ResponseSchema):
    """The message that answers the call. The caller appends it."""

    model_config = examples(
        {
            "format": "openai_chat",
            "message": {
                "role": "tool",
                "tool_call_id": "call_7",
                "content": "  2001\tok\n  2002\tdone\n[End of output.]",
            },
            "is_error": False,
        }
    )

    format: FormatName
    """The format of the message."""
    message: MessageObject
    """The tool message, to append and to send to the model."""
    is_error: bool
    """Whether the message is an error for the model."""


class ToolSearchRequest(RequestSchema):
    """A search for tools."""

    model_config = examples({"query": "weather forecast"})

    query: str = Field(
        min_length=1, max_length=MAX_QUERY, pattern=r"\S", examples=["weather forecast"]
    )
    """What the tool does, in a few words, or its exact name."""
    limit: int = Field(default=DEFAULT_TOOL_MATCHES, ge=1, le=MAX_TOOL_MATCHES)
    """Maximum number of tools."""
    format: NativeFormat = FormatName.OPENAI_CHAT
    tools: Tools | None = None
    """Definitions that are sent with builds only. They are searched as well, and replace stored
    ones of the same name."""


class ToolSearchAnswer(ResponseSchema):
    """The matching tools."""

    model_config = examples(_FOUND)

    format: FormatName
    """The format of the definitions."""
    tools: list[AnyTool]
    """Full definitions, best first. Gemini: one tool that declares all functions."""
    names: list[str]
    """Names of the matching tools, best first."""
    total: int
    """Number of tools that were searched."""
    promoted: list[str]
    """All tools promoted in the current turn; builds do not defer them."""
