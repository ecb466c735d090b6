"""What is known of a model: its limits, its features and its prices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from typing_extensions import TypeAliasType

from app.common import json_text
from app.common.answer_schemas import answer

O200K = "o200k_base"
"""The tokenizer that the service counts with."""
INEXACT_MARGIN = 0.05
"""Share of a count that is added for safety where the model has another tokenizer."""
LIMIT_FIELDS = ("context_window", "max_input_tokens", "max_output_tokens", "cache_minimum_tokens")
PRICE_FIELDS = ("input_price", "output_price", "cache_read_price", "cache_write_price")
NUMERIC_FIELDS = (*LIMIT_FIELDS, *PRICE_FIELDS)
"""The fields that each have a source."""
Sources = TypeAliasType("Sources", Mapping[str, str])


@answer()
@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model's limits in tokens, prices in USD per token, and features; null where unknown."""

    model: str
    """Name of the model."""
    context_window: int | None = None
    """Input and output together."""
    max_input_tokens: int | None = None
    """A separate limit of the input."""
    max_output_tokens: int | None = None
    """The maximum length of an answer."""
    tokenizer: str = "unknown"
    """Its tokenizer, `unknown` where that is not published."""
    exact: bool = False
    """Whether the service counts with its tokenizer."""
    cache_minimum_tokens: int | None = None
    """The shortest prefix that is cached."""
    input_price: float | None = None
    """USD per input token."""
    output_price: float | None = None
    """USD per output token."""
    cache_read_price: float | None = None
    """USD per token read from the cache."""
    cache_write_price: float | None = None
    """USD per token written to the cache."""
    sources: Sources = field(default_factory=dict)
    """The source of each number, by field."""
    tool_search: bool = False
    """The provider supports tool search with deferred tools."""
    cache_breakpoint: bool = False
    """OpenAI's explicit cache breakpoints are supported."""
    mid_conversation_system: bool = False
    """System text is accepted after the first message."""
    start_factor: float = 1.0
    """The factor of its counts until usage is reported: that of its family."""
    assumed_from: str | None = None
    """The model of its family whose limits stand for its own, unknown ones."""

    @property
    def margin(self) -> float:
        """The share that is added to a count for safety."""
        return 0.0 if self.exact else INEXACT_MARGIN

    def cost(
        self, input_tokens: int, output_tokens: int, cache_creation: int = 0, cache_read: int = 0
    ) -> float | None:
        """Return the price in USD of one call, None without the prices of input and output.

        `input_tokens` excludes cached tokens. Where no price of cached tokens is known, they cost
        as much as other input.
        """
        if self.input_price is None or self.output_price is None:
            return None
        write_price, read_price = self.cache_write_price, self.cache_read_price
        return (
            input_tokens * self.input_price
            + cache_creation * (self.input_price if write_price is None else write_price)
            + cache_read * (self.input_price if read_price is None else read_price)
            + output_tokens * self.output_price
        )


class Models(Protocol):
    """The limits and prices of models."""

    def find(self, model: str) -> ModelInfo | None:
        """Return what is known of a model, None for an unknown one."""
        ...

    def list(self) -> Sequence[ModelInfo]:
        """Return all known models, sorted by name."""
        ...


def merged_info(model: str, bundled: ModelInfo | None, own: str | None) -> ModelInfo:
    """Return what is known of a model, the tenant's own values in place of the bundled."""
    info = bundled or ModelInfo(model)
    fields = json_text.loads(own) if own is not None else {}
    given = {name: value for name, value in fields.items() if value is not None}
    if given.get("exact"):
        given["start_factor"] = 1.0
    if given.get("context_window"):
        given["assumed_from"] = None
    own_sources = {name: "tenant" for name in NUMERIC_FIELDS if name in given}
    return replace(info, **given | {"model": model, "sources": {**info.sources, **own_sources}})
