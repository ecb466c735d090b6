"""Schemas of reported usage, of totals, and of the lists of epochs and reports."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from typing import Annotated, Any

from pydantic import ConfigDict, Field
from typing_extensions import TypeAliasType

from app.common.answers import answer
from app.common.schema_errors import NAME_PATTERN
from app.formats.message import FormatName
from app.http.cursors import Page
from app.http.fields import (
    MAX_SEQ,
    Format,
    ModelName,
    RequestSchema,
    ResponseSchema,
    Threshold,
    examples,
)
from app.models.budget import ContextBudget, Pressure
from app.models.calibration import Estimate
from app.models.usage import ReportItem, TokenUsage, UsageFigures, UsageRow

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


@answer()
@dataclass(frozen=True, slots=True)
class EpochItem:
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


class ReportPage(Page[ReportItem]):
    """A page of reports."""
