"""Errors on the wire: one status table, one shape, `application/problem+json` (M).

1. The domain raises, this file answers: the status of every error class is in `STATUS`.
2. `errors[]` names places. A pointer without a prefix is into the body; those of parameters
   begin with where they stand: `/query/limit`, `/path/model`, `/header/idempotency-key`.
3. What nobody expected is a 500 that says nothing of itself; the log has where it happened.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match

from app.api.schemas.problems import ProblemAnswer
from app.api.wire import Json, MalformedJson
from app.domain.errors import (
    Conflict,
    ContextError,
    ContextLimitUnknown,
    ContextOverflow,
    Forbidden,
    Gone,
    NotFound,
    PayloadTooLarge,
    Problem,
    RateLimited,
    ServiceUnavailable,
    Unauthenticated,
    UnpairedToolResult,
    ValidationError,
)
from app.domain.messages import sendable_json

MEDIA_TYPE = "application/problem+json"

STATUS: Mapping[type[ContextError], int] = {
    ValidationError: 422,
    MalformedJson: 400,
    NotFound: 404,
    Conflict: 409,
    UnpairedToolResult: 409,
    ContextLimitUnknown: 422,
    ContextOverflow: 422,
    Gone: 410,
    PayloadTooLarge: 413,
    Unauthenticated: 401,
    Forbidden: 403,
    RateLimited: 429,
    ServiceUnavailable: 503,
}
"""The HTTP status of every error class."""

_HTTP_CODES = {404: NotFound.code, 405: "METHOD_NOT_ALLOWED", 413: PayloadTooLarge.code}
_RETRY_SECONDS = 1
_log = structlog.get_logger("app.api")


def install(app: FastAPI, routes: Sequence[BaseRoute]) -> None:
    """Answer every error of the app in the one shape; `routes` tell which methods a path has."""

    async def on_context_error(_request: Request, error: Exception) -> Response:
        assert isinstance(error, ContextError)
        return answer_error(error)

    async def on_invalid(_request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return answer_error(invalid(error.errors()))

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        headers = dict(error.headers or {})
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = ", ".join(sorted(_methods(routes, request)))
        code = _HTTP_CODES.get(error.status_code, ValidationError.code)
        return problem(error.status_code, code, _http_detail(error, request), headers=headers)

    app.add_exception_handler(ContextError, on_context_error)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(HTTPException, on_http)


def answer_error(error: ContextError) -> Response:
    """Return the answer to an error of the domain."""
    headers = {}
    if isinstance(error, ServiceUnavailable | RateLimited):
        headers["Retry-After"] = str(error.facts.get("retry_after", _RETRY_SECONDS))
    problems = error.problems if isinstance(error, ValidationError) else ()
    return problem(
        STATUS[type(error)], error.code, error.detail, problems, error.facts, headers=headers
    )


def answer_unexpected(request: Request, error: Exception) -> Response:
    """Return a 500 without internals; the log gets the place, never the error's own words."""
    route = getattr(request.scope.get("route"), "path", None)
    frames = traceback.format_tb(error.__traceback__)
    _log.error("request_failed", route=route, error=type(error).__name__, frames=frames[-8:])
    detail = "Something went wrong here; the log of the service has more"
    return problem(500, ContextError.code, detail)


def problem(
    status: int,
    code: str,
    detail: str,
    problems: Sequence[Problem] = (),
    facts: Mapping[str, Any] | None = None,
    *,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return one problem document."""
    body: dict[str, Any] = {
        "type": f"urn:context-service:problem:{code.lower().replace('_', '-')}",
        "title": code.replace("_", " ").capitalize(),
        "status": status,
        "detail": detail,
        "code": code,
        "errors": [{"pointer": place.pointer, "detail": place.detail} for place in problems],
    }
    for name, value in (facts or {}).items():
        body.setdefault(name, value)
    return Json(sendable_json(body), status, headers=headers, media_type=MEDIA_TYPE)


def invalid(errors: Sequence[Mapping[str, Any]]) -> ValidationError:
    """Return pydantic's complaints as one error of ours."""
    problems = tuple(Problem(_pointer(error["loc"]), error["msg"]) for error in errors)
    places = "1 place" if len(problems) == 1 else f"{len(problems)} places"
    return ValidationError(f"The request is wrong in {places}", problems=problems)


def problems_of(*kinds: type[ContextError]) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of an operation that can end in these errors."""
    found: dict[int | str, dict[str, Any]] = {}
    for kind in kinds:
        status = STATUS[kind]
        codes = [*found.get(status, {}).get("codes", []), kind.code]
        found[status] = {"codes": codes, "first": found.get(status, {}).get("first", kind)}
    return {status: _response(int(status), entry) for status, entry in found.items()}


def _response(status: int, entry: Mapping[str, Any]) -> dict[str, Any]:
    codes = list(dict.fromkeys(entry["codes"]))
    example = {
        "type": f"urn:context-service:problem:{codes[0].lower().replace('_', '-')}",
        "title": codes[0].replace("_", " ").capitalize(),
        "status": status,
        "detail": (entry["first"].__doc__ or "").strip().split("\n")[0],
        "code": codes[0],
        "errors": [],
    }
    response: dict[str, Any] = {
        "description": " or ".join(f"`{code}`" for code in codes),
        "content": {
            MEDIA_TYPE: {
                "schema": {"$ref": f"#/components/schemas/{ProblemAnswer.__name__}"},
                "example": example,
            }
        },
    }
    if status in {STATUS[ServiceUnavailable], STATUS[RateLimited]}:
        response["headers"] = {
            "Retry-After": {
                "description": "Seconds to wait before the next try.",
                "schema": {"type": "string"},
            }
        }
    return response


def _pointer(place: Sequence[int | str]) -> str:
    steps = place[1:] if place and place[0] == "body" else place
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in steps)


def _methods(routes: Sequence[BaseRoute], request: Request) -> set[str]:
    return {
        method
        for route in routes
        if route.matches(request.scope)[0] is not Match.NONE
        for method in getattr(route, "methods", None) or ()
    }


def _http_detail(error: HTTPException, request: Request) -> str:
    if error.status_code == HTTPStatus.NOT_FOUND:
        return "No such path; /docs lists all there are"
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        return f"{request.method} is not among the methods of this path"
    return str(error.detail)
