"""`/v1/caller`: what the key of a request may do."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from app.http.bodies import Json
from app.http.dependencies import caller_of
from app.http.routing import WireRoute
from app.operation.caller_schemas import CallerShown

router = APIRouter(route_class=WireRoute, tags=["health"])


@router.get(
    "/v1/caller",
    summary="Read about the key",
    response_model=CallerShown,
)
async def get_caller(request: Request) -> Response:
    """Return the tenant of the request's key, and whether it may only read."""
    caller = caller_of(request)
    return Json(
        {
            "tenant_id": caller.tenant_id,
            "key_id": caller.key_id,
            "read_only": caller.read_only,
        }
    )
