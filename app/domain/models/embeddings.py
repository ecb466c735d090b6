"""One call of an embedding model, and its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, sqrt

from app.domain.models.limits import ModelInfo

Vector = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class EmbeddingCall:
    """Texts for an embedding model; `dimensions` is None for the model's own number.

    `tokens` is an estimate of their tokens, made before the call. With `is_question` an answer of
    `recall` waits for it.
    """

    model: str
    texts: tuple[str, ...]
    timeout_seconds: float
    tenant_id: str
    tokens: int
    dimensions: int | None = None
    is_question: bool = False
    info: ModelInfo | None = None


@dataclass(frozen=True, slots=True)
class Embeddings:
    """A vector for each text of a call, and the tokens that the provider counted."""

    vectors: tuple[Vector, ...]
    input_tokens: int
    output_tokens: int = 0

    def cost(self, info: ModelInfo | None) -> float | None:
        """Return the price in USD, None where a price is unknown."""
        return info.cost(self.input_tokens, 0) if info is not None else None


def unit_vector(values: Sequence[float]) -> Vector | None:
    """Return the vector with the length 1, None where it has no direction.

    The inner product of two such vectors is the cosine of their angle.
    """
    length = sqrt(sum(value * value for value in values))
    if not length or not isfinite(length):
        return None
    return tuple(value / length for value in values)
