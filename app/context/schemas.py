"""Schemas of builds, of the context state, and of reported usage with its lists and totals."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field
from typing_extensions import TypeAliasType

from app.common.answer_schemas import AnyObject, answer
from app.common.schema_errors import NAME_PATTERN
from app.context.rendering import Breakpoint
from app.context.usage_repository import EpochItem
from app.conversations.conversation import BreakReason
from app.conversations.messages.service import AppendResult
from app.conversations.receipt import CompactResult, Failure
from app.formats.message import FormatName, Role
from app.http.cursors import Page
from app.http.fields import (
    MAX_SEQ,
    MAX_TOKENS,
    Format,
    HttpStatus,
    MessageObject,
    ModelName,
    PayloadItem,
    PayloadObject,
    RequestSchema,
    ResponseSchema,
    Threshold,
    Tokens,
    examples,
)
from app.models.budget import ContextBudget, Pressure
from app.models.calibration import Estimate
from app.models.prefix_reports import MAX_REMOVED, CacheMiss, RemovedReasoning
from app.models.usage import ReportItem, TokenUsage, UsageFigures, UsageRow
from app.policy.policy import StrategyName
from app.prompt.schemas import MAX_CONTENT_CHARS, Sections, Tools

_USAGE: dict[str, Any] = {
    "prompt_tokens": 2810,
    "completion_tokens": 144,
    "total_tokens": 2954,
    "prompt_tokens_details": {"cached_tokens": 2048},
}
UsageObject = TypeAliasType(
    "UsageObject",
    Annotated[
        dict[str, Any],
        Field(description="A provider's usage object, as it came.", examples=[_USAGE]),
    ],
)


class UsageRequest(RequestSchema):
    """The usage that a provider reported for a call, and the build of that call."""

    model_config = examples(
        {"usage": _USAGE, "format": "openai_chat", "epoch": 1, "through_seq": 12},
        {"usage": _USAGE, "build_id": "0199a1b2-6c5d-7e4f-8a3b-1c2d3e4f5a6b.12"},
        {
            "usage": {"input_tokens": 2810, "output_tokens": 144},
            "build_id": "0199a1b2-6c5d-7e4f-8a3b-1c2d3e4f5a6b.12",
            "input_transformations": [
                {
                    "type": "reasoning",
                    "action": "removed",
                    "id": "rs_0f3a",
                    "reason": "prefix_mismatch",
                }
            ],
            "cache_diagnostics": {
                "type": "cache_miss",
                "reason": "input_changed",
                "cache_missed_tokens": 2048,
            },
        },
        {},
    )

    usage: UsageObject | None = None
    """The provider's usage object as it came: OpenAI's (Chat or Responses), Anthropic's,
    Gemini's or LiteLLM's, whatever the format of the build. Left out, the last one is judged
    again."""
    format: Format | None = None
    """Format of the build; by default the one built last."""
    model: ModelName | None = None
    """Model of the call; the conversation's by default."""
    epoch: int | None = Field(default=None, ge=0, le=MAX_SEQ)
    """`epoch` of the build; the newest by default."""
    through_seq: int | None = Field(default=None, ge=0, le=MAX_SEQ)
    """`through_seq` of the build; the log's head by default."""
    build_id: str | None = Field(default=None, max_length=256, pattern=NAME_PATTERN)
    """`build_id` of the build, which stands for format, model, epoch, `through_seq` and
    `status`: best for estimates."""
    input_transformations: list[AnyObject] = Field(default_factory=list, max_length=MAX_REMOVED)
    """The field of this name in the answer of OpenAI or Anthropic, as it came: reasoning that the
    provider removed is neither sent again nor counted."""
    cache_diagnostics: AnyObject | None = None
    """`prompt_cache_diagnostics` of OpenAI's answer or `diagnostics` of Anthropic's, as it
    came."""


