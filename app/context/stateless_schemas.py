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

    strategy: str = Field(max_length=64, description="The strategy that made it.")
    summary: str = Field(max_length=2_000_000, description="The summary.")
    summary_range: list[_Count] = Field(
        min_length=2, max_length=2, description="Indices it stands for, the end excluded."
    )
    compressed_at: str = Field(max_length=64, description="When it was made, ISO 8601.")


class StatelessMessages(RequestSchema):
    """Messages with the limit and the ranges of the sandwich strategy."""

    model_config = examples({"messages": _MESSAGES, "max_context_tokens": 128000})

    messages: list[MessageObject] = Field(
        max_length=100_000, description="The whole history.", json_schema_extra={"minItems": 1}
    )
    max_context_tokens: _Limit
    preserve_top: _Count = Field(default=5, description="Messages to keep at the start.")
    preserve_bottom: _Count = Field(default=5, description="Messages to keep at the end.")
    compression_threshold: float = Field(
        default=0.7, gt=0, le=1, description="Share of the limit from which to compress."
    )


class StatelessBuild(StatelessMessages):
    """Messages to build a context from."""

    model_config = examples(
        {"messages": _MESSAGES, "max_context_tokens": 128000, "cached_state": _STATE}
    )

    cached_state: CachedState | None = Field(
        default=None, description="The newest `new_state` of an earlier build."
    )
    model: ModelName | None = Field(
        default=None, description="Model that summarises; must be an allowed one."
    )


class Compression(RequestSchema):
    """Messages to summarise, all of them."""

    model_config = examples({"messages": _MESSAGES})

    messages: list[MessageObject] = Field(
        max_length=100_000, description="What to summarise.", json_schema_extra={"minItems": 1}
    )
    model: ModelName | None = Field(
        default=None, description="Model that summarises; must be an allowed one."
    )


class NewState(ResponseSchema):
    """A ContextState to cache and to send with the next build."""

    strategy: str = Field(description="The strategy that made it.")
    summary: str = Field(description="The summary.")
    summary_range: list[int] = Field(description="Indices it stands for, the end excluded.")
    compressed_at: str = Field(description="When it was made, ISO 8601.")


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

    messages: list[MessageObject] = Field(description="Top, summary and bottom, or everything.")
    summary_used: bool = Field(description="Whether a summary stands for the middle.")
    tokens_used: int = Field(description="UTF-8 bytes of the content / 4, floored per message.")
    new_state: NewState | None = Field(description="To be cached when a summary was made.")


class CompressionNeed(ResponseSchema):
    """Whether the middle must be summarised."""

    model_config = examples({"needs_compression": False, "tokens": 11})

    needs_compression: bool = Field(description="Over the threshold, with a middle to compress.")
    tokens: int = Field(description="The estimate of the messages.")


class CompressedMessages(ResponseSchema):
    """A summary of the messages."""

    model_config = examples({"summary": "The user plans a trip to Bergen.", "model": "extractive"})

    summary: str = Field(description="The summary.")
    model: str = Field(description="Model that wrote it; `extractive` is built in.")


class TokensRequest(RequestSchema):
    """Messages, text and tools to count."""

    model_config = examples({"model": "gpt-4o", "messages": _MESSAGES})

    messages: list[MessageObject] = Field(
        default_factory=list, max_length=100_000, description="Messages in `format`."
    )
    text: str | None = Field(default=None, description="A text.")
    tools: Tools = Field(default_factory=list, description="Tool definitions.")
    format: Format = FormatName.OPENAI_CHAT
    counter: Annotated[CounterName, Field(strict=False)] = Field(
        default=CounterName.TOKENIZER,
        description=(
            "How to count. bytes_4, chars_4 and chars_2_5 apply their rule to content text without"
            " overhead; calls, media, reasoning, ids and names come on top."
        ),
    )
    model: ModelName | None = Field(default=None, description="Model that the margin is for.")


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

    tokens: int = Field(description="The sum.")
    messages: int = Field(description="Tokens of the messages.")
    text: int = Field(description="Tokens of the text.")
    tools: int = Field(description="Tokens of the tool definitions.")
    counter: CounterName = Field(description="How it was counted.")
    model: str | None = Field(description="Model that the margin is for.")
    margin: float = Field(description="Share to add for safety; 0 where the count is exact.")
    method: str = Field(description="The counter, and its correction by reports.")
    factor: float = Field(description="Factor that raw counts of this model are multiplied by.")
