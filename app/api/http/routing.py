"""The route classes: `WireRoute` for every endpoint, `DirectRoute` for the two hot ones.

1. A route reads the body before FastAPI does, so that every error is one of ours.
2. Whatever nobody expected ends here as a 500 without internals.
3. A parameter of a query that the operation does not have is refused, as a field of a body is.
   Those who watch the process may send what they like.
4. A direct route takes a conversation's id, a body and perhaps an idempotency key. It reads
   these three itself: FastAPI's general way costs as much as the rest of an append.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import ExitStack
from functools import cache
from typing import Any, TypeVar

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.http.bodies import NO_ANSWER, THREAD_BYTES, WireRequest, beside, require_json
from app.api.http.errors import answer_error, answer_unexpected
from app.api.http.fields import KEY_PATTERN, MAX_KEY
from app.api.http.pacing import held
from app.api.http.request_errors import refuse_unknown_query, validated, validation_error
from app.domain.common.errors import ContextError, ValidationError
from app.services.common.read_permits import Reads

_KEY = re.compile(KEY_PATTERN)
_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Any])


def heavy(endpoint: _Endpoint) -> _Endpoint:
    """Have each request to an endpoint take a place of its tenant's share until it is answered."""
    endpoint.__dict__["is_heavy"] = True
    return endpoint


class WireRoute(APIRoute):
    """A route that FastAPI handles, between our reading of the body and our last resort."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        if getattr(endpoint, "is_heavy", False):
            self.app = _shared(self.app)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler with reading before it and the last resort around it."""
        handle = super().get_route_handler()
        reads_body = self.body_field is not None
        body = self.body_field.field_info.annotation if self.body_field is not None else None
        known = _parameters(self)
        # Made when it is needed: most routes never see a long body.
        schema = cache(lambda: TypeAdapter[Any](body or Any))

        async def handle_wire(request: Request) -> Response:
            request = WireRequest(request.scope, request.receive)
            try:
                if known is not None and request.scope["query_string"]:
                    refuse_unknown_query(request, known)
                if reads_body and await request.body():
                    require_json(request)
                    value = await request.json()
                    if len(whole := await request.body()) >= THREAD_BYTES:
                        # FastAPI would do it on the event loop, and make an error of each mistake.
                        await beside(whole, validated, schema(), value)
                return await handle(request)
            except (ContextError, HTTPException):
                raise
            except RequestValidationError as error:
                raise validation_error(error.errors(), error.body) from error
            except ClientDisconnect:
                return Response(status_code=NO_ANSWER)
            except Exception as error:  # the last resort: no input gives a bare 500
                return answer_unexpected(request, error)

        return handle_wire


class PageRoute(WireRoute):
    """A route that answers with a page, which holds its place in memory until it is sent."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self.app = held(self.app, Reads.page)


class StreamRoute(WireRoute):
    """A route whose answer is read and sent in batches."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self.app = held(self.app, Reads.stream)


def _shared(inner: ASGIApp) -> ASGIApp:
    """Return an app whose requests hold a place for as long as they and their answers last."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        with ExitStack() as stack:
            try:
                stack.enter_context(scope["app"].state.heavy.held(scope["caller"].tenant_id))
            except ContextError as error:
                await answer_error(error)(scope, receive, send)
                return
            await inner(scope, receive, send)

    return app


class DirectRoute(APIRoute):
    """A route that FastAPI only describes; its endpoint is called straight from ASGI (rule 4)."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self.app = _direct(endpoint, _parameters(self))


def _parameters(route: APIRoute) -> frozenset[str] | None:
    """Return the names that a query to this route may have, None for any (rule 3)."""
    if not route.path.startswith("/v1/"):
        return None
    return frozenset(field.alias for field in route.dependant.query_params)


def _direct(
    endpoint: Callable[..., Awaitable[Response]], known: frozenset[str] | None
) -> Callable[..., Awaitable[None]]:
    parameters = inspect.signature(endpoint, eval_str=True).parameters
    body = parameters["body"]
    schema: TypeAdapter[Any] = TypeAdapter(body.annotation)
    is_optional = body.default is not inspect.Parameter.empty
    takes_key = "idempotency_key" in parameters

    async def answer(request: WireRequest) -> Response:
        if known is not None and request.scope["query_string"]:
            refuse_unknown_query(request, known)
        value = None
        if await request.body():
            require_json(request)
            value = await request.json()
            whole = await request.body()
            value = await beside(whole, validated, schema, value)
        elif not is_optional:
            raise ValidationError.at("", "is required")
        arguments = {"idempotency_key": _key(request)} if takes_key else {}
        conversation_id = request.path_params["conversation_id"]
        return await endpoint(request, conversation_id, value, **arguments)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = WireRequest(scope, receive)
        try:
            response = await answer(request)
        except ContextError as error:
            response = answer_error(error)
        except ClientDisconnect:
            response = Response(status_code=NO_ANSWER)
        except Exception as error:  # the last resort, as above
            response = answer_unexpected(request, error)
        await response(scope, receive, send)

    return app


def _key(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is not None and not (len(key) <= MAX_KEY and _KEY.fullmatch(key)):
        detail = f"An Idempotency-Key has 1 to {MAX_KEY} visible ASCII characters"
        raise ValidationError.at("/header/idempotency-key", detail)
    return key
