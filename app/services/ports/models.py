"""Ports for token counts, model limits, model calls and the ranking of tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from app.domain.compaction.summaries.model_calls import Completion, ModelCall
from app.domain.formats import ToolDefinition
from app.domain.models.limits import ModelInfo


class Tokenizer(Protocol):
    """Counts tokens."""

    def count(self, text: str) -> int:
        """Return the number of tokens of the text; never raises, whatever the text."""
        ...


class Ranking(Protocol):
    """Finds tools by what they do."""

    async def rank(
        self, query: str, tools: Sequence[ToolDefinition], limit: int, *, key: str
    ) -> list[str]:
        """Return the names of up to `limit` tools that match, best first.

        `key` stands for the tools: equal keys come with equal tools. A tool's exact name puts
        that tool first.
        """
        ...


class Models(Protocol):
    """The limits and prices of models."""

    def find(self, model: str) -> ModelInfo | None:
        """Return the entry of a model, None for an unknown one."""
        ...

    def list(self) -> Sequence[ModelInfo]:
        """Return all known models, sorted by name."""
        ...


class Gateway(Protocol):
    """Calls language models."""

    async def complete(self, call: ModelCall) -> Completion:
        """Return the model's answer.

        Raises ServiceUnavailable for every failure, with the reason in `facts["reason"]`.
        """
        ...
