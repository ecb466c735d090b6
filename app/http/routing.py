"""The application, the route class of every endpoint, and what endpoints depend on.

1. A route reads the body before FastAPI, within the limits of `app.http.bodies`.
2. An unexpected error is a 500 without details.
3. Unknown query parameters of paths under `/v1` are refused, like unknown fields of a body.
4. The middleware of the service stands outside of FastAPI's: it sees every request first, and
   answers every error. From there a request to a direct route goes to the route, which reads its
   conversation id, body and idempotency key and answers all errors itself: FastAPI's middleware,
   search for the route and handling take as long as the rest of an append.
5. Callers know public ids of conversations, services know keys (`app.common.ids`). Before an
   endpoint runs, its route replaces the public id in the path by the key. An endpoint needs the
   public id only for its answer, from `public_id_of`.
6. The errors that follow from what a route under `/v1` reads are documented without being named.
7. If the likeliest key is not found, the conversation may have another one, because another tenant
   has this UUID: then the endpoint runs again with that key. So only a `404` costs a lookup, and it
   is the same whether another tenant has the id or no tenant has it. Errors name the public id.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import quote

from fastapi import FastAPI, Header, Path, Query, Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import AfterValidator, TypeAdapter
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.common.concurrency import THREAD_BYTES, in_thread_if
from app.common.errors import (
    ContextError,
    NotFound,
    PayloadTooLarge,
    ServiceUnavailable,
    ValidationError,
)
from app.common.ids import MAX_CHARS, PATTERN, keys_of, public_id_from
from app.common.pages import Bound
from app.common.schema_errors import IDEMPOTENCY_KEY_PATTERN, MAX_IDEMPOTENCY_KEY_CHARS
from app.common.texts import is_sendable
from app.database.citus import about
from app.http.bodies import (
    CLIENT_CLOSED_REQUEST,
    HELD_SLOTS,
    SLOT_BYTES,
    Json,
    MalformedJson,
    WireRequest,
    body_bytes_of,
    drained,
    header_of,
    require_json,
    size_of_body,
    take_slots,
)
from app.http.errors import (
    answer_error,
    answer_unexpected,
    error_answers,
    refuse_unknown_query,
    validated,
    validation_error,
)
from app.http.fields import AGENT_ID
from app.tenancy.api_keys import Caller

if TYPE_CHECKING:  # which imports the features
    from app.composition import Services

_MAX_NAME = 256
_PARAMETER = "conversation_id"
_UNRESERVED = re.compile(r"[A-Za-z0-9_.~-]+")
"""An id that is its own percent-encoding, as all UUIDs are."""
_Answer = TypeVar("_Answer")

ConversationPath = Annotated[
    str,
    Path(
        description="Id of the conversation, percent-encoded.",
        examples=["0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b", "customer-42:ticket-7"],
        json_schema_extra={"pattern": PATTERN, "minLength": 1, "maxLength": MAX_CHARS},
    ),
]


def _agent_id(text: str) -> str:
    if len(text) > _MAX_NAME or not AGENT_ID.fullmatch(text):
        raise NotFound.agent(text)
    return text


AgentPath = Annotated[
    str,
    Path(description="Id of the agent.", examples=["support-bot"]),
    AfterValidator(_agent_id),  # what is no id is unknown
]
ModelPath = Annotated[
    str, Path(description="Name of the model; slashes need no escape.", examples=["gpt-4o"])
]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=IDEMPOTENCY_KEY_PATTERN,
        max_length=MAX_IDEMPOTENCY_KEY_CHARS,
        description="A repeated key with the same body stores nothing again, for 24 h.",
        examples=["0d2f7c1e"],
    ),
]
Limit = Annotated[int, Query(ge=1, le=1000, description="Maximum number of items on a page.")]
Cursor = Annotated[
    str | None, Query(max_length=1024, description="`next_cursor` of the previous page.")
]


def caller_of(request: Request) -> Caller:
    """Return the caller that `app.http.middleware` has authenticated."""
    caller: Caller = request.scope["caller"]
    return caller


def tenant_of(request: Request) -> str:
    """Return the tenant of the request's API key."""
    return caller_of(request).tenant_id


