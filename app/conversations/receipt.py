"""What compactions do and did: plans, receipts, results, failures, and the view they leave."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from datetime import datetime
from enum import StrEnum

from app.common.answer_schemas import answer
from app.conversations.view import RepeatedResult, Span, Summary, View
from app.policy.policy import StrategyName


class Trigger(StrEnum):
    """What started a compaction, a clearing of tool results, or a rewind.

    `BACKGROUND` is a worker, `BUILD` a build at its threshold, `FORCED` a call of `POST …/compact`
    or `compact_context`, `OVERFLOW` one of `POST …/overflow`. `TOOL_OUTPUT` is a clearing by the
    budget of results. `PROVIDER` is a provider's own compaction, whose item was appended.
    """

    BACKGROUND = "background"
    BUILD = "build"
    FORCED = "forced"
    OVERFLOW = "overflow"
    TOOL_OUTPUT = "tool_output"
    PROVIDER = "provider"
    REWIND = "rewind"


PROVIDER_ITEM_SUMMARY = "[summarised by the provider, in an item that only its models read]"
"""The stored summary of a receipt whose provider's item has no readable text."""


# --- plans ----------------------------------------------------------------------------------------


class ChainStage(StrEnum):
    """The stages of the chain strategy, in their order."""

    CLEAR_TOOL_RESULTS = "clear_tool_results"
    SUMMARIZE = "summarize"
    TRUNCATE = "truncate"


@dataclass(frozen=True, slots=True)
class NoCompaction:
    """A plan to do nothing, with the reason."""

    reason: str


PENDING = NoCompaction("another compaction of the conversation is running")
"""A build does not wait for it."""


@dataclass(frozen=True, slots=True)
class SlidingCut:
    """A plan to show only the messages from the seq `tail_start` on, and these before it."""

    tail_start: int
    kept_seqs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """A plan of what to clear, hide and summarise.

    - `hidden` is the whole hidden range after the compaction, or None if it hides no message.
      `kept_seqs` inside it stay shown. `released_seqs` were shown inside the former range and
      are hidden now.
    - Tool results up to `results_cleared_through`, and the `repeated_results`, are replaced by
      placeholders.
    - Without `summarises` the newly hidden messages are dropped with a note.
    - `chunks` are the parts that a tree summarises one by one. Together they cover what is newly
      hidden outside the former range; the first one includes the released messages.
    - `hides_preserved` is set when preserved messages had to be hidden to fit the capacity.
    - `drops_without_summary` is set when messages are dropped without the summary that the policy
      asks for.
    - `freed_tokens` counts what messages no longer cost, without the cost of a new summary.
    """

    stages: tuple[str, ...]
    freed_tokens: int
    hidden: Span | None = None
    kept_seqs: tuple[int, ...] = ()
    results_cleared_through: int = 0
    summarises: bool = True
    chunks: tuple[Span, ...] = ()
    hides_preserved: bool = False
    released_seqs: tuple[int, ...] = ()
    drops_without_summary: bool = False
    repeated_results: tuple[RepeatedResult, ...] = ()

    def after(self, clearing: CompactionPlan) -> CompactionPlan:
        """Return this plan, which was made for what a clearing leaves, as one for before it."""
        return replace(
            self,
            stages=tuple(dict.fromkeys((*self.stages, *clearing.stages))),
            freed_tokens=clearing.freed_tokens + self.freed_tokens,
        )


Plan = NoCompaction | SlidingCut | CompactionPlan


# --- receipts -------------------------------------------------------------------------------------


