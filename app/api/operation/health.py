"""`/healthz`, `/readyz` and `/metrics`, for whoever watches the process."""

from __future__ import annotations

from typing import Any, Protocol

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from app.api.http.bodies import Json
from app.api.http.dependencies import services
from app.api.http.errors import problems_of
from app.api.http.routing import WireRoute
from app.api.operation.health_schemas import Health
from app.domain.common.errors import ServiceUnavailable, Unauthenticated

router = APIRouter(route_class=WireRoute, tags=["health"])

METRICS: dict[str, Any] = {
    "description": "The metrics, as Prometheus reads them.",
    "content": {
        "text/plain": {
            "schema": {"type": "string"},
            "example": "# HELP context_appends_total Appends that stored something\n"
            "# TYPE context_appends_total counter\n"
            "context_appends_total 1027.0\n",
        }
    },
}


class Metrics(Protocol):
    """Knows the metrics of the service, and who may read them."""

    def admits(self, authorization: str) -> bool:
        """Tell whether an `Authorization` header, which may be empty, may read them."""
        ...

    async def scrape(self) -> tuple[bytes, str]:
        """Return them as text, and its media type."""
        ...


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


@router.get(
    "/metrics",
    operation_id="metrics",
    summary="What has it done?",
    response_class=PlainTextResponse,
    responses={200: METRICS, **problems_of(Unauthenticated)},
)
async def metrics(request: Request) -> Response:
    """Answer all metrics of the service in the text format of Prometheus, nothing of a tenant.

    Of several processes on one port each answers for all. With a token in the settings it has to
    come as `Authorization: Bearer`. While the database is away, what waits there is missing.
    """
    found: Metrics = request.app.state.metrics
    if not found.admits(request.headers.get("authorization", "")):
        raise Unauthenticated("The metrics need the token of the settings")
    body, media_type = await found.scrape()
    return Response(body, media_type=media_type)
