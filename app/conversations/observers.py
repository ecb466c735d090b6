"""Observers of services: told what happened, for metrics and traces."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from app.conversations.compaction_receipt import CompactResult


class Observer(Protocol):
    """Is told how much happened and how, never what was said; these methods ignore it."""

    def appended(self, messages: int, tokens: int) -> None:
        """Hear of an append that stored so many messages of so many tokens."""
        return

    def built(self, format: str, pressure: str, *, is_delta: bool, is_degraded: bool) -> None:
        """Hear of a payload."""
        return

    def compacting(
        self, conversation_id: str, trigger: str, strategy: str
    ) -> AbstractContextManager[Callable[[CompactResult], None]]:
        """Watch a compaction, whose result the block tells; what the block raises ended it."""
        return nullcontext(lambda _result: None)


class _Nobody(Observer):
    """The observer of processes without telemetry."""


UNOBSERVED: Observer = _Nobody()
