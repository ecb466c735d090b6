"""One call of a model for a summary, and its completion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from app.models.limits import ModelInfo
from app.models.usage import TokenUsage

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
    """The answer of a model; `finish_reason` has OpenAI's values."""

    text: str
    finish_reason: str
    usage: TokenUsage
    has_tool_calls: bool = False

    def cost(self, info: ModelInfo | None) -> float | None:
        """Return the price in USD, None where a price is unknown."""
        usage = self.usage
        cached = (usage.cache_creation_tokens, usage.cache_read_tokens)
        if info is None:
            return None
        return info.cost(usage.input_tokens, usage.output_tokens, *cached)


class Gateway(Protocol):
    """Calls language models."""

    async def complete(self, call: ModelCall) -> Completion:
        """Return the model's answer.

        Raises ServiceUnavailable for every failure, with the reason in `facts["reason"]`.
        """
        ...