def by_caller(request: Request, **data: object) -> dict[str, object]:
    """Return the data of a log line of the audit: who has sent the request, and what was done."""
    caller = caller_of(request)
    return {"tenant_id": caller.tenant_id, "key_id": caller.key_id, **data}


def page_bound(request: Request) -> Bound:
    """Return the maximum bytes of a page."""
    return Bound(request.app.state.page_bytes)


def services(request: Request) -> Services:
    """Return the services of the app."""
    app_services: Services = request.app.state.services
    return app_services


def model_from(text: str) -> str:
    """Return the model of a path; raises NotFound for text that is not a model name."""
    if not 0 < len(text) <= _MAX_NAME or not is_sendable(text) or not text.isprintable():
        raise NotFound(f"The model {text!r} is unknown", {"model": text})
    return text


async def with_key(request: Request, handle: Callable[[Request], Awaitable[_Answer]]) -> _Answer:
    """Handle a request with the key of the conversation in its path, if it has one (rule 5)."""
    named = request.path_params.get(_PARAMETER)
    if named is None:
        return await handle(request)

    async def handle_with(key: str) -> _Answer:
        request.path_params[_PARAMETER] = key
        return await handle(request)

    return await call_with_key(request, named, handle_with)


async def call_with_key(
    request: Request, named: str, call: Callable[[str], Awaitable[_Answer]]
) -> _Answer:
    """Call a function with the key of the conversation that a caller named (rules 5 and 7).

    Raises NotFound for what is no id, and what the function raises.
    """
    public_id = public_id_from(named)
    if public_id is None:
        raise NotFound.conversation(named)
    request.scope["public_id"] = public_id
    tenant_id = tenant_of(request)
    key = keys_of(tenant_id, public_id)[0]
    try:
        while True:
            try:
                with about(key):
                    return await call(key)
            except NotFound as error:
                if error.facts.get(_PARAMETER) != key:
                    raise
                other = None
                if len(keys_of(tenant_id, public_id)) > 1:
                    async with services(request).database.session() as session:
                        other = await session.conversations.find_key(tenant_id, public_id)
                if other is None or other == key:
                    raise
                key = other
    except ContextError as error:

        def shown(value: Any) -> Any:
            return value.replace(key, public_id) if isinstance(value, str) else value

        error.detail = shown(error.detail)
        error.facts = {name: shown(value) for name, value in error.facts.items()}
        error.problems = tuple(
            replace(problem, detail=shown(problem.detail)) for problem in error.problems
        )
        raise


def public_id_of(request: Request) -> str:
    """Return the public id of the conversation in the path."""
    public_id: str = request.scope["public_id"]
    return public_id


def path_of(public_id: str) -> str:
    """Return the path of a conversation, its id percent-encoded."""
    is_encoded = _UNRESERVED.fullmatch(public_id) is not None
    return f"/v1/conversations/{public_id if is_encoded else quote(public_id, safe='')}"


_IDEMPOTENCY_KEY = re.compile(IDEMPOTENCY_KEY_PATTERN)
_DIRECT = "direct"
_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Any])


def _marker(mark: str) -> Callable[[_Endpoint], _Endpoint]:
    def marked(endpoint: _Endpoint) -> _Endpoint:
        endpoint.__dict__["mark"] = mark
        return endpoint

    return marked


heavy = _marker("heavy")
"""Marks an endpoint as heavy (`app.http.bodies`)."""
large = _marker("large")
"""Marks an endpoint as large (`app.http.bodies`)."""
paged = _marker("page")
"""Marks an endpoint that returns pages, which are heavy, and large with full contents."""
direct = _marker(_DIRECT)
"""Marks an endpoint that FastAPI only documents; ASGI calls it directly (rule 4)."""


