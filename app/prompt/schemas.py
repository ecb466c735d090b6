"""Request and response schemas of sections, tools, agent tools and tool search."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from pydantic import Field
from typing_extensions import TypeAliasType

from app.common.schema_errors import NAME_PATTERN
from app.formats import ToolCategory
from app.formats.message import FormatName
from app.formats.tools import HOSTED_TYPE_PATTERN, TOOL_NAME_PATTERN
from app.http.fields import MessageObject, RequestSchema, ResponseSchema, examples
from app.prompt.agent_tools import DEFAULT_TOOL_MATCHES, MAX_QUERY_CHARS, MAX_TOOL_MATCHES
from app.prompt.sections import SectionKind

MAX_TOOLS = 1_000
MAX_SECTIONS = 200
MAX_CONTENT_CHARS = 2_000_000
TOOL_EXAMPLE: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Return the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
ToolObject = TypeAliasType(
    "ToolObject",
    Annotated[
        dict[str, Any],
        Field(
            description="A tool definition in a provider's format, with an optional `category`: a"
            " function, or a hosted tool of one provider such as its web search. A function has a"
            f" `name`, unique in its list, that matches `{TOOL_NAME_PATTERN}`.",
            examples=[TOOL_EXAMPLE, {"type": "web_search_20250305", "name": "web_search"}],
            json_schema_extra={
                "properties": {
                    # Patterns, since enumerations would narrow the types of generated clients.
                    "category": {
                        "type": "string",
                        "pattern": f"^({'|'.join(get_args(ToolCategory))})$",
                    },
                    "type": {
                        "type": ["string", "null"],
                        "pattern": f"^(function|custom)$|{HOSTED_TYPE_PATTERN}",
                    },
                }
            },
        ),
    ],
)
_UNIQUE: dict[str, Any] = {"uniqueItems": True}
Tools = Annotated[
    list[ToolObject],
    Field(
        max_length=MAX_TOOLS,
        description="Tool definitions with unique names.",
        json_schema_extra=_UNIQUE,
    ),
]
_CALL: dict[str, Any] = {
    "id": "call_7",
    "type": "function",
    "function": {
        "name": "tool_output_cache",
        "arguments": '{"ref_id": "blob_9f86d081884c7d659a2feaa0", "offset": 2000}',
    },
}


NativeFormat = Annotated[FormatName, Field(strict=False, description="The provider's format.")]
ToolCallObject = TypeAliasType(
    "ToolCallObject",
    Annotated[
        dict[str, Any],
        Field(
            description="A call as the provider returned it. `openai_chat`: an element of"
            " `tool_calls`; `openai_responses`: a `function_call` or `tool_search_call` item;"
            " `anthropic`: a `tool_use` block; `gemini`: a part with a `functionCall`;"
            " `gemini_interactions`: a `function_call` step.",
            examples=[_CALL],
        ),
    ],
)
_SECTION: dict[str, Any] = {
    "name": "base",
    "content": "You are a careful assistant.",
    "kind": "base",
}


class Section(RequestSchema):
    """One part of the system prompt."""

    model_config = examples(_SECTION)

    name: str = Field(pattern=NAME_PATTERN, max_length=256)
    """Unique in its list. A conversation's section replaces an agent's by name."""
    content: str = Field(max_length=MAX_CONTENT_CHARS)
    """Text of the section."""
    kind: Annotated[SectionKind, Field(strict=False)] | None = None
    """Kind, which sets its position in the prompt: static kinds first."""
    cacheable: bool | None = None
    """Whether a cached prefix may end after it; true by default."""
    order: int | None = Field(default=None, ge=-1_000_000, le=1_000_000)
    """Order inside its kind; by default the position in the list."""


Sections = Annotated[
    list[Section],
    Field(
        max_length=MAX_SECTIONS,
        description="Parts of the system prompt with unique names.",
        json_schema_extra=_UNIQUE,
    ),
]


class ToolDefinitions(ResponseSchema):
    """The service's own tools in a provider's format."""

    format: FormatName
    """The format of the definitions."""
    tools: list[ToolObject]
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
        min_length=1, max_length=MAX_QUERY_CHARS, pattern=r"\S", examples=["weather forecast"]
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

    format: FormatName
    """The format of the definitions."""
    tools: list[ToolObject]
    """Full definitions, best first. Gemini: one tool that declares all functions."""
    names: list[str]
    """Names of the matching tools, best first."""
    total: int
    """Number of tools that were searched."""
    promoted: list[str]
    """All tools promoted in the current turn; builds do not defer them."""
