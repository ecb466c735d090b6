"""Request logging middleware: the request id, one log line and the metrics of each request.

1. The id is the client's `X-Request-Id` if that is 1 to 128 visible ASCII characters, else a new
   one. Every response and every log line has it.
2. Log and metrics have the route template, the status and the caller, never the path, the query or
   content.
3. An unexpected error outside of the routes is a 500 without details.
4. Event streams are counted while they are open, without a duration.
5. A response that cannot be completed is interrupted: the server closes the connection.
"""

from __future__ import annotations

import logging
import re
from time import perf_counter
from typing import Any, Protocol

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uuid_utils import uuid7

from app.common.errors import ContextError
from app.common.logs import request_id
from app.http.bodies import CLIENT_CLOSED_REQUEST
from app.http.errors import answer_unexpected

UNROUTED = "none"
"""The route of a request that no route handled."""
QUIET = frozenset({"/healthz", "/readyz", "/metrics"})
"""Routes that are polled, and not logged."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER_METHOD = "other"
_VALID_ID = re.compile(rb"[!-~]{1,128}")
_TRACE_PARENT = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_HEADER = b"x-request-id"
_log = logging.getLogger("app.requests")


class Requests(Protocol):
    """Metrics of requests."""

    def answered(self, method: str, route: str, status: int, seconds: float | None) -> None:
        """Count a request, and its duration unless it was a stream."""

    def streaming(self, change: int) -> None:
        """Count the start (1) or the end (-1) of an event stream."""


class RequestLoggingMiddleware:
    """The outermost ASGI middleware of the app."""

    def __init__(self, app: ASGIApp, requests: Requests, *, access_log: bool) -> None:
        self._app = app
        self._requests = requests
        self._access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the request, then log and count it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = perf_counter()
        headers = dict(scope["headers"])
        response_id = headers.get(_HEADER)
        if response_id is None or not _VALID_ID.fullmatch(response_id):
            response_id = str(uuid7()).encode()
        status, is_stream = 0, False

        async def send_named(message: Message) -> None:
            nonlocal status, is_stream
            if message["type"] == "http.response.start":
                status = message["status"]
                kinds = [text for name, text in message["headers"] if name == b"content-type"]
                if kinds and kinds[0].startswith(b"text/event-stream"):
                    is_stream = True
                    self._requests.streaming(1)
                message["headers"] = [*message["headers"], (_HEADER, response_id)]
            await send(message)

        token = request_id.set(response_id.decode())
        try:
            await self._app(scope, receive, send_named)
        except Exception as error:  # rules 3 and 5
            reason = _reason(error) if status else None
            if reason is not None:
                data = {"route": _route_of(scope), "reason": reason}
                _log.info("response_interrupted", extra={"data": data})
                return
            answer = answer_unexpected(Request(scope), error)
            if not status:
                await answer(scope, receive, send_named)
        finally:
            seconds, route = perf_counter() - started, _route_of(scope)
            method = scope["method"] if scope["method"] in METHODS else OTHER_METHOD
            status = status or CLIENT_CLOSED_REQUEST
            self._requests.answered(method, route, status, None if is_stream else seconds)
            if is_stream:
                self._requests.streaming(-1)
            if self._access_log and route not in QUIET:
                fields: dict[str, Any] = {
                    "method": method,
                    "route": route,
                    "status": status,
                    "duration_ms": round(seconds * 1000, 3),
                    **_sender(scope, headers.get(b"traceparent", b"")),
                }
                _log.info("request", extra={"data": fields})
            request_id.reset(token)


def _route_of(scope: Scope) -> str:
    return getattr(scope.get("route"), "path", UNROUTED)


def _reason(error: BaseException | None) -> str | None:
    """Return why a started response cannot be completed, None for an unexpected error.

    Starlette wraps an error after the start of a response in one of its own.
    """
    while error is not None:
        if isinstance(error, ContextError):
            return str(error.facts.get("reason", error.code))
        error = error.__cause__
    return None


def _sender(scope: Scope, trace_parent: bytes) -> dict[str, Any]:
    """Return the caller of a request, and its trace id if it has one."""
    caller = scope.get("caller")
    found = _TRACE_PARENT.fullmatch(trace_parent)
    trace_id = found[1].decode() if found else None
    trace = {"trace_id": trace_id} if trace_id is not None else {}
    if caller is None:
        return {"tenant_id": None, "key_id": None, **trace}
    return {"tenant_id": caller.tenant_id, "key_id": caller.key_id, **trace}
