"""`GET /v1/strategies`: the compaction strategies. [strategy.pure]"""

from __future__ import annotations

from fastapi import APIRouter

from app.compaction.strategies import STRATEGIES
from app.compaction.strategies_schemas import Strategy, StrategyList
from app.http.routing import WireRoute
from app.policy.policy import Policy

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
