"""Schemas of builds without a conversation, and of token counts."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from app.context.stateless_service import EXAMPLE_MESSAGES
from app.formats.message import FormatName
from app.http.fields import MAX_TOKENS, Format, MessageObject, ModelName, RequestSchema, examples
from app.policy.policy import CounterName
from app.prompt.tool_schemas import Tools

_STATE: dict[str, Any] = {
    "strategy": "sandwich",
    "summary": "The user plans a trip to Bergen.",
    "summary_range": [5, 20],
    "compressed_at": "2026-01-05T09:31:12.000123+00:00",
}

_Limit = Annotated[
    int,
    Field(
        ge=-MAX_TOKENS,
        le=MAX_TOKENS,
        description="The model's context limit in tokens.",
        # The domain refuses what is not positive, in its own words.
        json_schema_extra={"minimum": 1},
    ),
]
_Count = Annotated[int, Field(ge=0, le=1_000_000)]


class CachedState(RequestSchema):
    """A ContextState that an earlier build returned."""

    model_config = examples(_STATE)

    strategy: str = Field(max_length=64)
    """The strategy that made it."""
    summary: str = Field(max_length=2_000_000)
    """The summary."""
    summary_range: list[_Count] = Field(min_length=2, max_length=2)
    """Indices it stands for, the end excluded."""
    compressed_at: str = Field(max_length=64)
    """When it was made, ISO 8601."""


class StatelessMessages(RequestSchema):
    """Messages with the limit and the ranges of the sandwich strategy."""

    model_config = examples({"messages": EXAMPLE_MESSAGES, "max_context_tokens": 128000})

    messages: list[MessageObject] = Field(max_length=100_000, json_schema_extra={"minItems": 1})
    """The whole history."""
    max_context_tokens: _Limit
    preserve_top: _Count = 5
    """Messages to keep at the start."""
    preserve_bottom: _Count = 5
    """Messages to keep at the end."""
    compression_threshold: float = Field(default=0.7, gt=0, le=1)
    """Share of the limit from which to compress."""


class StatelessBuild(StatelessMessages):
    """Messages to build a context from."""

    model_config = examples(
        {"messages": EXAMPLE_MESSAGES, "max_context_tokens": 128000, "cached_state": _STATE}
    )

    cached_state: CachedState | None = None
    """The newest `new_state` of an earlier build."""
    model: ModelName | None = None
    """Model that summarises; must be an allowed one."""


class Compression(RequestSchema):
    """Messages to summarise, all of them."""

    model_config = examples({"messages": EXAMPLE_MESSAGES})

    messages: list[MessageObject] = Field(max_length=100_000, json_schema_extra={"minItems": 1})
    """What to summarise."""
    model: ModelName | None = None
    """Model that summarises; must be an allowed one."""


class TokensRequest(RequestSchema):
    """Messages, text and tools to count."""

    model_config = examples({"model": "gpt-4o", "messages": EXAMPLE_MESSAGES})

    messages: list[MessageObject] = Field(default_factory=list, max_length=100_000)
    """Messages in `format`."""
    text: str | None = None
    """A text."""
    tools: Tools = Field(default_factory=list)
    """Tool definitions."""
    format: Format = FormatName.OPENAI_CHAT
    counter: Annotated[CounterName, Field(strict=False)] = CounterName.TOKENIZER
    """How to count. bytes_4, chars_4 and chars_2_5 apply their rule to content text without
    overhead; calls, media, reasoning, ids and names come on top."""
    model: ModelName | None = None
    """Model that the margin is for."""
