"""An observer where nobody watches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from app.domain.compaction.results import CompactResult


class NoObserver:
    """Is told everything, and keeps nothing."""

    def appended(self, messages: int, tokens: int) -> None:
        """Hear of an append."""

    def built(self, format: str, pressure: str, *, is_delta: bool, is_degraded: bool) -> None:
        """Hear of a payload."""

    def compacting(
        self, conversation_id: str, trigger: str, strategy: str
    ) -> AbstractContextManager[Callable[[CompactResult], None]]:
        """Watch a compaction."""
        return nullcontext(lambda _result: None)


UNOBSERVED = NoObserver()
