"""`/healthz`, `/readyz`, `/metrics` and `/v1/caller`."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from app.common.errors import ServiceUnavailable, Unauthenticated
from app.http.dependencies import caller_of, services
from app.http.errors import problems_of
from app.http.fields import ResponseSchema
from app.http.routing import WireRoute
from app.tenancy.api_keys import Caller


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
    telemetry = services(request).telemetry
    if not telemetry.admits(request.headers.get("authorization", "")):
        raise Unauthenticated("The metrics require the token of the settings")
    body, media_type = await telemetry.scrape()
    return Response(body, media_type=media_type)


@router.get("/v1/caller", summary="Read about the key")
async def get_caller(request: Request) -> Caller:
    """Return the tenant of the request's key, and whether it may only read."""
    return caller_of(request)
