"""`/v1/strategies`: the ways to keep a history inside the window (D1, D2)."""

from __future__ import annotations

import inspect

from fastapi import APIRouter, Response

from app.api.http.bodies import Json
from app.api.http.routing import WireRoute
from app.api.models.model_schemas import StrategyList
from app.domain.common.policy import Policy
from app.domain.compaction.strategies import STRATEGIES, Strategy

router = APIRouter(route_class=WireRoute, tags=["models"])


@router.get(
    "/v1/strategies",
    operation_id="list_strategies",
    summary="List strategies",
    response_model=StrategyList,
)
async def list_strategies() -> Response:
    """Return every strategy with its trigger and what it keeps, for the built-in settings."""
    policy = Policy()
    data = [_item(strategy, policy) for strategy in STRATEGIES.values()]
    return Json({"data": data, "next_cursor": None})


def _item(strategy: Strategy, policy: Policy) -> dict[str, object]:
    top, bottom = strategy.preserved(policy)
    return {
        "name": strategy.name,
        "description": _sentence(strategy),
        "is_default": strategy.name is policy.strategy,
        "trigger": strategy.trigger(policy),
        "preserve_top": top,
        "preserve_bottom": bottom,
    }


def _sentence(strategy: Strategy) -> str:
    """Return the class's own sentence, without the requirement ids."""
    return (inspect.getdoc(type(strategy)) or "").partition(" (")[0] + "."
