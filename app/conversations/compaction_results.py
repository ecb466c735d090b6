"""What callers get back from a compaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from app.conversations.compaction_receipt import Compaction
from app.conversations.view import Summary
from app.formats.message import FormatName
from app.policy.policy import SummaryInput


@dataclass(frozen=True, slots=True)
class ProviderCall:
    """The call with which a provider compacts a conversation.

    `method` is that of the provider's SDK client. Its arguments are the `fields` of a new payload
    in this format, the `added` ones, and `betas`. The compaction in the answer is appended to the
    conversation.
    """

    format: FormatName
    method: str
    fields: tuple[str, ...]
    added: Mapping[str, Any]
    betas: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CompactResult:
    """What a compaction did, or why it did nothing; tokens are of the whole payload.

    `estimated` marks a dry run whose summary was not written: its size is an estimate. `degraded`
    names what the compaction had to do without. `provider_call` is for the caller to make, where
    the provider compacts.
    """

    compacted: bool
    reason: str | None
    compaction_id: str | None
    before_tokens: int
    after_tokens: int
    before_msg_count: int
    after_msg_count: int
    strategies_run: tuple[str, ...]
    summary_range: tuple[int, int] | None = None
    model: str | None = None
    summary_tokens: int = 0
    cost_usd: float | None = None
    duration_ms: int = 0
    estimated: bool = False
    degraded: tuple[str, ...] = ()
    provider_call: ProviderCall | None = None


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call of a model that a compaction would make.

    `messages` are exactly what would be sent, except placeholders for the answers of the earlier
    calls in `depends_on`, which count from 1. `cost_usd` is the price of the input and of the
    longest answer, None where a price is unknown.

    With `summary_input` `prefix` the payload of the build `build_id` is sent before the messages.
    Its `prefix_tokens` are part of the input. `cached_cost_usd` is the price where all of them are
    read from the provider's cache.
    """

    model: str
    messages: tuple[dict[str, str], ...]
    input_tokens: int
    max_output_tokens: int
    cost_usd: float | None
    depends_on: tuple[int, ...]
    summary_input: SummaryInput = SummaryInput.TRANSCRIPT
    build_id: str | None = None
    prefix_tokens: int = 0
    cached_cost_usd: float | None = None


@dataclass(frozen=True, slots=True)
class DryRunResult(CompactResult):
    """What a compaction would do.

    `summaries`, `retain` and `note` are what the context would show. Where a model would write the
    summaries, `calls` are its calls instead and `planned_calls` is their number. Tokens and
    `cost_usd` are those of all calls, with answers as long as they may be. With `truncated`
    summaries or calls at the end are left out, because the answer would be too large.
    """

    summaries: tuple[Summary, ...] = ()
    retain: str | None = None
    note: str | None = None
    calls: tuple[PlannedCall, ...] = ()
    planned_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    truncated: bool = False


def dry_run_of(result: CompactResult, **shown: Any) -> DryRunResult:
    """Return the result of a dry run: that of the compaction, and what it would show."""
    known = {field.name: getattr(result, field.name) for field in fields(CompactResult)}
    return DryRunResult(**(known | shown))


_OF_RECEIPT = {field.name for field in fields(CompactResult)} & {
    field.name for field in fields(Compaction)
}


class CompactionPending:
    """Another compaction of the conversation is running; a build does not wait for it."""


@dataclass(frozen=True, slots=True)
class ContextState:
    """A summary and the half-open range it stands for.

    `summary_range` counts seqs in stateful calls and message indices in stateless ones;
    `compressed_at` is an ISO 8601 time.
    """

    strategy: str
    summary: str
    summary_range: tuple[int, int]
    compressed_at: str


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
