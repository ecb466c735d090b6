"""`/healthz`, `/readyz` and `/metrics`."""

from __future__ import annotations

from typing import Any, Literal, Protocol

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from app.common.errors import ServiceUnavailable, Unauthenticated
from app.http.dependencies import services
from app.http.errors import problems_of
from app.http.fields import ResponseSchema
from app.http.routing import WireRoute


class Health(ResponseSchema):
    """The service is healthy."""

    status: Literal["ok"]
    """Always `ok`."""


class Ready(Health):
    """The service can serve."""

    degraded: list[str]
    """What does not work: `summarizer_without_key` if the key of the configured summarizer is
    missing."""


router = APIRouter(route_class=WireRoute, tags=["health"])

METRICS: dict[str, Any] = {
    "description": "The metrics, in the text format of Prometheus.",
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
    """The metrics of the service, and the access to them."""

    def admits(self, authorization: str) -> bool:
        """Return whether an `Authorization` header, which may be empty, may read them."""
        ...

    async def scrape(self) -> tuple[bytes, str]:
        """Return the metrics as text, and the media type."""
        ...


@router.get("/healthz", summary="Liveness")
async def healthz() -> Health:
    """Return `ok` while the process runs, without access to the database."""
    return Health(status="ok")


@router.get("/readyz", summary="Readiness", responses=problems_of(ServiceUnavailable))
async def readyz(request: Request) -> Ready:
    """Return `ok` if the database is available with this version's schema, else `503`."""
    if not await services(request).is_ready():
        raise ServiceUnavailable("The database's schema is older than this version")
    return Ready(status="ok", degraded=list(services(request).degraded))


@router.get(
    "/metrics",
    summary="Metrics",
    response_class=PlainTextResponse,
    responses={200: METRICS, **problems_of(Unauthenticated)},
)
async def metrics(request: Request) -> Response:
    """Return all metrics in the text format of Prometheus, without data of tenants.

    Each of several processes on one port returns the metrics of all. A token in the settings is
    required as `Authorization: Bearer`. Metrics of the database's queues are missing while the
    database is unavailable.
    """
    service_metrics: Metrics = request.app.state.metrics
    if not service_metrics.admits(request.headers.get("authorization", "")):
        raise Unauthenticated("The metrics require the token of the settings")
    body, media_type = await service_metrics.scrape()
    return Response(body, media_type=media_type)