class Reading(ResponseSchema):
    """A budget with its pressure; all null without a known context window."""

    budget: ContextBudget | None
    """The context window and its use."""
    pressure: Pressure | None
    """The highest level reached."""
    notice: bool | None
    """Whether `notice_at` is reached."""
    next_threshold: Threshold | None
    """The next threshold ahead."""
    tokens_to_next: int | None
    """Tokens left until then."""


class UsageAnswer(Reading):
    """Whether to compact, and the figures for it; the pressure is that of `judged_tokens`."""

    report_id: str | None
    """Id of the report that was judged; null for none."""
    token_usage: TokenUsage | None
    """Its usage; null for none."""
    removed_reasoning: list[RemovedReasoning]
    """Reasoning that the provider removed, as it was reported."""
    cache_miss: CacheMiss | None
    """What the provider said of its cache; null for a hit, and where it said nothing."""
    current: bool
    """Whether it counts: a report of an older epoch does not."""
    should_compact: bool
    """Whether a compaction is due; one that may run in the background was enqueued."""
    judged_tokens: int | None
    """The larger of the estimate and the reported plus appended tokens."""
    estimate: Estimate | None
    """How the service counts."""
    calibrated: bool
    """Whether the report changed the model's factor."""


class UsageTotalsAnswer(ResponseSchema):
    """Usage and cost of a range of days."""

    model_config = ConfigDict(serialize_by_alias=True)

    from_: date = Field(alias="from")
    """First day."""
    to: date
    """Last day."""
    data: list[UsageRow]
    """Rows of this page, by day and model."""
    totals: UsageFigures
    """Sums of the whole range, of all pages."""
    next_cursor: str | None
    """The `cursor` of the next page; null on the last page."""


class EpochPage(Page[EpochItem]):
    """A page of epochs."""


class ReportPage(Page[ReportItem]):
    """A page of reports."""


class StepAppend(RequestSchema):
    """A batch to append before a build: all messages or none."""

    messages: list[MessageObject]
    """1 to 1000 messages in `format`."""
    format: Format | None = None
    """Format of the messages; that of the build by default."""
    expected_seq: int | None = Field(default=None, ge=0, le=MAX_SEQ)
    """409 unless this is the newest seq of the log, or all messages are stored already."""


class Known(RequestSchema):
    """An earlier build whose payload the caller has."""

    build_id: str = Field(max_length=256)
    """The `build_id` of that build."""
    through_seq: int | None = Field(default=None, ge=0, le=MAX_SEQ)
    """The newest message that the caller has; by default the newest in that build."""


class CallSettings(RequestSchema):
    """Settings of the next model call; every field has a default."""

    format: Format = FormatName.OPENAI_CHAT
    model: ModelName | None = None
    """Model of this call; the conversation's by default."""
    max_output_tokens: Tokens | None = None
    """Tokens to keep free for the answer; the policy's by default."""
    context_window: int | None = Field(default=None, ge=-MAX_TOKENS, le=MAX_TOKENS)
    """Context window for this call, if it should be smaller than the model's."""
    sections: Sections = Field(default_factory=list)
    """Sections for this call, merged by name."""
    tools: Tools = Field(default_factory=list)
    """Tools for this call, merged by name."""
    status: str | None = Field(default=None, max_length=MAX_CONTENT_CHARS)
    """What the agent does elsewhere; it replaces the stored sections of kind `status`.
    `dynamic_position` sets its place, by default the tail."""
    known: Known | None = None
    """The build whose payload you have. The answer then has `delta: true` and only new items:
    keep your first `base_items` items, append those of the payload, and put `tail` after
    them for this call. Where that is impossible, the payload is whole."""


