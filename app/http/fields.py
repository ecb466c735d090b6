"""Field types and base classes that several schemas share.

A `TypeAliasType` is a named schema in openapi.json, so that generated clients have one type for it.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from typing_extensions import TypeAliasType

from app.common import ids as own_ids
from app.common.schema_errors import AGENT_ID_PATTERN, NAME_PATTERN, UUID_PATTERN
from app.common.texts import time_from
from app.formats.message import FormatName
from app.policy.policy import StrategyName

MAX_TOKENS = 1_000_000_000
MAX_SEQ = 2**53 - 1  # the largest integer that every JSON parser keeps exact
MAX_METADATA_BYTES = 65_536
MAX_WINDOW_SECONDS = 1_000_000_000

UUID = re.compile(UUID_PATTERN)
AGENT_ID = re.compile(AGENT_ID_PATTERN)


class RequestSchema(BaseModel):
    """A request body: unknown fields are refused, and values are not converted."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ResponseSchema(BaseModel):
    """A response body."""

    model_config = ConfigDict(extra="forbid", from_attributes=True)

    @classmethod
    def of(cls, source: object, **own: Any) -> Self:
        """Return the answer with these fields, and the others as the source has them."""
        same = cls.model_fields.keys() - own.keys()
        return cls(**own, **{name: getattr(source, name) for name in same})


def examples(*values: Any) -> ConfigDict:
    """Return the configuration of a schema with these examples."""
    return ConfigDict(json_schema_extra={"examples": list(values)})


class NoFields(RequestSchema):
    """A request without fields; its body may be missing."""

    model_config = examples({})


_YEARS = range(2000, 9000)


def _time(value: Any) -> Any:
    time = time_from(value) if isinstance(value, str) else None
    if time is None or time.year not in _YEARS:
        raise ValueError("must be a time in ISO 8601")
    return time


Time = Annotated[
    datetime, BeforeValidator(_time), WithJsonSchema({"type": "string", "format": "date-time"})
]
"""A time in ISO 8601, as UTC without a zone."""


def _object(value: Any) -> Any:
    if not isinstance(value, dict):
        raise ValueError("must be an object")
    return value


def _metadata(value: Any) -> Any:
    try:
        size = len(orjson.dumps(value))
    except TypeError:  # lone surrogates
        size = len(repr(value))
    if size > MAX_METADATA_BYTES:
        raise ValueError(f"must have at most {MAX_METADATA_BYTES:,} bytes of JSON")
    return value


def _public_id(value: str) -> str:
    public_id = own_ids.public_id_from(value)
    if public_id is None:
        raise ValueError(own_ids.RULE)
    return public_id


ConversationId = Annotated[
    str,
    AfterValidator(_public_id),
    Field(
        description="Id of the conversation, unique in its tenant: a UUID, or a string of the"
        " client, in which case counts; by default a new UUID.",
        examples=["0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b", "customer-42:ticket-7"],
        min_length=1,
        max_length=own_ids.MAX_CHARS,
        json_schema_extra={"pattern": own_ids.PATTERN},
    ),
]
AgentId = Annotated[
    str,
    Field(
        pattern=AGENT_ID_PATTERN,
        max_length=256,
        description="Id of the agent, unique in its tenant.",
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
        pattern=NAME_PATTERN, max_length=256, description="Display name.", examples=["Support bot"]
    ),
]
Format = Annotated[FormatName, Field(strict=False, description="The provider's message format.")]
Strategy = Annotated[
    StrategyName, Field(strict=False, description="Name of a strategy of `GET /v1/strategies`.")
]
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
HttpStatus = Annotated[int, Field(strict=True, ge=100, le=599)]
MessageObject = TypeAliasType(
    "MessageObject",
    Annotated[
        Any,
        WithJsonSchema(
            {
                "type": "object",
                "additionalProperties": True,
                "description": "A message in the format of a provider; unknown fields are kept.",
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
            description="The arguments of a provider's SDK, in the format that `format` names.",
            examples=[{"model": "gpt-4o", "messages": [{"role": "user", "content": "Hello"}]}],
        ),
    ],
)
PayloadItem = TypeAliasType(
    "PayloadItem",
    Annotated[
        dict[str, Any],
        Field(
            description="A message, input item or content of a payload, in its provider's format.",
            examples=[{"role": "user", "content": "Hello"}],
        ),
    ],
)
Threshold = TypeAliasType(
    "Threshold",
    Annotated[
        Literal["notice", "due", "compact", "blocked"],
        Field(
            description="A threshold of token use: the usage note, or the next compaction pressure."
        ),
    ],
)
OwnRollingWindow = Annotated[
    Annotated[int, Field(ge=1, le=MAX_WINDOW_SECONDS)] | Literal["inherit"] | None,
    Field(
        description="Age in seconds after which messages leave the active window; null is no"
        " limit, `inherit` the value of the agent. A longer one shows older messages again.",
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
            description="Metadata of the client, up to 64 KiB of JSON.",
            examples=[{"customer": "42"}],
        ),
    ],
)
