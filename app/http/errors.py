"""Error responses: `application/problem+json` (RFC 9457) with a status for each error class.

1. A pointer in `errors[]` is into the body. Pointers of parameters begin with their location:
   `/query/limit`, `/path/model`, `/header/idempotency-key`.
2. An unexpected error is a 500 without details; the log has the code location.
3. A problem document has at most 64 KiB: at most a hundred places, and truncated texts. pydantic
   creates objects for all errors or for none: of a body with very many only their number is told.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from pydantic import ConfigDict, TypeAdapter
from pydantic import ValidationError as PydanticError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.common.errors import (
    ContextError,
    NotFound,
    PayloadTooLarge,
    Problem,
    RateLimited,
    ServiceUnavailable,
    Unauthenticated,
    ValidationError,
)
from app.common.logs import places, request_id
from app.common.schema_errors import in_body, pointer_to, schema_problems
from app.common.texts import sendable_json
from app.http.bodies import EncodedBody, UnknownParameter, dump
from app.http.fields import ResponseSchema, examples

MEDIA_TYPE = "application/problem+json"
MAX_PROBLEM_BYTES = 65_536
"""The size of the largest problem document."""
_MAX_PLACES, _FEW_PLACES = 100, 5
_MAX_CHARACTERS = 1_000
_MAX_ERRORS = 1_000
"""The number of errors whose objects pydantic creates within milliseconds."""
_KEY = re.compile(r"\[.*\]\Z", re.DOTALL)
_STANDARD_FIELDS = ("type", "title", "status", "detail", "code", "errors", "request_id")


class ProblemPlace(ResponseSchema):
    """A place of a request that is wrong."""

    pointer: str
    """JSON pointer into the body, or to a parameter: `/query/limit`."""
    detail: str
    """What is wrong there."""


class ProblemAnswer(ResponseSchema):
    """An RFC 9457 problem, with further fields for some codes."""

    model_config = ConfigDict(extra="allow") | examples(
        {
            "type": "urn:context-service:problem:conflict",
            "title": "Conflict",
            "status": 409,
            "detail": "The log's head is 12, not 11",
            "code": "CONFLICT",
            "errors": [],
            "request_id": "0199a1b2-3c4d-7e5f-8a9b-2f6b7c8d9e0f",
            "head_seq": 12,
            "expected_seq": 11,
        }
    )

    type: str
    """URN of the kind of problem."""
    title: str
    """Name of the kind of problem."""
    status: int
    """The HTTP status."""
    detail: str
    """The cause of this problem."""
    code: str
    """Stable code of the kind of problem, for programs."""
    errors: list[ProblemPlace]
    """The places that are wrong, if known; the first hundred of them."""
    request_id: str
    """Id of the request, as in `X-Request-Id` and in the log of the service."""


def kinds_of(kind: type[ContextError] = ContextError) -> Iterator[type[ContextError]]:
    """Yield all kinds of errors, each before those that are more special."""
    for child in kind.__subclasses__():
        yield child
        yield from kinds_of(child)


_HTTP_CODES = {404: NotFound.code, 405: "METHOD_NOT_ALLOWED", 413: PayloadTooLarge.code}
_RETRY_SECONDS = 1
_log = logging.getLogger("app.api")


def install(app: FastAPI) -> None:
    """Install the handlers of what is raised outside of the routes."""

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        headers = dict(error.headers or {})
        detail = str(error.detail)
        if error.status_code == HTTPStatus.NOT_FOUND:
            detail = "Unknown path; see /docs"
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            path = request.scope["path"]
            routes = [r for r in app.routes if isinstance(r, Route) and r.path_regex.match(path)]
            # Of several templates the one with the fewest parameters is meant.
            near = min(routes, key=lambda r: (r.path.count("{"), -len(r.path)), default=None)
            of_path = (r.methods or () for r in routes if near is not None and r.path == near.path)
            methods = set().union(*of_path)
            headers["Allow"] = ", ".join(sorted(methods))
            detail = f"The path does not allow {request.method}"
        code = _HTTP_CODES.get(error.status_code, ValidationError.code)
        return problem(error.status_code, code, detail, headers=headers)

    async def on_unexpected(_request: Request, _error: Exception) -> Response:
        return _unexpected()  # FastAPI raises the error again, and the request logging logs it

    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(Exception, on_unexpected)


def answer_error(error: ContextError) -> Response:
    """Return the response to an error of the domain."""
    headers = {}
    if isinstance(error, ServiceUnavailable | RateLimited):
        headers["Retry-After"] = str(error.facts.get("retry_after", _RETRY_SECONDS))
    if isinstance(error, Unauthenticated):
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, EncodedBody):
        headers["Accept-Encoding"] = "identity"
    return problem(
        error.status, error.code, error.sentence, error.problems, error.facts, headers=headers
    )


def answer_unexpected(request: Request, error: Exception) -> Response:
    """Return a 500 without details; the log has the code location, not the error's text."""
    route = getattr(request.scope.get("route"), "path", None)
    data = {"route": route, "error": type(error).__name__, "places": places(error)}
    _log.error("request_failed", extra={"data": data})
    return _unexpected()


