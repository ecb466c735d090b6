"""`GET /v1/strategies`: the compaction strategies. [strategy.pure]"""

from __future__ import annotations

from fastapi import APIRouter, Response

from app.compaction.strategies import STRATEGIES
from app.compaction.strategies_schemas import StrategyList
from app.http.bodies import Json
from app.http.routing import WireRoute
from app.policy.policy import Policy

router = APIRouter(route_class=WireRoute, tags=["models"])


@router.get(
    "/v1/strategies",
    summary="List strategies",
    response_model=StrategyList,
)
async def list_strategies() -> Response:
    """Return every strategy with its trigger and what it keeps, for the built-in settings."""
    policy = Policy()
    data = []
    for strategy in STRATEGIES.values():
        top, bottom = strategy.preserved(policy)
        item = {
            "name": strategy.name,
            "description": strategy.description,
            "is_default": strategy.name is policy.strategy,
            "trigger": Policy(strategy=strategy.name).due_ratio,
            "preserve_top": top,
            "preserve_bottom": bottom,
        }
        data.append(item)
    return Json({"data": data, "next_cursor": None})
