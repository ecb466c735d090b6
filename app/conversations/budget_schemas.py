"""Schemas of budget and pressure."""

from __future__ import annotations

from typing import Any

from app.http.fields import ResponseSchema, Threshold, examples
from app.models.budget import Pressure

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
READING: dict[str, Any] = {
    "budget": BUDGET,
    "pressure": "ok",
    "notice": False,
    "next_threshold": "due",
    "tokens_to_next": 84587,
}


class Regions(ResponseSchema):
    """The tokens of a payload by what they are used for."""

    system_prompt: int
    """Used by sections, except skills."""
    skill_prompts: int
    """Used by sections of kind skill."""
    tool_descriptions: int
    """Used by tool definitions."""
    summary: int
    """Used by the summary of older messages."""
    conversation: int
    """Used by messages."""


class Budget(Regions):
    """The context window and its use in tokens; percentages from 0 to 100."""

    total: int
    """The context window."""
    max_output_tokens: int
    """Kept free for the answer."""
    effective_window: int
    """total - max_output_tokens."""
    used_tokens: int
    """Sum of the components."""
    remaining_tokens: int
    """effective_window - used_tokens."""
    used_percentage: float
    """used_tokens of effective_window."""


class Estimate(ResponseSchema):
    """A count by the service, and its accuracy."""

    tokens: int
    """Tokens of the payload."""
    method: str
    """The counter, and its correction by reports."""
    margin: float
    """Share to add to it for safety."""
    factor: float
    """Factor that raw counts of this model are multiplied by."""


class Reading(ResponseSchema):
    """A budget with its pressure; all null without a known context window."""

    model_config = examples(READING)

    budget: Budget | None
    """The context window and its use."""
    pressure: Pressure | None
    """The highest level reached."""
    notice: bool | None
    """Whether `notice_at` is reached."""
    next_threshold: Threshold | None
    """The next threshold ahead."""
    tokens_to_next: int | None
    """Tokens left until then."""
