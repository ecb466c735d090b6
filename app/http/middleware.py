"""What stands around the app: connections, authentication, and the log of requests."""

from __future__ import annotations

import logging
import re
from asyncio import Transport
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address
from time import perf_counter
from typing import Any, Protocol

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uuid_utils import uuid7
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.common.errors import ContextError, Forbidden
from app.common.logs import request_id
from app.http.bodies import CLIENT_CLOSED_REQUEST, MalformedRequest, header_of
from app.http.errors import answer_error, answer_unexpected
from app.tenancy.api_keys import Caller, KeyService
from app.tenancy.limits import LimitService

MAX_HEAD_BYTES = 64 * 1024
MIN_BYTES = 1000


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's httptools protocol, which closes the connection of a client that does not go on.

    uvicorn neither bounds the head of a request, nor how long it waits for a head, for a body, or
    for a client that does not read.

    1. A head has at most `MAX_HEAD_BYTES` and what one read returns. So has the framing of a body
       beyond the size of the body. Trailers are dropped.
    2. A connection is checked every `period_seconds`. It is closed where a head was awaited since
       the last check, or a body or a reader and fewer than `MIN_BYTES` went over it since then.
    """

    period_seconds = 15.0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._in_head, self._was_awaited = True, False
        self._received, self._unsent = 0, 0
        self._around = 0  # bytes of the head, then of what is not the body, less the body

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Start the checks."""
        super().connection_made(transport)
        self._timer = self.loop.call_later(self.period_seconds, self._check)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the checks."""
        self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the data, unless a head or a framing is too long (rule 1)."""
        self._received += len(data)
        self._around += len(data)
        super().data_received(data)
        if self._around > MAX_HEAD_BYTES:
            self.transport.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, but no trailer."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Wait for the body."""
        self._in_head, self._was_awaited, self._around = False, False, 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Count a part of the body."""
        self._around -= 2 * len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Wait for the next request."""
        self._in_head, self._around = True, 0
        super().on_message_complete()

    def resume_writing(self) -> None:
        """The client has read."""
        self._unsent = 0
        super().resume_writing()

    def _check(self) -> None:
        """Close the connection of a client that does not go on (rule 2)."""
        self._timer = self.loop.call_later(self.period_seconds, self._check)
        unsent = self.transport.get_write_buffer_size() if self.flow.write_paused else 0
        is_answered = self.cycle is None or self.cycle.response_complete
        awaited = is_answered or not (
            self._in_head or self.flow.read_paused or self.cycle.waiting_for_100_continue
        )
        is_slow = is_answered or self._received < MIN_BYTES
        if (awaited and self._was_awaited and is_slow) or 0 < self._unsent < unsent + MIN_BYTES:
            self.transport.abort()
        self._was_awaited, self._received, self._unsent = awaited, 0, unsent


PUBLIC_PATHS = frozenset(
    {"/", "/healthz", "/readyz", "/metrics", "/openapi.json", "/docs", "/inspector"}
)
"""Paths without authentication."""
PUBLIC_FOLDER = "/inspector/"
"""The folder of the files of `/inspector` and `/docs`, which need none either."""
ANY_HOST = "*"
"""The allowed host that allows all hosts."""
READING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
READING_POSTS = frozenset({"/v1/tokens/count", "/v1/context/needs-compression"})
_MAX_HOST = 300
_HOST = re.compile(r"(?:\[([^\]]+)\]|([^:\[\]]*))(?::\d*)?")


