"""What callers get back from a compaction."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from typing import Protocol

from app.common.answers import answer
from app.conversations.compaction_receipt import Compaction


@answer()
@dataclass(frozen=True, slots=True)
class CompactResult:
    """What a compaction did, or why it did nothing; tokens are of the whole payload."""

    compacted: bool
    """Whether the context changed."""
    reason: str | None
    """Why nothing was done."""
    compaction_id: str | None
    """Id of the receipt."""
    before_tokens: int
    """Tokens of the payload before."""
    after_tokens: int
    """Tokens of the payload after."""
    before_msg_count: int
    """Messages of the payload before."""
    after_msg_count: int
    """Messages of the payload after."""
    strategies_run: tuple[str, ...]
    """Strategies that ran, in order."""
    summary_range: tuple[int, int] | None = None
    """Seqs the summary stands for."""
    model: str | None = None
    """Model that summarised; `extractive` is built in."""
    summary_tokens: int = 0
    """Tokens of the summary."""
    cost_usd: float | None = None
    """Price of the calls, null where unknown."""
    duration_ms: int = 0
    """How long it took."""
    estimated: bool = False
    """Whether `after_tokens` is an estimate: a dry run does not call the model, and assumes a
    summary of `summary_tokens`. Without a model it is exact."""
    degraded: tuple[str, ...] = ()
    """What it lacks: `summariser_unavailable` where there is no summary of messages that were
    left out, or that stay, although the policy asks for one;
    `provider_compaction_unavailable` where a summary was made because the provider has no
    compaction of its own."""


_OF_RECEIPT = {field.name for field in fields(CompactResult)} & {
    field.name for field in fields(Compaction)
}


class CompactionPending:
    """Another compaction of the conversation is running; a build does not wait for it."""


@answer()
@dataclass(frozen=True, slots=True)
class ContextState:
    """A summary and the range it stands for."""

    strategy: str
    """The strategy that made it."""
    summary: str
    """Its text."""
    summary_range: tuple[int, int]
    """Seqs that it stands for, or indices of sent messages, the end excluded."""
    compressed_at: str
    """When it was made, ISO 8601."""


def unchanged(reason: str, tokens: int, messages: int) -> CompactResult:
    """Return the result where the history stays as it is."""
    return CompactResult(
        compacted=False,
        reason=reason,
        compaction_id=None,
        before_tokens=tokens,
        after_tokens=tokens,
        before_msg_count=messages,
        after_msg_count=messages,
        strategies_run=(),
    )


def result_of(receipt: Compaction) -> CompactResult:
    """Return the result of a compaction that was applied."""
    has_summary = bool(receipt.view.summaries)
    return CompactResult(
        compacted=True,
        reason=None,
        summary_range=(receipt.hidden_span.start, receipt.hidden_span.end) if has_summary else None,
        **{name: getattr(receipt, name) for name in _OF_RECEIPT},
    )


class Observer(Protocol):
    """Is told how much happened and how, never what was said; these methods ignore it."""

    def appended(self, messages: int, tokens: int) -> None:
        """Hear of an append that stored so many messages of so many tokens."""
        return

    def built(self, format: str, pressure: str, *, is_delta: bool, is_degraded: bool) -> None:
        """Hear of a payload."""
        return

    def compacting(
        self, trigger: str, strategy: str
    ) -> AbstractContextManager[Callable[[CompactResult], None]]:
        """Watch a compaction, whose result the block tells; what the block raises ended it."""
        return nullcontext(lambda _result: None)


class _Nobody(Observer):
    """The observer of processes without telemetry."""


UNOBSERVED: Observer = _Nobody()
