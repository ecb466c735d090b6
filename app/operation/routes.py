"""Health, metrics and the caller, and `/`, `/inspector` and `/docs`, which a browser opens first.

1. The pages need no key and contain nothing of a tenant.
2. They work without a network. The URLs in them are relative, so that they also work behind a
   proxy that adds a path prefix.
3. Their Content-Security-Policy allows files of this service only, and no inline script.
4. The inspector and the API reference are built from `inspector/` into a folder of this package.
   Names of their files contain a hash of their content, so that browsers keep them; the pages
   themselves are asked for again.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse, PlainTextResponse, RedirectResponse

import app
from app.common.errors import NotFound, ServiceUnavailable, Unauthenticated
from app.http.errors import error_answers
from app.http.fields import ResponseSchema
from app.http.routing import WireRoute, caller_of, services
from app.tenancy.api_keys import Caller

router = APIRouter(route_class=WireRoute, tags=["health"])
docs_router = APIRouter(route_class=WireRoute, include_in_schema=False)
"""The API reference, which is no part of the API."""

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff"}
_PAGE_HEADERS = _HEADERS | {"Cache-Control": "no-cache", "Referrer-Policy": "no-referrer"}
_HASHED_HEADERS = _HEADERS | {"Cache-Control": "public, max-age=31536000, immutable"}

_KINDS = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
_FILE_NAME = re.compile(r"[\w-]+\.[a-z]+")

INSPECTOR = Path(app.__file__).with_name("inspector_files")
"""The folder that `inspector/build.ts` writes."""


class Health(ResponseSchema):
    """The service is healthy."""

    status: Literal["ok"]
    """Always `ok`."""


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


@router.get("/readyz", summary="Readiness", responses=error_answers(ServiceUnavailable))
async def readyz(request: Request) -> Health:
    """Return `ok` if the database is available with this version's schema, else `503`."""
    if not await services(request).is_ready():
        raise ServiceUnavailable("The database's schema is older than this version")
    return Health(status="ok")


@router.get(
    "/metrics",
    summary="Metrics",
    response_class=PlainTextResponse,
    responses={200: METRICS, **error_answers(Unauthenticated)},
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


@docs_router.get("/")
async def first_page() -> Response:
    """Lead to the inspector."""
    return RedirectResponse("inspector", 303, _HEADERS)


@docs_router.get("/inspector")
async def inspector() -> Response:
    """Return the inspector's page."""
    return _page("index.html")


@docs_router.get("/docs")
async def docs() -> Response:
    """Return the API reference."""
    return _page("docs.html")


@docs_router.get("/inspector/{name}")
async def inspector_file(name: str) -> Response:
    """Return a file that the inspector's page names."""
    kind = _KINDS.get(name.rpartition(".")[2])
    if kind is None or not _FILE_NAME.fullmatch(name):
        raise NotFound("The inspector has no such file")
    if not (path := INSPECTOR / name).is_file():
        raise NotFound("The inspector has no such file: reload the page")
    return FileResponse(path, media_type=kind, headers=_HASHED_HEADERS)


def _page(name: str) -> Response:
    return FileResponse(INSPECTOR / name, media_type="text/html", headers=_PAGE_HEADERS)
