"""`/`, `/inspector` and `/docs`: the pages that a browser opens first.

1. They need no key and contain nothing of a tenant.
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

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse, RedirectResponse

import app
from app.common.errors import NotFound
from app.http.bodies import Json
from app.http.fields import ResponseSchema
from app.http.routing import WireRoute

_LINKS = {
    "name": "Context Service",
    "version": "",
    "inspector": "/inspector",
    "docs": "/docs",
    "openapi": "/openapi.json",
    "health": "/healthz",
    "readiness": "/readyz",
}


class ServiceLinks(ResponseSchema):
    """The version of the service, and the paths to start from."""

    name: str
    """Name of the service."""
    version: str
    """Version of the service."""
    inspector: str
    """Path of the inspector, for a browser."""
    docs: str
    """Path of the API reference, for a browser."""
    openapi: str
    """Path of the OpenAPI document."""
    health: str
    """Path of the liveness check."""
    readiness: str
    """Path of the readiness check."""


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
_KIND = re.compile("text/html|application/json")
_FILE_NAME = re.compile(r"[\w-]+\.[a-z]+")

INSPECTOR = Path(app.__file__).with_name("inspector_files")
"""The folder that `inspector/build.ts` writes."""


@router.get(
    "/",
    summary="Where to start",
    response_model=ServiceLinks,
    responses={303: {"description": "For browsers: the inspector."}},
)
async def get_links(request: Request) -> Response:
    """Return the version, and the paths of documentation and health.

    If `Accept` names `text/html` before `application/json`, as browsers do, the answer leads to the
    inspector.
    """
    headers = _HEADERS | {"Vary": "Accept"}
    if _KIND.findall(request.headers.get("accept", "").lower())[:1] == ["text/html"]:
        return RedirectResponse("inspector", 303, headers)
    return Json(_LINKS | {"version": request.app.version}, headers=headers)


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
