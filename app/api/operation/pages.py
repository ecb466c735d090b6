"""`/`, `/inspector` and `/docs`: the pages that a browser opens first.

1. They need no key and contain nothing of a tenant.
2. They work without a network. The URLs in them are relative, so that they also work behind a
   proxy that adds a path prefix.
3. Their Content-Security-Policy allows files of this service only, and no inline script.
4. The inspector and the API reference are built from `inspector/` into a folder of this package.
   Names of their files contain a hash of their content, so that browsers keep them; the pages
   themselves are asked for again.
5. Without that folder `/inspector` and `/docs` say how to build it, and `/` lists links.
"""

from __future__ import annotations

import re
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse

import app
from app.api.http.bodies import Json
from app.api.http.routing import WireRoute
from app.api.operation.page_schemas import ServiceLinks
from app.domain.common.errors import NotFound

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
_PAGE_HEADERS = _HEADERS | {"Cache-Control": "no-cache", "Referrer-Policy": "no-referrer"}
_HASHED_HEADERS = _HEADERS | {"Cache-Control": "public, max-age=31536000, immutable"}

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
_NOT_BUILT = _PAGE.format(
    title=_TITLE,
    head="",
    body="<h1>This page is not built</h1>\n<p>In a checkout <code>make inspector</code>"
    " builds the inspector and the API reference, as <code>make run</code> does before it starts"
    " the service. Released wheels and images have both.</p>\n<p>The API works without them:"
    ' <a href="openapi.json">its description</a>.</p>\n',
)
_KINDS = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
_FILE_NAME = re.compile(r"[\w-]+\.[a-z]+")

INSPECTOR = Path(app.__file__).with_name("inspector_files")
"""The folder that `inspector/build.ts` writes."""

_EITHER: dict[str, Any] = {
    "content": {"text/html": {"schema": {"type": "string"}, "example": "<!doctype html>…"}}
}


@router.get(
    "/",
    operation_id="get_links",
    summary="Where to start",
    response_model=ServiceLinks,
    responses={200: _EITHER, 303: {"description": "For browsers: the inspector."}},
)
async def get_links(request: Request) -> Response:
    """Return the version, and the paths of documentation and health.

    If `Accept` prefers `text/html` to `application/json`, as browsers do, the answer leads to the
    inspector, or is HTML where that is not built.
    """
    version: str = request.app.version
    headers = _HEADERS | {"Vary": "Accept"}
    links = {"inspector": "/inspector"} if _inspector(request) else {}
    if _quality(request, "text/html") > _quality(request, "application/json"):
        if links:
            return RedirectResponse("inspector", 303, headers)
        return HTMLResponse(_start_page(version), headers=headers)
    body = {"name": _TITLE, "version": version, "inspector": None, **links, **_LINKS}
    return Json(body, headers=headers)


@docs_router.get("/inspector")
async def inspector(request: Request) -> Response:
    """Return the inspector's page; 404 with an explanation where it is not built."""
    return _page(request, "index.html")


@docs_router.get("/docs")
async def docs(request: Request) -> Response:
    """Return the API reference; 404 with an explanation where it is not built."""
    return _page(request, "docs.html")


@docs_router.get("/inspector/{name}")
async def inspector_file(request: Request, name: str) -> Response:
    """Return a file that the inspector's page names."""
    folder = _inspector(request)
    kind = _KINDS.get(name.rpartition(".")[2])
    if folder is None or kind is None or not _FILE_NAME.fullmatch(name):
        raise NotFound("The inspector has no such file")
    if not (path := folder / name).is_file():
        raise NotFound("The inspector has no such file: reload the page")
    return FileResponse(path, media_type=kind, headers=_HASHED_HEADERS)


def _page(request: Request, name: str) -> Response:
    path: Path = request.app.state.inspector / name
    if not path.is_file():  # not built, or built by a release that did not have this page
        return HTMLResponse(_NOT_BUILT, 404, headers=_PAGE_HEADERS)
    return FileResponse(path, media_type="text/html", headers=_PAGE_HEADERS)


def _inspector(request: Request) -> Path | None:
    """Return the folder of the built inspector, None without one."""
    folder: Path = request.app.state.inspector
    return folder if (folder / "index.html").is_file() else None


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
