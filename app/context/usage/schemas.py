"""Schemas of reported usage, of totals, and of the lists of epochs and reports."""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field
from typing_extensions import TypeAliasType

from app.common.schema_errors import NAME_PATTERN
from app.conversations.budget_schemas import Reading
from app.formats.message import FormatName
from app.http.cursors import Page
from app.http.fields import MAX_SEQ, Format, ModelName, RequestSchema, ResponseSchema, examples
from app.models.budget import Usage
from app.models.calibration import Estimate
from app.models.usage_totals import GroupBy

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

UncalibratedReason = TypeAliasType(
    "UncalibratedReason",
    Annotated[
        Literal[
            "never_built",
            "older_epoch",
            "view_changed",
            "reduced",
            "hosted_tools",
            "request_settings",
            "unknown_settings",
            "replayed_reasoning",
            "provider_compaction",
            "server_steps",
            "payload_too_small",
            "unknown_build",
            "implausible_ratio",
        ],
        Field(description="Why a report does not calibrate its model."),
    ],
)


class UsageRequest(RequestSchema):
    """The usage that a provider reported for a call, and the build of that call."""

    model_config = examples(
        {"usage": _USAGE, "format": "openai_chat", "epoch": 1, "through_seq": 12},
        {"usage": _USAGE, "build_id": "0199a1b2-6c5d-7e4f-8a3b-1c2d3e4f5a6b.12"},
        {},
    )

    usage: UsageObject | None = None
    """The provider's usage object as it came: OpenAI's (Chat or Responses), Anthropic's,
    Gemini's, Bedrock's or LiteLLM's, whatever the format of the build. Left out, the last one
    is judged again."""
    format: Format | None = None
    """Format of the build; by default the one built last, first of those whose provider reports
    such an object."""
    model: ModelName | None = None
    """Model of the call; the conversation's by default."""
    epoch: int | None = Field(default=None, ge=0, le=MAX_SEQ)
    """`epoch` of the build; the newest by default."""
    through_seq: int | None = Field(default=None, ge=0, le=MAX_SEQ)
    """`through_seq` of the build; the log's head by default."""
    build_id: str | None = Field(default=None, max_length=256, pattern=NAME_PATTERN)
    """`build_id` of the build, which stands for format, model, epoch, `through_seq` and
    `status`: best for estimates."""


class TokenUsage(ResponseSchema):
    """The tokens of one call, each counted once."""

    input_tokens: int
    """Sent, and neither read from a cache nor written to it."""
    output_tokens: int
    """Generated, reasoning included."""
    cache_creation_tokens: int
    """Sent and written to the provider's cache."""
    cache_read_tokens: int
    """Sent and read from the provider's cache."""
    total_tokens: int
    """Their sum."""


class UsageAnswer(Reading):
    """Whether to compact, and the figures behind it; the pressure is that of `judged_tokens`."""

    report_id: str | None
    """Id of the report that was judged; null for none."""
    token_usage: TokenUsage | None
    """Its usage; null for none."""
    is_current: bool
    """Whether it counts: a report of an older epoch does not."""
    should_compact: bool
    """Whether a compaction is due; one that may run in the background was enqueued."""
    judged_tokens: int | None
    """The larger of the estimate and the reported plus appended tokens."""
    estimate: Estimate | None
    """The service's own count."""
    is_calibrated: bool
    """Whether the report changed the model's factor."""
    uncalibrated_reason: UncalibratedReason | None
    """Why a new report did not change it."""


# --- totals ---


class CallTotals(TokenUsage):
    """The sums of some model calls; each token is counted once."""

    calls: int
    """Number of calls."""
    cost_usd: float | None
    """Cost in USD of the calls with known prices; null when no call has any."""
    unpriced_calls: int
    """Calls of models without known prices."""


class UsageFigures(ResponseSchema):
    """Tokens and cost, and what was saved."""

    reported: CallTotals
    """Calls whose usage was reported."""
    summaries: CallTotals
    """The service's own calls, which write summaries."""
    cost_usd: float | None
    """Cost of both; null when no call has known prices."""
    saved_tokens: int
    """What the log had at each reported call and its payload did not send, by the conversation's
    counter."""
    saved_usd: float | None
    """Their price as input, in USD; null when no call has known prices."""


class UsageRow(UsageFigures):
    """The figures of a day, of a model or of both."""

    day: date | None
    """Day (UTC); null when not grouped by day."""
    model: str | None
    """Name of the model; null when not grouped by model."""


class UsageTotalsAnswer(ResponseSchema):
    """Usage and cost of a range of days."""

    model_config = ConfigDict(serialize_by_alias=True)

    from_: date = Field(alias="from")
    """First day."""
    to: date
    """Last day."""
    group_by: GroupBy
    """What each row is of."""
    data: list[UsageRow]
    """Rows of this page, by day and model."""
    totals: UsageFigures
    """Sums of the whole range, of all pages."""
    next_cursor: str | None
    """The `cursor` of the next page; null on the last page."""


# --- lists ---


class EpochItem(ResponseSchema):
    """An epoch of the conversation's payloads: each of them extends the one before."""

    epoch_id: str
    """Id of the epoch, with which ids of its builds begin."""
    epoch: int
    """Its number among those of its format and model."""
    format: FormatName
    """The format of its payloads."""
    model: str
    """The model of its payloads."""
    max_context_tokens: int | None
    """The context window that its requests set; null where the policy decided."""
    cache_break_reason: str | None
    """Why it began, as in a build; null for the first."""
    start_seq: int
    """The newest message of its first payload."""
    created_at: datetime
    """Time of its first build."""


class EpochPage(Page[EpochItem]):
    """A page of epochs."""


class ReportItem(ResponseSchema):
    """The reported usage of one call."""

    report_id: str
    """Id of the report."""
    format: FormatName
    """The format of the payload that was sent."""
    model: str
    """The model of the call."""
    epoch: int | None
    """The epoch of that payload, if known."""
    through_seq: int | None
    """The newest message in it, if known."""
    token_usage: TokenUsage
    """The tokens of the call."""
    estimated_tokens: int | None
    """The service's own count of the payload before calibration, if known."""
    regions: Usage | None
    """The parts of that count; null without one."""
    created_at: datetime
    """When it was reported."""


class ReportPage(Page[ReportItem]):
    """A page of reports."""
