"""Schemas of the lists of epochs and of reported calls."""

from __future__ import annotations

from datetime import datetime

from app.context.usage.schemas import TokenUsage
from app.formats.message import FormatName
from app.http.fields import ResponseSchema, examples
from app.http.pages import Page
from app.models.budget import Usage

_EPOCH = {
    "epoch_id": "0199a1b2-6c5d-7e4f-8a3b-1c2d3e4f5a6b",
    "epoch": 2,
    "format": "openai_chat",
    "model": "gpt-4o",
    "max_context_tokens": None,
    "cache_break_reason": "compaction",
    "start_seq": 41,
    "created_at": "2026-01-05T09:31:12.000123+00:00",
}
_REPORT = {
    "report_id": "0199a1b2-4455-7a9b-8c0d-1e2f30415263",
    "format": "openai_chat",
    "model": "gpt-4o",
    "epoch": 2,
    "through_seq": 44,
    "token_usage": {
        "input_tokens": 762,
        "output_tokens": 144,
        "cache_creation_tokens": 0,
        "cache_read_tokens": 2048,
        "total_tokens": 2954,
    },
    "estimated_tokens": 2790,
    "regions": {
        "system_prompt": 210,
        "skill_prompts": 0,
        "tool_descriptions": 96,
        "summary": 644,
        "conversation": 1840,
    },
    "created_at": "2026-01-05T09:32:40.000123+00:00",
}


class EpochItem(ResponseSchema):
    """An epoch of the conversation's payloads: each of them extends the one before."""

    model_config = examples(_EPOCH)

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

    model_config = examples(_REPORT)

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
