"""What the services need from adapters of which tests or settings choose one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from app.conversations.compaction_results import CompactResult
from app.models.limits import ModelInfo


class Tokenizer(Protocol):
    """Counts tokens."""

    def count(self, text: str) -> int:
        """Return the number of tokens of the text; never raises, whatever the text."""
        ...


class Models(Protocol):
    """The limits and prices of models."""

    def find(self, model: str) -> ModelInfo | None:
        """Return the entry of a model, None for an unknown one."""
        ...

    def list(self) -> Sequence[ModelInfo]:
        """Return all known models, sorted by name."""
        ...


class Observer(Protocol):
    """Is told what happened, for metrics and traces: how much and how, never what was said."""

    def appended(self, messages: int, tokens: int) -> None:
        """Hear of an append that stored so many messages of so many tokens."""
        ...

    def built(self, format: str, pressure: str, *, is_delta: bool, is_degraded: bool) -> None:
        """Hear of a payload."""
        ...

    def compacting(
        self, conversation_id: str, trigger: str, strategy: str
    ) -> AbstractContextManager[Callable[[CompactResult], None]]:
        """Watch a compaction, whose result the block tells; what the block raises ended it."""
        ...
