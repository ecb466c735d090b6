"""An observer for processes without telemetry."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from app.conversations.compaction_results import CompactResult


class NoObserver:
    """Ignores all observations."""

    def appended(self, messages: int, tokens: int) -> None:
        """Ignore an append."""

    def built(self, format: str, pressure: str, *, is_delta: bool, is_degraded: bool) -> None:
        """Ignore a build."""

    def compacting(
        self, conversation_id: str, trigger: str, strategy: str
    ) -> AbstractContextManager[Callable[[CompactResult], None]]:
        """Ignore a compaction."""
        return nullcontext(lambda _result: None)


UNOBSERVED = NoObserver()