class Application(FastAPI):
    """FastAPI with middleware that is outside of FastAPI's own (rule 4)."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._outer: list[Callable[[ASGIApp], ASGIApp]] = []

    def add_outer_middleware(self, middleware: Callable[[ASGIApp], ASGIApp]) -> None:
        """Add middleware outside of all that was added before."""
        self._outer.append(middleware)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, as FastAPI does where its telemetry is off."""
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        if self.middleware_stack is None:
            self.middleware_stack = self.build_middleware_stack()
        scope["app"] = self
        held = scope[HELD_SLOTS] = []
        try:
            await self.middleware_stack(scope, receive, send)
        finally:
            for tenant_id, slots in held:
                self.state.heavy.release(tenant_id, slots)

    def build_middleware_stack(self) -> ASGIApp:
        """Return the app that handles a request; FastAPI calls this for the first one."""
        inner = super().build_middleware_stack()
        direct_routes = [
            (method, route.path_regex, route)
            for route in self.routes
            if isinstance(route, WireRoute) and route.is_direct
            for method in route.methods or ()
        ]

        async def dispatched(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and not scope.get("root_path"):
                path, method = scope["path"], scope["method"]
                for accepted, pattern, route in direct_routes:
                    if method == accepted and (match := pattern.match(path)):
                        scope["route"] = route
                        scope["path_params"] = match.groupdict()
                        await route.app(scope, receive, send)
                        return
            await inner(scope, receive, send)

        stack: ASGIApp = dispatched
        for middleware in self._outer:
            stack = middleware(stack)
        return stack


class WireRoute(APIRoute):
    """A route of FastAPI with bounded bodies and error responses.

    Its operation id is, by default, the name of its function. An endpoint returns the model of its
    answer, or a response.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        options["operation_id"] = options.get("operation_id") or endpoint.__name__
        super().__init__(path, endpoint, **options)
        if path.startswith("/v1/"):
            self.responses = error_answers(*_usual_errors(self)) | self.responses
        mark = getattr(endpoint, "mark", None)
        self.is_direct = mark == _DIRECT
        if self.is_direct:
            self.app = _direct(endpoint, _parameters(self))
        elif mark is not None:
            self.app = _with_slots(self.app, mark, self.body_field is not None)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler with the body read before it and error handling around it."""
        self.dependant.call = _responding(self.endpoint)
        handle = super().get_route_handler()
        reads_body = self.body_field is not None
        body = self.body_field.field_info.annotation if self.body_field is not None else None
        accepted = _parameters(self)
        # Created on demand: most routes never receive a long body.
        schema = cache(lambda: TypeAdapter[Any](body or Any))

        async def read_and_handle(request: WireRequest) -> Response:
            if reads_body and await request.body():
                require_json(request)
                value = await request.json()
                if size_of_body(request) > THREAD_BYTES:
                    # FastAPI would validate on the event loop, and create all error objects.
                    await asyncio.to_thread(validated, schema(), value)
            return await with_key(request, handle)

        async def handle_wire(request: Request) -> Response:
            request = WireRequest(request.scope, request.receive)
            return await _answered(request, read_and_handle, accepted)

        return handle_wire


async def _answered(
    request: WireRequest,
    handle: Callable[[WireRequest], Awaitable[Response]],
    accepted: frozenset[str] | None,
) -> Response:
    """Return the answer to a request, or to the error that it ends in."""
    try:
        if accepted is not None and request.scope["query_string"]:
            refuse_unknown_query(request, accepted)
        return await handle(request)
    except ContextError as error:
        return answer_error(error)
    except RequestValidationError as error:
        return answer_error(validation_error(error.errors(), error.body))
    except HTTPException:
        raise
    except ClientDisconnect:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    except Exception as error:  # every 500 is a problem document
        return answer_unexpected(request, error)


def _responding(endpoint: Callable[..., Any]) -> Callable[..., Awaitable[Response]]:
    """Return the endpoint with its answer as JSON, which FastAPI would validate and copy."""

    async def respond(**values: Any) -> Response:
        answer = await endpoint(**values)
        return answer if isinstance(answer, Response) else Json(answer)

    return respond


def _usual_errors(route: APIRoute) -> Iterator[type[ContextError]]:
    """Return the errors of every route that reads the same parts of a request (rule 6)."""
    reads_json = route.body_field is not None
    reads_body = reads_json or "requestBody" in (route.openapi_extra or {})
    if "{" in route.path:
        yield NotFound
    if reads_body or any(_query_names(route.dependant)):
        yield ValidationError
    if reads_json:
        yield MalformedJson
    if reads_body:
        yield PayloadTooLarge
    if route.dependant.request_param_name:  # only these use services
        yield ServiceUnavailable


def _with_slots(inner: ASGIApp, mark: str, reads_body: bool) -> ASGIApp:
    """Return the app with the slots of a heavy request, held until the response is sent."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        state, slots = scope["app"].state, 1
        if mark == "large" or QueryParams(scope["query_string"]).get("content") == "full":
            slots = state.large_slots
        elif mark == "page":
            slots += state.page_bytes // SLOT_BYTES
        try:
            await take_slots(scope, body_bytes_of(scope) if reads_body else 0, slots)
        except ContextError as error:
            await answer_error(error)(scope, receive, send)
            return
        await inner(scope, receive, drained(send))

    return app


def _parameters(route: APIRoute) -> frozenset[str] | None:
    """Return the query parameters of a route, None if all are accepted (rule 3).

    A name that ends with `[]` stands for all parameters `name[key]`.
    """
    if not route.path.startswith("/v1/"):
        return None
    by_key = (route.openapi_extra or {}).get("parameters", ())
    return frozenset(_query_names(route.dependant)) | {f"{item['name']}[]" for item in by_key}


def _query_names(dependant: Dependant) -> Iterator[str]:
    yield from (field.alias for field in dependant.query_params)
    for further in dependant.dependencies:
        yield from _query_names(further)


def _direct(
    endpoint: Callable[..., Awaitable[Response]], accepted: frozenset[str] | None
) -> Callable[..., Awaitable[None]]:
    parameters = inspect.signature(endpoint, eval_str=True).parameters
    body = parameters["body"]
    schema: TypeAdapter[Any] = TypeAdapter(body.annotation)
    is_optional = body.default is not inspect.Parameter.empty
    takes_key = "idempotency_key" in parameters

    async def handle(request: WireRequest) -> Response:
        value = None
        if await request.body():
            require_json(request)
            parsed = await request.json()
            is_long = size_of_body(request) > THREAD_BYTES
            value = await in_thread_if(is_long, validated, schema, parsed)
        elif not is_optional:
            raise ValidationError.at("", "is required")
        arguments = {"idempotency_key": _idempotency_key(request)} if takes_key else {}

        async def call(request: Request) -> Response:
            conversation_id = request.path_params["conversation_id"]
            return await endpoint(request, conversation_id, value, **arguments)

        return await with_key(request, call)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        response = await _answered(WireRequest(scope, receive), handle, accepted)
        await response(scope, receive, send)

    return app


def _idempotency_key(request: Request) -> str | None:
    key = header_of(request.scope, b"idempotency-key")
    if key is not None and not (
        len(key) <= MAX_IDEMPOTENCY_KEY_CHARS and _IDEMPOTENCY_KEY.fullmatch(key)
    ):
        detail = f"must be 1 to {MAX_IDEMPOTENCY_KEY_CHARS} visible ASCII characters"
        raise ValidationError.at("/header/idempotency-key", detail)
    return key
