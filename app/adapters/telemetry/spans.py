"""What spans are made of, where traces were asked for (see `tracing`) and where they were not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from starlette.types import ASGIApp

from app.domain.compaction.planning import CompactResult
from app.domain.compaction.summaries import Completion, ModelCall

TellResult = Callable[[CompactResult], None]
TellCompletion = Callable[[Completion], None]


class Spans(Protocol):
    """Times the same as metrics count, each piece of work by itself."""

    def compacting(
        self, conversation_id: str, trigger: str, strategy: str
    ) -> AbstractContextManager[TellResult]:
        """Span a compaction."""
        ...

    def calling(self, call: ModelCall) -> AbstractContextManager[TellCompletion]:
        """Span a model call."""
        ...

    def working(self, conversation_id: str, kind: str) -> AbstractContextManager[object]:
        """Span a piece of a worker's work."""
        ...

    @property
    def middleware(self) -> Callable[[ASGIApp], ASGIApp] | None:
        """What spans requests."""
        ...

    async def close(self) -> None:
        """Send what is left."""
        ...


class NoSpans:
    """Spans nothing, as long as nobody has asked for traces."""

    def compacting(
        self, conversation_id: str, trigger: str, strategy: str
    ) -> AbstractContextManager[TellResult]:
        """Do nothing."""
        return nullcontext(lambda _result: None)

    def calling(self, call: ModelCall) -> AbstractContextManager[TellCompletion]:
        """Do nothing."""
        return nullcontext(lambda _completion: None)

    def working(self, conversation_id: str, kind: str) -> AbstractContextManager[object]:
        """Do nothing."""
        return nullcontext()

    @property
    def middleware(self) -> Callable[[ASGIApp], ASGIApp] | None:
        """Nothing."""
        return None

    async def close(self) -> None:
        """Do nothing."""
