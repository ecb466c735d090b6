"""What is seen of every request from outside: its id, one log line, its metrics (M).

1. The id is the caller's `X-Request-Id` if that is 1 to 128 visible ASCII characters, else a new
   one. Every answer carries it, whoever gave the answer, and so does every line of the log.
2. A request is told by its route's template, its status and who sent it: never by its path, its
   query or anything it holds.
3. What nobody expected, above the routes, is a 500 like any other.
4. A stream of events lasts as long as its reader likes: it is counted while it is open, and what
   it took is no duration.
5. An answer that cannot be finished, because what it shows is gone meanwhile or its reader takes
   nothing, is broken off: the server closes the connection, so that its reader misses the end.
"""

from __future__ import annotations

import logging
import re
from time import perf_counter
from typing import Any, Protocol

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uuid_utils import uuid7

from app.api.http.bodies import NO_ANSWER
from app.api.http.errors import answer_unexpected
from app.api.http.pacing import ReaderStalled
from app.domain.common.errors import ContextError
from app.logs import request_id

UNROUTED = "none"
"""The route of a request that came to none: refused before, or sent to a path there is not."""
QUIET = frozenset({"/healthz", "/readyz", "/metrics"})
"""Routes that are asked all the time, and are not logged."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER_METHOD = "other"

_GIVEN = re.compile(rb"[!-~]{1,128}")
_TRACE_PARENT = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_HEADER = b"x-request-id"
_STREAM = b"text/event-stream"
_log = logging.getLogger("app.requests")


class Requests(Protocol):
    """Counts requests."""

    def answered(self, method: str, route: str, status: int, seconds: float | None) -> None:
        """Count one, and how long it took unless it was a stream."""
        ...

    def streaming(self, change: int) -> None:
        """Note that a stream of events began, 1, or ended, -1."""
        ...


class Observing:
    """ASGI middleware around all others of the app."""

    def __init__(self, app: ASGIApp, requests: Requests, *, access_log: bool) -> None:
        self._app = app
        self._requests = requests
        self._access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the request, and tell of it whatever becomes of it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = perf_counter()
        headers = dict(scope["headers"])
        given = headers.get(_HEADER, b"")
        own_id = given if _GIVEN.fullmatch(given) else str(uuid7()).encode()
        status, is_stream = 0, False

        async def send_named(message: Message) -> None:
            nonlocal status, is_stream
            if message["type"] == "http.response.start":
                status = message["status"]
                if _is_stream(message["headers"]):
                    is_stream = True
                    self._requests.streaming(1)
                message["headers"] = [*message["headers"], (_HEADER, own_id)]
            await send(message)

        token = request_id.set(own_id.decode())
        try:
            await self._app(scope, receive, send_named)
        except Exception as error:  # the last resort, as the routes have one (rule 3)
            reason = _reason(error) if status else None
            if reason is not None:
                route = getattr(scope.get("route"), "path", UNROUTED)
                _log.info("answer_broken_off", extra={"data": {"route": route, "reason": reason}})
                return
            answer = answer_unexpected(Request(scope), error)
            if not status:
                await answer(scope, receive, send_named)
        finally:
            seconds = perf_counter() - started
            method = scope["method"] if scope["method"] in METHODS else OTHER_METHOD
            route = getattr(scope.get("route"), "path", UNROUTED)
            self._requests.answered(
                method, route, status or NO_ANSWER, None if is_stream else seconds
            )
            if is_stream:
                self._requests.streaming(-1)
            if self._access_log and route not in QUIET:
                told = {"method": method, "route": route, "status": status or NO_ANSWER}
                told["duration_ms"] = round(seconds * 1000, 3)
                _log.info("request", extra={"data": told | _sender(scope, headers)})
            request_id.reset(token)


def _reason(error: BaseException | None) -> str | None:
    """Return why an answer that has begun cannot be finished, None for an unexpected error.

    Starlette raises an error of its own from one that it can no longer answer.
    """
    while error is not None:
        if isinstance(error, ContextError):
            return str(error.facts.get("reason", error.code))
        if isinstance(error, ReaderStalled):
            return "reader_stalled"
        error = error.__cause__
    return None


def _is_stream(headers: list[tuple[bytes, bytes]]) -> bool:
    return any(name == b"content-type" and text.startswith(_STREAM) for name, text in headers)


def _sender(scope: Scope, headers: dict[bytes, bytes]) -> dict[str, Any]:
    """Return who sent a request, and the trace it belongs to if there is one."""
    caller = scope.get("caller")
    told = {
        "tenant_id": caller.tenant_id if caller is not None else None,
        "key_id": caller.key_id if caller is not None else None,
    }
    trace_id = scope.get("trace_id")
    if trace_id is None and (found := _TRACE_PARENT.fullmatch(headers.get(b"traceparent", b""))):
        trace_id = found[1].decode()
    return told if trace_id is None else told | {"trace_id": trace_id}
