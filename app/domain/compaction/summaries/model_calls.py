"""One call of a model for a summary, and its completion."""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.models.limits import ModelInfo

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
    input_tokens: int
    output_tokens: int
    has_tool_calls: bool

    def cost(self, info: ModelInfo | None) -> float | None:
        """Return the price in USD, None where a price is unknown."""
        return info.cost(self.input_tokens, self.output_tokens) if info is not None else None
