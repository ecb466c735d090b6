"""Schemas of builds without a conversation, and of token counts."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from app.formats.message import FormatName
from app.http.fields import (
    MAX_TOKENS,
    Format,
    MessageObject,
    ModelName,
    RequestSchema,
    ResponseSchema,
    Tools,
    examples,
)
from app.policy.policy import CounterName

_MESSAGES: list[Any] = [
    {"role": "user", "content": "Plan a trip to Bergen."},
    {"role": "assistant", "content": "When would you like to go?"},
]
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

    model_config = examples({"messages": _MESSAGES, "max_context_tokens": 128000})

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
        {"messages": _MESSAGES, "max_context_tokens": 128000, "cached_state": _STATE}
    )

    cached_state: CachedState | None = None
    """The newest `new_state` of an earlier build."""
    model: ModelName | None = None
    """Model that summarises; must be an allowed one."""


class Compression(RequestSchema):
    """Messages to summarise, all of them."""

    model_config = examples({"messages": _MESSAGES})

    messages: list[MessageObject] = Field(max_length=100_000, json_schema_extra={"minItems": 1})
    """What to summarise."""
    model: ModelName | None = None
    """Model that summarises; must be an allowed one."""


class NewState(ResponseSchema):
    """A ContextState to cache and to send with the next build."""

    strategy: str
    """The strategy that made it."""
    summary: str
    """The summary."""
    summary_range: list[int]
    """Indices it stands for, the end excluded."""
    compressed_at: str
    """When it was made, ISO 8601."""


class ContextResult(ResponseSchema):
    """The messages to send to the model."""

    model_config = examples(
        {
            "messages": _MESSAGES,
            "summary_used": False,
            "tokens_used": 11,
            "new_state": None,
        }
    )

    messages: list[MessageObject]
    """Top, summary and bottom, or everything."""
    summary_used: bool
    """Whether a summary stands for the middle."""
    tokens_used: int
    """UTF-8 bytes of the content / 4, floored per message."""
    new_state: NewState | None
    """To be cached when a summary was made."""


class CompressionNeed(ResponseSchema):
    """Whether the middle must be summarised."""

    model_config = examples({"needs_compression": False, "tokens": 11})

    needs_compression: bool
    """Over the threshold, with a middle to compress."""
    tokens: int
    """The estimate of the messages."""


class CompressedMessages(ResponseSchema):
    """A summary of the messages."""

    model_config = examples({"summary": "The user plans a trip to Bergen.", "model": "extractive"})

    summary: str
    """The summary."""
    model: str
    """Model that wrote it; `extractive` is built in."""


class TokensRequest(RequestSchema):
    """Messages, text and tools to count."""

    model_config = examples({"model": "gpt-4o", "messages": _MESSAGES})

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


class TokenCount(ResponseSchema):
    """Tokens by kind."""

    model_config = examples(
        {
            "tokens": 22,
            "messages": 22,
            "text": 0,
            "tools": 0,
            "counter": "tokenizer",
            "model": "gpt-4o",
            "margin": 0.0,
            "method": "tokenizer",
            "factor": 1.0,
        }
    )

    tokens: int
    """The sum."""
    messages: int
    """Tokens of the messages."""
    text: int
    """Tokens of the text."""
    tools: int
    """Tokens of the tool definitions."""
    counter: CounterName
    """How it was counted."""
    model: str | None
    """Model that the margin is for."""
    margin: float
    """Share to add for safety; 0 where the count is exact."""
    method: str
    """The counter, and its correction by reports."""
    factor: float
    """Factor that raw counts of this model are multiplied by."""