class ContextRequest(CallSettings):
    """Settings of the next model call, and what to store before the build."""

    model_config = examples(
        {"format": "anthropic", "model": "claude-sonnet-4-5"},
        {
            "append": {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [
                            {
                                "id": "call_1",
                                "type": "function",
                                "function": {"name": "weather", "arguments": '{"city":"Bergen"}'},
                            }
                        ],
                    },
                    {"role": "tool", "tool_call_id": "call_1", "content": "Rain, 8 degrees."},
                ]
            },
            "report": {
                "usage": {"prompt_tokens": 2146, "completion_tokens": 20, "total_tokens": 2166},
                "build_id": "0199a1b2-6c5d-7e4f-8a3b-1c2d3e4f5a6b.1",
            },
        },
    )

    append: StepAppend | None = None
    """Messages to append before the build, as by `POST …/messages`. They stay stored when the
    build fails: the error then has `appended`."""
    report: UsageRequest | None = None
    """The usage of the model call that the appended messages come from, as by `POST …/usage`. It
    is stored after the append."""


class StateShown(ResponseSchema):
    """The summary that builds show, the seqs it stands for, and problems with the next one."""

    strategy: StrategyName | None
    """The strategy that made it."""
    summary: str | None
    """Its text; null when there is none."""
    summary_range: tuple[int, int] | None
    """Seqs it stands for, the end excluded."""
    compressed_at: datetime | None
    """When it was made."""

    last_failure: Failure | None
    """The last automatic compaction that failed; null once one has succeeded since."""


class PayloadDiagnostics(ResponseSchema):
    """What a payload consists of."""

    format: FormatName
    """The format of the payload."""
    stable_items: int
    """How many of the first items will not change."""
    prefix_hash: str
    """Hash of the prefix that will not change."""
    breakpoints: list[Breakpoint]
    """Where a cached prefix may end."""


class Payload(ResponseSchema):
    """A payload, and how the next one continues it."""

    payload: PayloadObject
    """Splat it into the SDK's call."""
    betas: list[str]
    """Beta features of Anthropic that the payload needs: `betas` of
    `client.beta.messages.create`, or the header `anthropic-beta`. Mostly empty; a payload
    with a compaction of Anthropic's own has one."""
    epoch: int
    """Payloads of one epoch extend one another."""
    through_seq: int
    """The newest message in the payload."""
    tail: list[PayloadItem]
    """The last items of the payload, which the next build replaces."""


class MeasuredPayload(Payload):
    """A payload with its tokens."""

    tokens_used: int
    """Tokens of the payload."""
    pressure: Pressure
    """The highest level reached."""
    defers_natively: bool
    """Whether the provider itself defers tools: then answer searches natively."""
    degraded: list[str]
    """What the payload lacks in order to fit, or what could not be done, in order.
    To fit: `tool_results_cleared`, `all_tool_results_cleared`, `repeated_results_cleared`,
    `messages_shortened`, `media_left_out`, `oldest_turns_dropped`, `extractive_summary`,
    `preserved_ranges_summarised`, `reasoning_dropped`, `tail_left_out`. Not done:
    `tool_uses_unread`, `compaction_pending`, `summariser_unavailable`, `dropped_without_summary`,
    `provider_compaction_unavailable`, `summary_role_user`, `cache_breakpoints_left_out`.
    `hosted_tool_left_out:` with a type stands for a hosted tool of another format.
    `context_window_assumed:` with a model: the registry has no model of this name, and the
    context window is that of this other model of its family."""
    cache_break_reason: BreakReason | None
    """Why this epoch began; null for the first, and in a dry run where the build would extend the
    last payload. With `budget_changed` the bytes of the prefix may stay the same."""


class BuildDiagnostics(PayloadDiagnostics):
    """How a payload came about: for people and logs, no loop needs it."""

    budget: ContextBudget
    """The context window and its use by this payload."""
    notice: bool
    """Whether `notice_at` is reached."""
    next_threshold: Threshold | None
    """The next threshold ahead."""
    tokens_to_next: int | None
    """Tokens left until then."""
    estimate: Estimate
    """How `tokens_used` was counted."""
    summary_used: bool
    """Whether a summary stands for older messages."""
    compaction: CompactResult | None
    """The compaction in this build."""
    deferred_tools: int
    """Number of deferred tool definitions."""


class EarlierDiagnostics(PayloadDiagnostics):
    """What an earlier payload consists of."""

    item_seqs: list[int | None]
    """The newest message in each item of the payload; null for the system prompt, summaries and
    notes."""


