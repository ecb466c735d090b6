"""One call of a model for a summary, and its completion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from app.models.limits import ModelInfo

EXTRACTIVE = "extractive"
"""The model name in receipts of the built-in summariser."""


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One request to a model: plain role and content messages, never tools.

    `info` is the registry entry of the model for this tenant, its own entry included.
    """

    model: str
    messages: tuple[dict[str, str], ...]
    max_tokens: int
    timeout_seconds: float
    tenant_id: str
    info: ModelInfo | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """The answer of a model; `finish_reason` has OpenAI's values.

    `input_tokens` are all of the input. Of these `cached_tokens` were read from the provider's
    cache, and `cache_write_tokens` were written to it.
    """

    text: str
    finish_reason: str
    input_tokens: int
    output_tokens: int
    has_tool_calls: bool
    cached_tokens: int = 0
    cache_write_tokens: int = 0

    @property
    def uncached_tokens(self) -> int:
        """The tokens of the input that were neither read from the cache nor written to it."""
        return max(0, self.input_tokens - self.cached_tokens - self.cache_write_tokens)

    def cost(self, info: ModelInfo | None) -> float | None:
        """Return the price in USD, None where a price is unknown."""
        if info is None:
            return None
        cached = (self.cache_write_tokens, self.cached_tokens)
        return info.cost(self.uncached_tokens, self.output_tokens, *cached)


class Gateway(Protocol):
    """Calls language models."""

    async def complete(self, call: ModelCall) -> Completion:
        """Return the model's answer.

        Raises ServiceUnavailable for every failure, with the reason in `facts["reason"]`.
        """
        ...
