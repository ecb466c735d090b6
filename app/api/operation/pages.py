"""`/` and `/docs`: the pages that a browser opens first.

1. They need no key and contain nothing of a tenant.
2. `/docs` works without a network: its files come from a package. The URLs in it are relative, so
   that it also works behind a proxy that adds a path prefix.
3. Their Content-Security-Policy allows files of this service only, and no inline script.
"""

from __future__ import annotations

from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse, HTMLResponse

from app.api.http.bodies import Json
from app.api.http.routing import WireRoute
from app.api.operation.page_schemas import ServiceLinks

router = APIRouter(route_class=WireRoute, tags=["health"])
docs_router = APIRouter(route_class=WireRoute, include_in_schema=False)
"""The API reference, which is no part of the API."""

_TITLE = "Context Service"
_LINKS = {
    "docs": "/docs",
    "openapi": "/openapi.json",
    "health": "/healthz",
    "readiness": "/readyz",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff"}
_ASSET_HEADERS = _HEADERS | {"Cache-Control": "public, max-age=3600"}

_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
{head}</head>
<body>
{body}</body>
</html>
"""
_DOCS = _PAGE.format(
    title=_TITLE,
    head='<link rel="stylesheet" href="docs/swagger-ui.css">\n',
    body='<div id="swagger-ui"></div>\n<script src="docs/swagger-ui-bundle.js"></script>\n'
    '<script src="docs/start.js"></script>\n',
)
_START = """\
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  showExtensions: true,
  showCommonExtensions: true,
  validatorUrl: null,
});
"""
_ASSETS = {"swagger-ui.css": "text/css", "swagger-ui-bundle.js": "text/javascript"}
"""The files of the package that the page loads, with their media types."""

_EITHER: dict[str, Any] = {
    "content": {"text/html": {"schema": {"type": "string"}, "example": "<!doctype html>…"}}
}


@router.get(
    "/",
    operation_id="get_links",
    summary="Where to start",
    response_model=ServiceLinks,
    responses={200: _EITHER},
)
async def get_links(request: Request) -> Response:
    """Return the version, and the paths of documentation and health.

    The answer is HTML if `Accept` prefers `text/html` to `application/json`, as browsers do.
    """
    version: str = request.app.version
    headers = _HEADERS | {"Vary": "Accept"}
    if _quality(request, "text/html") > _quality(request, "application/json"):
        return HTMLResponse(_start_page(version), headers=headers)
    return Json({"name": _TITLE, "version": version, **_LINKS}, headers=headers)


@docs_router.get("/docs")
async def docs() -> Response:
    """Return the API reference."""
    return HTMLResponse(_DOCS, headers=_HEADERS)


@docs_router.get("/docs/start.js")
async def docs_start() -> Response:
    """Return the script that starts Swagger UI."""
    return Response(_START, media_type="text/javascript", headers=_ASSET_HEADERS)


async def _asset(request: Request) -> Response:
    name = request.url.path.rpartition("/")[2]
    return FileResponse(_folder() / name, media_type=_ASSETS[name], headers=_ASSET_HEADERS)


for _name in _ASSETS:
    docs_router.add_api_route(f"/docs/{_name}", _asset)


@cache
def _folder() -> Path:
    """Return the folder of Swagger UI's files, on first use."""
    return Path(str(files("fastapi_offline") / "static"))


@cache
def _start_page(version: str) -> str:
    items = "\n".join(f'<li><a href="{path[1:]}">{path}</a></li>' for path in _LINKS.values())
    title = f"{_TITLE} {escape(version)}"
    return _PAGE.format(title=title, head="", body=f"<h1>{title}</h1>\n<ul>\n{items}\n</ul>\n")


def _quality(request: Request, media_type: str) -> float:
    """Return the quality that `Accept` names for exactly this media type, 0 without it."""
    for listed in request.headers.get("accept", "").split(","):
        name, *parameters = (part.strip().lower() for part in listed.split(";"))
        if name == media_type:
            return next(map(_number, (p[2:] for p in parameters if p.startswith("q="))), 1.0)
    return 0.0


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
