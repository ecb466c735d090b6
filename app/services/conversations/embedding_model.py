"""Texts of messages and questions become vectors, by the model of the settings.

1. Secrets are masked, as for summaries, before a text is cut: no half of one is left.
2. A long text is cut to the model's limit, by the service's own tokenizer. A model that counts more
   tokens refuses the text, and the caller sends less of it.
3. The tokens of each call are counted for the tenant before the call is made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from app.domain.compaction.summaries.secret_masking import compile_patterns, mask_secrets
from app.domain.compaction.summaries.secret_patterns import DEFAULT_SECRET_PATTERNS
from app.domain.models.embeddings import EmbeddingCall, Vector, unit_vector
from app.services.ports import EmbeddingGateway, Models, Tokenizer

_MAX_TOKEN_CHARS = 8
"""Characters of a token, of which hardly a text has more on average."""
_MAX_SECRET_CHARS = 1_000
_ANSWER_SHARE = 0.8  # of the time of a question; the rest is for the search


@dataclass(frozen=True, slots=True)
class EmbeddingSettings:
    """The embedding model of the service.

    `dimensions` is None for the model's own number. A text is cut to `max_tokens`, and up to
    `batch` texts are sent at once. `timeout_seconds` is the limit for a batch of messages, and
    `question_seconds` for a question with its search. `trust` is that of a fusion of rankings.
    """

    model: str
    dimensions: int | None = None
    max_tokens: int = 1_000
    batch: int = 32
    timeout_seconds: float = 30.0
    question_seconds: float = 1.0
    trust: float = 0.0
    secret_patterns: tuple[str, ...] = DEFAULT_SECRET_PATTERNS


class EmbeddingModel:
    """Makes vectors of the length 1."""

    def __init__(
        self,
        gateway: EmbeddingGateway,
        models: Models,
        tokenizer: Tokenizer,
        settings: EmbeddingSettings,
    ) -> None:
        self.settings = settings
        self._gateway = gateway
        self._models = models
        self._tokenizer = tokenizer
        self._patterns = compile_patterns(settings.secret_patterns)

    @property
    def name(self) -> str:
        """The model and its dimensions: vectors of another name cannot be compared."""
        dimensions = self.settings.dimensions
        return self.settings.model if dimensions is None else f"{self.settings.model}/{dimensions}"

    def prepared(self, text: str) -> str:
        """Return what is sent of a text: masked, and cut to the model's limit (rules 1, 2)."""
        limit = self.settings.max_tokens
        chars = limit * _MAX_TOKEN_CHARS
        most = 2 * chars + _MAX_SECRET_CHARS
        masked = mask_secrets(text[:most], self._patterns)
        if len(text) > most:
            masked = masked[:-_MAX_SECRET_CHARS]  # half of a secret is not recognised
        masked = masked[:chars].strip()
        while (tokens := self._tokenizer.count(masked)) > limit:
            masked = masked[: min(len(masked) * limit // tokens, len(masked) - 1)]
        return masked

    async def embed(
        self, tenant_id: str, texts: Sequence[str], *, is_question: bool = False
    ) -> list[Vector | None]:
        """Return a vector for each prepared text, None for one that has no direction.

        Raises ServiceUnavailable with the reason in its facts.
        """
        settings = self.settings
        question_seconds = _ANSWER_SHARE * settings.question_seconds
        tokens = await asyncio.to_thread(lambda: sum(map(self._tokenizer.count, texts)))
        call = EmbeddingCall(
            settings.model,
            tuple(texts),
            question_seconds if is_question else settings.timeout_seconds,
            tenant_id,
            tokens,
            settings.dimensions,
            is_question,
            self._models.find(settings.model),
        )
        answer = await self._gateway.embed(call)
        return [unit_vector(vector) for vector in answer.vectors]