def _unexpected() -> Response:
    return problem(500, ContextError.code, "Internal error; see the log of the service")


def problem(
    status: int,
    code: str,
    detail: str,
    problems: Sequence[Problem] = (),
    facts: Mapping[str, Any] | None = None,
    *,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return a problem document."""
    body = _document(status, code, _cut(detail), problems[:_MAX_PLACES])
    body["request_id"] = request_id.get()
    for name, value in (facts or {}).items():
        body.setdefault(name, _cut(value) if isinstance(value, str) else value)
    written = dump(sendable_json(body))
    if len(written) > MAX_PROBLEM_BYTES:  # without the facts, and most places (rule 3)
        body["errors"] = body["errors"][:_FEW_PLACES]
        written = dump(sendable_json({name: body[name] for name in _STANDARD_FIELDS}))
    return Response(written, status, headers, MEDIA_TYPE)


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}…"


def error_answers(*kinds: type[ContextError]) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI `responses` of an operation with these errors."""
    codes: dict[int, dict[str, None]] = {}
    for kind in kinds:
        codes.setdefault(kind.status, {})[kind.code] = None
    schema = {"$ref": f"#/components/schemas/{ProblemAnswer.__name__}"}
    return {
        status: {
            "description": " or ".join(f"`{code}`" for code in named),
            "content": {MEDIA_TYPE: {"schema": schema}},
        }
        for status, named in codes.items()
    }


def _document(status: int, code: str, detail: str, problems: Sequence[Problem]) -> dict[str, Any]:
    return {
        "type": f"urn:context-service:problem:{code.lower().replace('_', '-')}",
        "title": code.replace("_", " ").capitalize(),
        "status": status,
        "detail": detail,
        "code": code,
        "errors": [
            {"pointer": _cut(place.pointer), "detail": _cut(place.detail)} for place in problems
        ],
    }


def validated(schema: TypeAdapter[Any], value: Any) -> Any:
    """Return a parsed body as an instance of the schema; raises ValidationError."""
    try:
        return schema.validate_python(value)
    except PydanticError as error:
        count = error.error_count()
        is_few = count <= _MAX_ERRORS
        errors = error.errors(include_url=False, include_input=False) if is_few else []
        raise validation_error(in_body(errors), value, count) from error


def validation_error(
    errors: Sequence[Mapping[str, Any]], body: Any, count: int | None = None
) -> ValidationError:
    """Return pydantic's errors as one error; `body` is the parsed body that has them.

    `count` is the number of errors where `errors` holds only some of them.
    """
    problems = schema_problems(errors[:_MAX_PLACES], body)
    return ValidationError(_summary(problems, count or len(errors)), problems=problems)


def refuse_unknown_query(request: Request, accepted: frozenset[str]) -> None:
    """Raise UnknownParameter for query parameters that an operation does not accept.

    `name[]` in `accepted` stands for all parameters `name[key]`.
    """
    unknown = [
        name
        for name in request.query_params
        if (_KEY.sub("[]", name) if name.endswith("]") else name) not in accepted
    ]
    detail = "is not a parameter of this operation"
    if accepted:
        detail += f", which accepts {', '.join(sorted(accepted))}"
    problems = tuple(Problem(pointer_to(("query", name)), detail) for name in unknown[:_MAX_PLACES])
    if problems:
        raise UnknownParameter(_summary(problems, len(unknown)), problems=problems)


def _summary(problems: Sequence[Problem], count: int) -> str:
    places = len(problems) if count <= _MAX_PLACES else count
    if places == 1:
        return problems[0].sentence
    first = f"; the first: {problems[0].sentence}" if problems else ""
    return f"The request is wrong in {places:,} places{first}"
