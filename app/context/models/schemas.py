"""Schemas of the model registry and of the strategies."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator

from app.common.schema_errors import NAME_PATTERN
from app.http.fields import RequestSchema, Tokens
from app.http.pages import Page
from app.models.limits import ModelInfo

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
