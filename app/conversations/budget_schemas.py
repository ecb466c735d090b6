"""Schemas of budget and pressure."""

from __future__ import annotations

from typing import Any

from app.http.fields import ResponseSchema, Threshold
from app.models.budget import ContextBudget, Pressure

BUDGET: dict[str, Any] = {
    "total": 128000,
    "max_output_tokens": 4096,
    "system_prompt": 210,
    "skill_prompts": 0,
    "tool_descriptions": 96,
    "summary": 0,
    "conversation": 1840,
    "effective_window": 123904,
    "used_tokens": 2146,
    "remaining_tokens": 121758,
    "used_percentage": 1.73,
}


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
