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
from collections.abc import Mapping, Sequence
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
_STREAM = b"text/event-stream"
_log = logging.getLogger("app.requests")


class Requests(Protocol):
    """Metrics of requests."""

    def answered(self, method: str, route: str, status: int, seconds: float | None) -> None:
        """Count a request, and its duration unless it was a stream."""
        ...

    def streaming(self, change: int) -> None:
        """Count the start (1) or the end (-1) of an event stream."""
        ...


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
                if _is_stream(message["headers"]):
                    is_stream = True
                    self._requests.streaming(1)
                message["headers"] = [*message["headers"], (_HEADER, response_id)]
            await send(message)

        token = request_id.set(response_id.decode())
        try:
            await self._app(scope, receive, send_named)
        except Exception as error:  # rule 3
            reason = _reason(error) if status else None
            if reason is not None:
                route = getattr(scope.get("route"), "path", UNROUTED)
                _log.info(
                    "response_interrupted", extra={"data": {"route": route, "reason": reason}}
                )
                return
            answer = answer_unexpected(Request(scope), error)
            if not status:
                await answer(scope, receive, send_named)
        finally:
            seconds = perf_counter() - started
            method = scope["method"] if scope["method"] in METHODS else OTHER_METHOD
            route = getattr(scope.get("route"), "path", UNROUTED)
            self._requests.answered(
                method, route, status or CLIENT_CLOSED_REQUEST, None if is_stream else seconds
            )
            if is_stream:
                self._requests.streaming(-1)
            if self._access_log and route not in QUIET and _log.isEnabledFor(logging.INFO):
                fields = {
                    "method": method,
                    "route": route,
                    "status": status or CLIENT_CLOSED_REQUEST,
                    "duration_ms": round(seconds * 1000, 3),
                }
                _add_sender(fields, scope, headers)
                _log.info("request", extra={"data": fields})
            request_id.reset(token)


def _reason(error: BaseException | None) -> str | None:
    """Return why a started response cannot be completed, None for an unexpected error.

    Starlette wraps an error after the start of a response in one of its own.
    """
    while error is not None:
        if isinstance(error, ContextError):
            return str(error.facts.get("reason", error.code))
        error = error.__cause__
    return None


def _is_stream(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    for name, text in headers:
        if name == b"content-type":
            return text.startswith(_STREAM)
    return False


def _add_sender(fields: dict[str, Any], scope: Scope, headers: Mapping[bytes, bytes]) -> None:
    """Add the caller of a request, and its trace id if it has one."""
    caller = scope.get("caller")
    fields["tenant_id"] = caller.tenant_id if caller is not None else None
    fields["key_id"] = caller.key_id if caller is not None else None
    trace_id = scope.get("trace_id")
    if trace_id is None and (parent := headers.get(b"traceparent")) is not None:
        found = _TRACE_PARENT.fullmatch(parent)
        trace_id = found[1].decode() if found else None
    if trace_id is not None:
        fields["trace_id"] = trace_id
