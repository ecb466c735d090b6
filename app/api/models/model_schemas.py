"""The model registry and the strategies on the wire (J5, D1, D2)."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, model_validator
from typing_extensions import TypeAliasType

from app.api.http.fields import NAME_PATTERN, Answered, Asked, Tokens
from app.api.http.pages import Page
from app.domain.common.policy import StrategyName

_MODEL: dict[str, Any] = {
    "model": "gpt-4o",
    "context_window": 128000,
    "max_input_tokens": None,
    "max_output_tokens": 16384,
    "tokenizer": "o200k_base",
    "exact": True,
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
    "Sources", Annotated[dict[str, str], Field(description="Who says what, by field.")]
)


class ModelEntry(Asked):
    """A model's limits in tokens and prices in USD per token; what is left out stays as it was."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"context_window": 65536, "max_output_tokens": 8192}],
            "minProperties": 1,
            "not": {"additionalProperties": {"type": "null"}},
        }
    )

    context_window: Tokens | None = Field(default=None, description="Input and output together.")
    max_input_tokens: Tokens | None = Field(
        default=None, description="Only where the input has a limit of its own."
    )
    max_output_tokens: Tokens | None = Field(default=None, description="The longest answer.")
    tokenizer: str | None = Field(
        default=None, max_length=256, pattern=NAME_PATTERN, description="Name of its tokenizer."
    )
    exact: bool | None = Field(
        default=None, description="Whether our counter is its tokenizer: no margin is added then."
    )
    cache_minimum_tokens: Tokens | None = Field(
        default=None, description="The shortest prefix its provider caches."
    )
    input_price: _Price | None = Field(default=None, description="Of an uncached input token.")
    output_price: _Price | None = Field(default=None, description="Of an output token.")
    cache_read_price: _Price | None = Field(default=None, description="Of a token read cached.")
    cache_write_price: _Price | None = Field(default=None, description="Of a token put in cache.")
    tool_search: bool | None = Field(
        default=None, description="Whether tools can be held back until they are searched for."
    )
    cache_breakpoint: bool | None = Field(
        default=None, description="Whether OpenAI's explicit cache breakpoints are taken."
    )
    mid_conversation_system: bool | None = Field(
        default=None, description="Whether system text is taken after the conversation has begun."
    )

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if not self.model_dump(exclude_none=True):
            raise ValueError("must have one field or more")
        return self


class ModelShown(Answered):
    """What is known about a model; null where nobody says."""

    model_config = ConfigDict(json_schema_extra={"examples": [_MODEL]})

    model: str = Field(description="Its name.")
    context_window: int | None = Field(description="Input and output together.")
    max_input_tokens: int | None = Field(description="A limit of the input alone.")
    max_output_tokens: int | None = Field(description="The longest answer.")
    tokenizer: str = Field(description="Its tokenizer, `unknown` where that is not published.")
    exact: bool = Field(description="Whether our counter is its tokenizer.")
    cache_minimum_tokens: int | None = Field(description="The shortest prefix that is cached.")
    input_price: float | None = Field(description="USD per input token.")
    output_price: float | None = Field(description="USD per output token.")
    cache_read_price: float | None = Field(description="USD per token read from the cache.")
    cache_write_price: float | None = Field(description="USD per token written to the cache.")
    tool_search: bool = Field(description="Tools can be held back until they are searched for.")
    cache_breakpoint: bool = Field(description="OpenAI's explicit cache breakpoints are taken.")
    mid_conversation_system: bool = Field(
        description="System text is taken after the conversation has begun."
    )
    sources: Sources = Field(description="Where each number comes from, by field.")


class ModelPage(Page[ModelShown]):
    """Models, by name."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"data": [_MODEL], "next_cursor": None}]}
    )


class Strategy(Answered):
    """One way to keep a history inside the window, with the service's defaults."""

    name: StrategyName = Field(description="What `policy.strategy` takes.")
    description: str = Field(description="What it does.")
    is_default: bool = Field(description="Whether conversations have it by default.")
    trigger: float | None = Field(
        description="Share of the effective window at which a compaction is due; null: never."
    )
    preserve_top: int | None = Field(description="Messages kept at the start; null: all.")
    preserve_bottom: int | None = Field(description="Messages kept at the end; null: all.")


class StrategyList(Page[Strategy]):
    """All strategies."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "data": [
                        {
                            "name": "sandwich",
                            "description": "Top, a summary of the middle, bottom.",
                            "is_default": True,
                            "trigger": 0.7,
                            "preserve_top": 5,
                            "preserve_bottom": 5,
                        }
                    ],
                    "next_cursor": None,
                }
            ]
        }
    )
