"""Schemas of builds without a conversation, of token counts, and of the model registry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, model_validator

from app.common.answers import answer
from app.common.schema_errors import NAME_PATTERN
from app.context.stateless import Ends
from app.conversations.compaction_receipt import ContextState
from app.formats.message import FormatName
from app.http.cursors import Page
from app.http.fields import (
    MAX_TOKENS,
    Format,
    MessageObject,
    ModelName,
    RequestSchema,
    Tokens,
    examples,
)
from app.models.limits import ModelInfo
from app.policy.policy import CounterName
from app.prompt.schemas import Tools

EXAMPLE_MESSAGES: list[Any] = [
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

    @property
    def ends(self) -> Ends:
        """What stays, and when the rest is summarised."""
        return Ends(self.preserve_top, self.preserve_bottom, self.compression_threshold)


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


# --- answers ---


@answer()
@dataclass(frozen=True, slots=True)
class ContextResult:
    """The messages to send; `new_state` is set when a summary was made, for the caller to cache."""

    messages: Sequence[MessageObject]
    """Top, summary and bottom, or everything."""
    summary_used: bool
    """Whether a summary stands for the middle."""
    tokens_used: int
    """UTF-8 bytes of the content / 4, floored per message."""
    new_state: ContextState | None
    """To be cached when a summary was made."""


@answer()
@dataclass(frozen=True, slots=True)
class MessageSummary:
    """A summary, and the model that made it, `extractive` for the built-in summariser."""

    summary: str
    """The summary."""
    model: str
    """Model that wrote it; `extractive` is built in."""


@answer()
@dataclass(frozen=True, slots=True)
class CompressionCheck:
    """Whether the middle must be summarised, and the estimate of the messages."""

    needs_compression: bool
    """Over the threshold, with a middle to compress."""
    tokens: int
    """The estimate of the messages."""


@answer()
@dataclass(frozen=True, slots=True)
class TokenCount:
    """Tokens by kind."""

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


# --- the model registry ---

_Price = Annotated[float, Field(ge=0, le=1_000)]


class ModelEntry(RequestSchema):
    """A model's limits in tokens and prices in USD per token; omitted fields stay as they were."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"context_window": 65536, "max_output_tokens": 8192}],
            "minProperties": 1,
            "not": {"additionalProperties": {"type": "null"}},
        }
    )

    context_window: Tokens | None = None
    """Input and output together."""
    max_input_tokens: Tokens | None = None
    """Only where the input has a separate limit."""
    max_output_tokens: Tokens | None = None
    """The maximum length of an answer."""
    tokenizer: str | None = Field(default=None, max_length=256, pattern=NAME_PATTERN)
    """Name of its tokenizer."""
    exact: bool | None = None
    """Whether the service counts with its tokenizer: then no margin is added."""
    cache_minimum_tokens: Tokens | None = None
    """The shortest prefix that its provider caches."""
    input_price: _Price | None = None
    """USD per uncached input token."""
    output_price: _Price | None = None
    """USD per output token."""
    cache_read_price: _Price | None = None
    """USD per token read from the cache."""
    cache_write_price: _Price | None = None
    """USD per token written to the cache."""
    tool_search: bool | None = None
    """Whether the provider supports tool search with deferred tools."""
    cache_breakpoint: bool | None = None
    """Whether OpenAI's explicit cache breakpoints are supported."""
    mid_conversation_system: bool | None = None
    """Whether system text is accepted after the first message."""

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if not self.model_dump(exclude_none=True):
            raise ValueError("must have one field or more")
        return self


class ModelPage(Page[ModelInfo]):
    """Models, by name."""
