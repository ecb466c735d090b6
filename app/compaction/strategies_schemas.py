"""Schemas of the strategies."""

from __future__ import annotations

from app.http.fields import ResponseSchema, examples
from app.http.pages import Page
from app.policy.policy import StrategyName


class Strategy(ResponseSchema):
    """A strategy to keep a history within the context window, with the service's defaults."""

    model_config = examples(
        {
            "name": "sandwich",
            "description": "Top, a summary of the middle, bottom.",
            "is_default": True,
            "trigger": 0.75,
            "preserve_top": 5,
            "preserve_bottom": 5,
        }
    )

    name: StrategyName
    """The value for `policy.strategy`."""
    description: str
    """What it does."""
    is_default: bool
    """Whether it is the default."""
    trigger: float | None
    """Share of the effective window at which a compaction is due; null: never."""
    preserve_top: int | None
    """Messages kept at the start; null: all."""
    preserve_bottom: int | None
    """Messages kept at the end; null: all."""


class StrategyList(Page[Strategy]):
    """All strategies."""
