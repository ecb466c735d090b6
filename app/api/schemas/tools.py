"""The tools an LLM calls, and their calls, on the wire (L1)."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, WithJsonSchema

from app.api.schemas.fields import Answered, Asked
from app.domain.agent_tools import definitions_in
from app.domain.messages import FormatName

_CALL: dict[str, Any] = {
    "id": "call_7",
    "type": "function",
    "function": {
        "name": "tool_output_cache",
        "arguments": '{"ref_id": "blob_9f86d081884c7d659a2feaa0", "offset": 2000}',
    },
}

_DEFINITIONS: dict[str, Any] = {
    "format": "openai_chat",
    "tools": definitions_in(FormatName.OPENAI_CHAT)[:1],
}

NativeFormat = Annotated[FormatName, Field(strict=False, description="The provider's format.")]
NativeCall = Annotated[
    Any,
    WithJsonSchema(
        {
            "type": "object",
            "additionalProperties": True,
            "description": "The call as the provider gave it. `openai_chat`: an element of"
            " `tool_calls`; `openai_responses`: a `function_call` item; `anthropic`: a `tool_use`"
            " block; `gemini`: a part with a `functionCall`.",
            "example": _CALL,
        }
    ),
]


class ToolDefinitions(Answered):
    """The service's own tools, as a provider's call takes them."""

    model_config = ConfigDict(json_schema_extra={"examples": [_DEFINITIONS]})

    format: FormatName = Field(description="The format of the definitions.")
    tools: list[dict[str, Any]] = Field(
        description="To be added to `tools`. Gemini: one tool that declares all functions."
    )


class ToolCallAsk(Asked):
    """One call of one of the service's tools, as the model made it."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"tool_call": _CALL}]})

    format: NativeFormat = FormatName.OPENAI_CHAT
    tool_call: NativeCall


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
    message: dict[str, Any] = Field(description="The tool message, for the log and the model.")
    is_error: bool = Field(description="Whether it tells the model what is wrong with its call.")
