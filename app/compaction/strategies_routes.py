"""`GET /v1/strategies`: the compaction strategies. [strategy.pure]"""

from __future__ import annotations

from fastapi import APIRouter

from app.compaction.strategies import STRATEGIES
from app.http.fields import ResponseSchema
from app.http.pages import Page
from app.http.routing import WireRoute
from app.policy.policy import Policy, StrategyName


class Strategy(ResponseSchema):
    """A strategy to keep a history within the context window, with the service's defaults."""

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


router = APIRouter(route_class=WireRoute, tags=["models"])


@router.get("/v1/strategies", summary="List strategies")
async def list_strategies() -> StrategyList:
    """Return every strategy with its trigger and what it keeps, for the built-in settings."""
    policy = Policy()
    data = []
    for strategy in STRATEGIES.values():
        top, bottom = strategy.preserved(policy)
        shown = Strategy.of(
            strategy,
            is_default=strategy.name is policy.strategy,
            trigger=Policy(strategy=strategy.name).due_ratio,
            preserve_top=top,
            preserve_bottom=bottom,
        )
        data.append(shown)
    return StrategyList(data=data, next_cursor=None)
