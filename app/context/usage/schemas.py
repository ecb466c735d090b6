"""Schemas of reported usage."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import TypeAliasType

from app.common.schema_errors import NAME_PATTERN
from app.conversations.budget_schemas import READING, Reading
from app.http.fields import (
    MAX_SEQ,
    Format,
    ModelName,
    RequestSchema,
    ResponseSchema,
    examples,
)
from app.models.calibration import Estimate

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

    model_config = examples(
        {
            "report_id": "0199a1b2-4455-7a9b-8c0d-1e2f30415263",
            "token_usage": {
                "input_tokens": 762,
                "output_tokens": 144,
                "cache_creation_tokens": 0,
                "cache_read_tokens": 2048,
                "total_tokens": 2954,
            },
            "is_current": True,
            "should_compact": False,
            "judged_tokens": 2954,
            "estimate": {
                "tokens": 2146,
                "method": "tokenizer x 1.31 (5 reports)",
                "margin": 0.02,
                "factor": 1.31,
            },
            "is_calibrated": True,
            "uncalibrated_reason": None,
            **READING,
        }
    )

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
