"""The port for metrics and traces."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from app.domain.compaction.results import CompactResult


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