@answer()
@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionFacts:
    """What a compaction did; tokens are of the whole payload. One column stores it."""

    strategy: str = StrategyName.SANDWICH
    """The strategy that planned it."""
    stages: tuple[str, ...] = ()
    """The stages that ran, in order."""
    before_tokens: int = 0
    """Tokens of the payload before."""
    after_tokens: int = 0
    """Tokens of the payload after."""
    before_messages: int = 0
    """Messages of the payload before."""
    after_messages: int = 0
    """Messages of the payload after."""
    summary_tokens: int = 0
    """Tokens of the messages that stand for the hidden range."""
    hidden_tokens: int = 0
    """Tokens of the log that the context does not show."""
    hidden_messages: int = 0
    """Messages of the log that the context does not show."""
    model: str | None = None
    """Model that summarised; `extractive` is built in. Null when no summary was made."""
    prompt_hash: str | None = None
    """Hash of the prompt without the conversation."""
    calls: int = 0
    """Calls of a model, failed ones included."""
    input_tokens: int = 0
    """Input tokens of the calls, without cached ones."""
    output_tokens: int = 0
    """Output tokens of the calls."""
    cache_creation_tokens: int = 0
    """Input tokens that were written to the provider's cache."""
    cache_read_tokens: int = 0
    """Input tokens that were read from it."""
    target_tokens: int | None = None
    """The target that was asked for; null where the policy decided."""
    cost_usd: float | None = None
    """Price of the calls, null where unknown."""
    duration_ms: int = 0
    """How long it took."""
    degraded: tuple[str, ...] = ()
    """What it lacks: `dropped_without_summary` where messages were dropped without the summary
    that the policy asks for; `provider_compaction_unavailable` where a build
    made a summary because the provider has no compaction of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt(CompactionFacts):
    """The receipt of one compaction.

    - `hidden_span` is the whole hidden range, and `view` what is shown instead.
    - `made` are the summaries that this compaction made. The view may also have older summaries,
      or have merged a new one into another.
    - `policy_strategy` is the strategy of the policy at that time. A view with a provider's item
      has `provider` instead: it does not depend on the policy.
    """

    compaction_id: str
    parent_id: str | None
    trigger: str
    policy_strategy: str
    hidden_span: Span
    view: View
    made: tuple[Summary, ...] = ()
    created_at: datetime | None = None
    undone_at: datetime | None = None

    @property
    def summary(self) -> str | None:
        """The text of all summaries, None without any."""
        texts = [summary.text for summary in self.view.summaries]
        return "\n\n".join(texts) if texts else None

    def is_shown_with(self, strategy: str) -> bool:
        """Whether its view is shown while the policy has this strategy."""
        return is_shown_with(self.policy_strategy, strategy)


@answer()
@dataclass(frozen=True, slots=True, kw_only=True)
class CompactResult(CompactionFacts):
    """What a compaction did, or why it did nothing."""

    compacted: bool = False
    """Whether the context changed."""
    reason: str | None = None
    """Why nothing was done."""
    compaction_id: str | None = None
    """Id of the receipt."""
    summary_range: tuple[int, int] | None = None
    """Seqs the summary stands for."""
    estimated: bool = False
    """Whether `after_tokens` is an estimate: a dry run does not call the model, and assumes a
    summary of `summary_tokens`. Without a model it is exact."""


FACTS = {field.name: str(field.type) for field in fields(CompactionFacts)}
"""The fields of a receipt that no statement reads, with their types: one column stores them."""


def result_of(receipt: Receipt) -> CompactResult:
    """Return the result of a compaction that was applied."""
    span = receipt.hidden_span if receipt.view.summaries else None
    return CompactResult(
        compacted=True,
        compaction_id=receipt.compaction_id,
        summary_range=(span.start, span.end) if span is not None else None,
        **{name: getattr(receipt, name) for name in FACTS},
    )


def unchanged(reason: str, tokens: int, messages: int) -> CompactResult:
    """Return the result where the history stays as it is."""
    return CompactResult(
        reason=reason,
        before_tokens=tokens,
        after_tokens=tokens,
        before_messages=messages,
        after_messages=messages,
    )


def is_shown_with(policy_strategy: str | None, strategy: str) -> bool:
    """Whether a view made with one strategy is shown while the policy has another one.

    [strategy.change-drops-summary]
    """
    return policy_strategy in (None, strategy, Trigger.PROVIDER, Trigger.REWIND)


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


@answer()
@dataclass(frozen=True, slots=True)
class Failure:
    """Why the last automatic compaction failed, without message content."""

    trigger: Trigger
    """What started it."""
    code: str
    """Code of the error."""
    reason: str
    """Reason code, such as `rate_limited`, `timeout` or `bad_answer`."""
    detail: str
    """The reason in a sentence."""
    calls: int
    """Number of model calls."""
    failed_at: datetime
    """When it failed."""
    failures: int
    """Number of automatic compactions that failed in a row."""
    retry_at: datetime | None
    """When the next automatic compaction may run; null when none is suspended."""


@dataclass(frozen=True, slots=True)
class ViewState:
    """What a conversation's state stores of its view: the receipt, and how much the view hides.

    `protected_seqs` are the seqs that it shows whole although the receipt hid or cleared them.
    """

    view: View
    compaction_id: str | None
    summary_tokens: int
    hidden_tokens: int
    hidden_messages: int
    protected_seqs: tuple[int, ...] = ()


class Observer:
    """Is told how much happened and how, never what was said; these methods ignore it."""

    def appended(self, messages: int, tokens: int) -> None:
        """Hear of an append that stored so many messages of so many tokens."""

    def built(self, format: str, pressure: str, *, is_delta: bool, is_degraded: bool) -> None:
        """Hear of a payload."""

    def compacting(
        self, trigger: str, strategy: str
    ) -> AbstractContextManager[Callable[[CompactResult], None]]:
        """Watch a compaction, whose result the block tells; what the block raises ended it."""
        return nullcontext(lambda _result: None)


UNOBSERVED = Observer()
"""The observer of processes without telemetry."""
