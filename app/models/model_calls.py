"""One call of a model for a summary, and its completion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from app.formats.message import FormatName
from app.models.limits import ModelInfo
from app.models.usage import TokenUsage

EXTRACTIVE = "extractive"
"""The model name in receipts of the built-in summariser."""


@dataclass(frozen=True, slots=True)
class NativeRequest:
    """A request in the provider's own format, which is sent unchanged except for `model`.

    Everything before its instruction is the payload of the build `build_id`, of `prefix_tokens`.
    """

    format: FormatName
    body: Mapping[str, Any]
    build_id: str
    prefix_tokens: int


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One request to a model: plain role and content messages, never tools.

    With a `native` request that is sent, and `messages` has its instruction alone. `info` is the
    registry entry of the model for this tenant, its own entry included.
    """

    model: str
    messages: tuple[dict[str, str], ...]
    max_tokens: int
    timeout_seconds: float
    tenant_id: str
    info: ModelInfo | None = None
    native: NativeRequest | None = None


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