class EarlierBuild(Payload):
    """The payload of an earlier build, byte for byte."""

    build_id: str
    """Id of this build."""
    diagnostics: EarlierDiagnostics
    """What it consists of."""


class BuiltContext(MeasuredPayload):
    """The payload for the next model call; what a loop does not need is below `diagnostics`."""

    build_id: str
    """Id of this build; `as_of` takes it."""
    delta: bool
    """Whether the payload has only new items."""
    base_items: int
    """Items a delta is appended after; 0 for a full payload."""
    appended: AppendResult | None
    """The stored batch; null if the request has no `append`."""
    reported: UsageAnswer | None
    """The stored report; null if the request has no `report`."""
    diagnostics: BuildDiagnostics
    """How the payload came about."""


class Thresholds(ResponseSchema):
    """The tokens from which a payload has reached each threshold."""

    notice: int
    """`notice` is true."""
    due: int | None
    """A compaction is due; null for a strategy without one."""
    compact: int
    """A build compacts before it returns."""
    blocked: int
    """A build compacts even if `compaction.auto` is false."""


class DryRunMessage(ResponseSchema):
    """A message in a payload, without its content."""

    seq: int
    """Its seq."""
    role: Role
    """Its role."""
    token_count: int
    """Its tokens there, before calibration; a cleared result has at most 80."""
    state: Literal["verbatim", "preview", "shortened", "cleared"]
    """`preview`: the beginning of a large result; `shortened`: beginning and end of an oversized
    message; `cleared`: a placeholder stands for the result."""
    pinned: bool
    """Whether it is pinned."""


class SummaryPlace(ResponseSchema):
    """A summary in a payload."""

    summary_range: list[int]
    """Seqs it stands for, the end excluded."""
    token_count: int
    """Tokens of the message that shows it."""


class DryRunDiagnostics(BuildDiagnostics):
    """How a payload would come about, and which messages of the log it would show."""

    shown_ranges: list[list[int]]
    """Ranges of seqs, the end excluded, whose messages the payload shows."""
    shown_messages: list[DryRunMessage]
    """The newest 1,000 messages that the payload shows, in order."""
    summaries: list[SummaryPlace]
    """The summaries that the payload shows."""
    stable_through_seq: int | None
    """The newest message whose items would not change; null without any."""
    breakpoint_seqs: list[int | None]
    """The last message of the item of each breakpoint; null where that is a summary."""
    thresholds: Thresholds
    """The thresholds of this payload in tokens."""


class DryRunContext(MeasuredPayload):
    """What the next build would return, and which messages of the log its payload shows."""

    payload: PayloadObject | None  # type: ignore[assignment]  # which may be left out
    """The payload; null with `payload=false`."""
    diagnostics: DryRunDiagnostics
    """How the payload would come about."""


class OverflowRequest(CallSettings):
    """Settings of the payload after the cut, and the provider's error."""

    model_config = examples({"error": {"code": "context_length_exceeded"}, "error_status": 400})

    error: str | AnyObject | list[AnyObject] | None = None
    """The body of the provider's error: the JSON it sent, an object or an array, or text."""
    error_status: HttpStatus | None = None
    """The HTTP status of the provider's error."""


@answer()
@dataclass(frozen=True, slots=True, kw_only=True)
class OverflowAnswer(CompactResult):
    """What was done, and the payload to try again with.

    With the verdict `output_too_large` nothing is cut: `compacted` is false, and the payload has a
    lower output limit.
    """

    verdict: Literal["input_too_long", "output_too_large", "media_refused", "reasoning_refused"]
    """What the error means: the input is too long for the model, only the requested output is
    too large, or images, documents or reasoning are refused."""
    max_output_tokens: int | None
    """The lower output limit of the payload, null where the input is too long. Send it with the
    next builds, or set `budget.max_output_tokens` of the policy."""
    context: BuiltContext
    """The build to try again with."""