class AuthenticationMiddleware:
    """ASGI middleware that adds the caller to the scope, or refuses the request.

    1. Authentication comes before routing, so that an unauthenticated client learns no path.
    2. A request counts against its tenant's limit of requests before it is handled.
    3. Without API keys the service is as private as the loopback, which DNS rebinding opens to web
       pages. A request without a key must name an IP address, a host name that cannot be
       registered, or one of the allowed hosts of the settings.
    4. A request has one Host header (RFC 9112), and at most one Authorization: a proxy could have
       checked the other one of two.
    5. A browser sends requests without a body to other origins without a preflight. A cross-origin
       request without a key is refused.
    6. A read-only key may only read: methods that change nothing a caller stored, and the `POST`s
       whose body is a question too long for a URL. What may call a model, promote tools or record a
       build is no reading, and unknown requests are refused.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: KeyService,
        limits: LimitService,
        allowed_hosts: Sequence[str] = (),
    ) -> None:
        self._app = app
        self._keys = keys
        self._limits = limits
        self._allowed_hosts = frozenset(name.lower() for name in allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Authenticate the request, unless its path is public."""
        if scope["type"] == "http":
            try:
                _require_one_host(scope)
                path = scope["path"]
                if path not in PUBLIC_PATHS and not path.startswith(PUBLIC_FOLDER):
                    scope["caller"] = caller = await self._admit(scope)
                    await self._limits.count_request(caller.tenant_id)
                    require_scope(caller, scope["method"], path)
            except ContextError as error:
                await answer_error(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _admit(self, scope: Scope) -> Caller:
        caller = await self._keys.admit(header_of(scope, b"authorization") or "")
        if caller.key_id is None:
            host = header_of(scope, b"host") or ""
            origin = (header_of(scope, b"origin") or "").partition("://")[2]
            is_foreign = origin != host and not _is_loopback(_name_of(origin))
            if header_of(scope, b"origin") is not None and is_foreign:
                raise Forbidden("Cross-origin requests require an API key")
            self._require_allowed(host)
        return caller

    def _require_allowed(self, host: str) -> None:
        """Raise Forbidden for a host name that DNS rebinding could use (rule 3)."""
        name = _name_of(host)
        if name is not None and ("." not in name or _is_loopback(name) or _is_address(name)):
            return
        if ANY_HOST not in self._allowed_hosts and name not in self._allowed_hosts:
            raise Forbidden(
                "Without an API key the service accepts requests to its address only, not to a host"
                " name: use 127.0.0.1, create a key with `context-service keys create`, or add the"
                " host to CONTEXT_ALLOWED_HOSTS"
            )


def _require_one_host(scope: Scope) -> None:
    """Raise MalformedRequest for too many headers, or too few (rule 4)."""
    names = [name for name, _ in scope["headers"]]
    hosts = names.count(b"host")
    no_host = scope["http_version"] == "1.1" and not hosts
    if no_host or hosts > 1 or names.count(b"authorization") > 1:
        detail = "A request must have exactly one Host header and at most one Authorization"
        raise MalformedRequest(detail)


def _name_of(host: str) -> str | None:
    """Return a host in lower case without port and brackets, None if it is invalid."""
    match = _HOST.fullmatch(host) if len(host) <= _MAX_HOST else None
    return (match[1] or match[2]).lower() if match else None


def _is_address(name: str) -> bool:
    with suppress(ValueError):
        return bool(ip_address(name))
    return False


def _is_loopback(name: str | None) -> bool:
    """Return whether a name is one of this machine (rules 3 and 5)."""
    if not name or name == "localhost" or name.endswith(".localhost"):
        return bool(name)
    return _is_address(name) and ip_address(name).is_loopback


def require_scope(caller: Caller, method: str, path: str) -> None:
    """Raise Forbidden for a request that the caller's key may not send."""
    if not caller.read_only or method in READING_METHODS:
        return
    if method != "POST" or path not in READING_POSTS:
        raise Forbidden(
            "The API key is read-only, and this request can change what is stored: use a key"
            " created without --read-only",
            {"reason": "read_only_key"},
        )


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
    """The outermost ASGI middleware: the id, the log line and the metrics of each request.

    1. The id is the client's `X-Request-Id` if that is 1 to 128 visible ASCII characters, else a
       new one. Every response through here and every log line has it.
    2. Log and metrics have the route template and the status, the log also the caller; neither has
       the path, the query or content.
    3. An unexpected error outside of the routes is a 500 without details.
    4. Event streams are counted while they are open, without a duration.
    5. A response that cannot be completed is interrupted: the server closes the connection.
    """

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
