"""What callers get back from a compaction."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from typing_extensions import TypedDict

from app.common.answers import AnyObject, answer
from app.conversations.compaction_receipt import Compaction
from app.conversations.view import Summary
from app.formats.message import FormatName
from app.policy.policy import SummaryInput


@answer()
@dataclass(frozen=True, slots=True)
class ProviderCall:
    """The call of the provider's SDK that compacts a conversation.

    Make it with the fields of a new build in this format, and append the compaction that it
    returns, before any other message.
    """

    format: FormatName
    """Format of that build."""
    method: str
    """Method of the SDK's client, such as `responses.compact`."""
    fields: tuple[str, ...]
    """Fields of the payload to send, where it has them."""
    added: AnyObject
    """Fields to send besides."""
    betas: tuple[str, ...] = ()
    """Beta features of Anthropic that the call needs."""


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
    provider_call: ProviderCall | None = None
    """With the strategy `provider`: the call to make; nothing was done."""


@answer()
class PromptMessage(TypedDict):
    """One message of a prompt."""

    role: Literal["system", "user"]
    """Its role."""
    content: str
    """Its text, with secrets masked."""


@answer()
@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call of a model that a compaction would make."""

    model: str
    """The model."""
    messages: tuple[PromptMessage, ...]
    """The prompt, exactly as it would be sent. `[the answer of call 1]` stands for the answer of
    an earlier call, and the text around it is what would be sent if that answer were half as
    long as it may be."""
    input_tokens: int
    """Tokens of the prompt; answers of earlier calls count half of their limit."""
    max_output_tokens: int
    """The limit of the answer."""
    cost_usd: float | None
    """Price of the prompt and of the longest answer, at the prices of `GET /v1/models/{model}`;
    null where unknown."""
    depends_on: tuple[int, ...]
    """The earlier calls whose answers are in the prompt; the first call is 1."""
    summary_input: SummaryInput = SummaryInput.TRANSCRIPT
    """`prefix`: the payload of `build_id` comes before `messages`, in its format."""
    build_id: str | None = None
    """The build whose payload is sent first, see `as_of` of `GET …/context`."""
    prefix_tokens: int = 0
    """Tokens of that payload, part of `input_tokens`."""
    cached_cost_usd: float | None = None
    """Price where all of that payload is read from the provider's cache; null without one, or
    where a price is unknown."""


@dataclass(frozen=True, slots=True)
class DryRunResult(CompactResult):
    """What a compaction would do.

    Tokens and `cost_usd` are those of all calls, with answers as long as they may be.
    """

    summaries: tuple[Summary, ...] = ()
    """The summaries that the context would show, in order, byte for byte as the compaction then
    stores them; empty where a model would write them."""
    retain: str | None = None
    """The text that would be kept beside the summary."""
    note: str | None = None
    """The note about messages that would be left out."""
    calls: tuple[PlannedCall, ...] = ()
    """The calls of the model, in order, if each is answered at once; empty without a model."""
    planned_calls: int = 0
    """The number of calls, those left out included."""
    input_tokens: int = 0
    """Tokens of the prompts of all calls."""
    output_tokens: int = 0
    """The most that all answers can take."""
    truncated: bool = False
    """Whether summaries or calls at the end are left out, because the answer would be larger
    than a page (`CONTEXT_PAGE_BYTES`)."""


def dry_run_of(result: CompactResult, **shown: Any) -> DryRunResult:
    """Return the result of a dry run: that of the compaction, and what it would show."""
    known = {field.name: getattr(result, field.name) for field in fields(CompactResult)}
    return DryRunResult(**(known | shown))


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
