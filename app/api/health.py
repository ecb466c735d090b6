"""`/healthz` and `/readyz`, for whoever watches the process."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from app.api.deps import services
from app.api.errors import problems_of
from app.api.routing import WireRoute
from app.api.schemas.health import Health
from app.api.wire import Json
from app.domain.errors import ServiceUnavailable

router = APIRouter(route_class=WireRoute, tags=["health"])


@router.get("/healthz", operation_id="healthz", summary="Is it alive?", response_model=Health)
async def healthz() -> Response:
    """Answer as long as the process can, whatever the database does."""
    return Json({"status": "ok"})


@router.get(
    "/readyz",
    operation_id="readyz",
    summary="Can it work?",
    response_model=Health,
    responses=problems_of(ServiceUnavailable),
)
async def readyz(request: Request) -> Response:
    """Answer `ok` when the database answers and has this version's schema, else `503`."""
    if not await services(request).is_ready():
        raise ServiceUnavailable("The database's schema is older than this version")
    return Json({"status": "ok"})
