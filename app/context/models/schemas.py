"""Schemas of the model registry and of the strategies."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, model_validator
from typing_extensions import TypeAliasType

from app.common.schema_errors import NAME_PATTERN
from app.http.fields import RequestSchema, ResponseSchema, Tokens, examples
from app.http.pages import Page

_MODEL: dict[str, Any] = {
    "model": "gpt-4o",
    "context_window": 128000,
    "max_input_tokens": None,
    "max_output_tokens": 16384,
    "tokenizer": "o200k_base",
    "exact": True,
    "start_factor": 1.0,
    "assumed_from": None,
    "cache_minimum_tokens": 1024,
    "input_price": 2.5e-06,
    "output_price": 1e-05,
    "cache_read_price": 1.25e-06,
    "cache_write_price": None,
    "tool_search": False,
    "cache_breakpoint": False,
    "mid_conversation_system": True,
    "sources": {"context_window": "litellm 1.83.0: max_input_tokens, taken as the whole window"},
}

_Price = Annotated[float, Field(ge=0, le=1_000)]

Sources = TypeAliasType(
    "Sources", Annotated[dict[str, str], Field(description="The source of each number, by field.")]
)


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


class ModelShown(ResponseSchema):
    """A model's limits, prices and features; null where unknown."""

    model_config = examples(_MODEL)

    model: str
    """Name of the model."""
    context_window: int | None
    """Input and output together."""
    max_input_tokens: int | None
    """A separate limit of the input."""
    max_output_tokens: int | None
    """The maximum length of an answer."""
    tokenizer: str
    """Its tokenizer, `unknown` where that is not published."""
    exact: bool
    """Whether the service counts with its tokenizer."""
    start_factor: float
    """The factor of its counts until usage is reported: that of its family."""
    assumed_from: str | None
    """The model of its family whose limits stand for its own, unknown ones."""
    cache_minimum_tokens: int | None
    """The shortest prefix that is cached."""
    input_price: float | None
    """USD per input token."""
    output_price: float | None
    """USD per output token."""
    cache_read_price: float | None
    """USD per token read from the cache."""
    cache_write_price: float | None
    """USD per token written to the cache."""
    tool_search: bool
    """The provider supports tool search with deferred tools."""
    cache_breakpoint: bool
    """OpenAI's explicit cache breakpoints are supported."""
    mid_conversation_system: bool
    """System text is accepted after the first message."""
    sources: Sources
    """The source of each number, by field."""


class ModelPage(Page[ModelShown]):
    """Models, by name."""

    model_config = examples({"data": [_MODEL], "next_cursor": None})
