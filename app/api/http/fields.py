"""Field types that several schemas share: what is checked at the door, with its limits.

An alias made by `TypeAliasType` is a schema with a name of its own in the published description,
so that clients made from it have one type for it, wherever it stands.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, get_args

import orjson
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from typing_extensions import TypeAliasType

from app.domain.common.messages import FormatName
from app.domain.common.policy import StrategyName
from app.domain.formats import ToolCategory
from app.domain.formats.tool_calls import TOOL_NAME_PATTERN

MAX_TOKENS = 1_000_000_000
MAX_SEQ = 2**53 - 1  # what every JSON reader holds exactly
MAX_METADATA_BYTES = 65_536
MAX_TOOLS = 1_000

NAME_PATTERN = r"^[^\u0000-\u001f\u007f]+$"
AGENT_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:@=+-]*$"
UUID_PATTERN = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
KEY_PATTERN = r"^[\x21-\x7e]+$"
MAX_KEY = 255
PATTERNS = {
    NAME_PATTERN: "must be one line of text, without control characters",
    AGENT_ID_PATTERN: "must be letters, digits and ._:@=+-, with a letter or digit first",
    UUID_PATTERN: "must be a UUID",
    KEY_PATTERN: f"must be 1 to {MAX_KEY} visible ASCII characters",
}
"""What each pattern asks for, in words."""

UUID = re.compile(UUID_PATTERN)
AGENT_ID = re.compile(AGENT_ID_PATTERN)


class Asked(BaseModel):
    """A request: unknown fields are refused, and nothing is converted."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Answered(BaseModel):
    """An answer, for the published schema; answers are not built from it."""

    model_config = ConfigDict(extra="forbid")


def _object(value: Any) -> Any:
    if not isinstance(value, dict):
        raise ValueError("must be an object")
    return value


def _metadata(value: Any) -> Any:
    try:
        size = len(orjson.dumps(value))
    except TypeError:  # lone surrogates, which ASCII escapes
        size = len(repr(value))
    if size > MAX_METADATA_BYTES:
        raise ValueError(f"must have at most {MAX_METADATA_BYTES:,} bytes of JSON")
    return value


ConversationId = Annotated[
    str,
    Field(
        pattern=UUID_PATTERN,
        description="UUID of the conversation; the caller's own, or made by the service.",
        examples=["0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b"],
    ),
]
AgentId = Annotated[
    str,
    Field(
        pattern=AGENT_ID_PATTERN,
        max_length=256,
        description="Id of the agent, unique for its tenant; safe to stand in a path.",
        examples=["support-bot"],
    ),
]
ModelName = Annotated[
    str,
    Field(
        pattern=NAME_PATTERN,
        max_length=256,
        description="Name of a model as in `GET /v1/models`.",
        examples=["gpt-4o"],
    ),
]
DisplayName = Annotated[
    str,
    Field(
        pattern=NAME_PATTERN,
        max_length=256,
        description="Name for people.",
        examples=["Support bot"],
    ),
]
Format = Annotated[FormatName, Field(strict=False, description="The provider's message format.")]
Strategy = Annotated[
    StrategyName, Field(strict=False, description="Name of a strategy of `GET /v1/strategies`.")
]
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
AnyObject = TypeAliasType(
    "AnyObject", Annotated[dict[str, Any], Field(description="An object with fields of any kind.")]
)
MessageObject = TypeAliasType(
    "MessageObject",
    Annotated[
        Any,
        WithJsonSchema(
            {
                "type": "object",
                "additionalProperties": True,
                "description": "A message in a provider's own form; fields nobody knows are kept.",
                "examples": [{"role": "user", "content": "What is the weather in Bergen?"}],
            }
        ),
    ],
)
PayloadObject = TypeAliasType(
    "PayloadObject",
    Annotated[
        dict[str, Any],
        Field(
            description="What a provider's SDK is called with, in the form that `format` names.",
            examples=[{"model": "gpt-4o", "messages": [{"role": "user", "content": "Hello"}]}],
        ),
    ],
)
PayloadItem = TypeAliasType(
    "PayloadItem",
    Annotated[
        dict[str, Any],
        Field(
            description="One message, input item or content of a payload, in its provider's form.",
            examples=[{"role": "user", "content": "Hello"}],
        ),
    ],
)
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
            description="A tool definition in any provider's form, with an optional `category`.",
            examples=[TOOL_EXAMPLE],
            json_schema_extra={
                "properties": {
                    # Patterns and no enumerations, which would narrow the types of clients.
                    "category": {
                        "type": "string",
                        "pattern": f"^({'|'.join(get_args(ToolCategory))})$",
                    },
                    "type": {"type": ["string", "null"], "pattern": "^(function|custom)$"},
                },
                "not": {"required": ["custom"], "properties": {"custom": {}}},
                "if": {"required": ["function"], "properties": {"function": {}}},
                "then": {
                    "additionalProperties": True,
                    "properties": {"function": {"$ref": "#/components/schemas/ToolFunction"}},
                },
                "else": {"$ref": "#/components/schemas/ToolFunction"},
            },
        ),
    ],
)
TOOL_FUNCTION: dict[str, Any] = {
    "type": "object",
    "title": "ToolFunction",
    "description": "What all forms of a tool definition have in common.",
    "additionalProperties": True,
    "required": ["name"],
    "properties": {
        "name": {
            "type": "string",
            "pattern": TOOL_NAME_PATTERN,
            "description": "Its name, used once in its list.",
        },
        "description": {"type": ["string", "null"], "description": "What it does."},
        "strict": {
            "type": ["boolean", "null"],
            "description": "Whether arguments must follow the schema.",
        },
    },
    "examples": [TOOL_EXAMPLE["function"]],
}
"""A schema that only the schema of a tool refers to."""
AnyTool = TypeAliasType(
    "AnyTool",
    Annotated[
        dict[str, Any],
        Field(description="A tool definition in the form of a provider.", examples=[TOOL_EXAMPLE]),
    ],
)
Threshold = TypeAliasType(
    "Threshold",
    Annotated[
        Literal["notice", "due", "compact", "blocked"],
        Field(description="A level of use: the usage note, or the pressure that is next."),
    ],
)
Tools = Annotated[list[ToolObject], Field(max_length=MAX_TOOLS, description="Tool definitions.")]
StoredTools = Annotated[
    list[ToolObject],
    Field(
        max_length=MAX_TOOLS,
        description="Tool definitions, no two of one name.",
        json_schema_extra={"uniqueItems": True},
    ),
]
RollingWindow = Annotated[
    int,
    Field(
        ge=1,
        le=1_000_000_000,
        description="Messages older than so many seconds are not shown; null is no such limit.",
        examples=[86_400],
    ),
]
Metadata = TypeAliasType(
    "Metadata",
    Annotated[
        dict[str, Any],
        BeforeValidator(_object),
        AfterValidator(_metadata),
        Field(
            description="Whatever the caller wants to keep beside it, up to 64 KiB of JSON.",
            examples=[{"customer": "42"}],
        ),
    ],
)
