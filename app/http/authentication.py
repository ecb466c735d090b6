"""Authentication middleware: API keys, limits of requests and host checks.

1. Authentication comes before routing, so that an unauthenticated client learns no path.
2. A request counts against its tenant's limit of requests before it is handled.
3. Without API keys the service is as private as the loopback, which DNS rebinding opens to web
   pages. A request without a key must name an IP address, a host name that cannot be registered, or
   one of the allowed hosts of the settings.
4. A request has one Host header (RFC 9112), and at most one Authorization: a proxy could have
   checked the other one of two.
5. A browser sends requests without a body to other origins without a preflight. A cross-origin
   request without a key is refused.
6. A read-only key may only read: methods that change nothing a caller stored, and the `POST`s whose
   body is a question too long for a URL. What may call a model, promote tools or record a build is
   no reading, and unknown requests are refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address

from starlette.types import ASGIApp, Receive, Scope, Send

from app.common.errors import ContextError, Forbidden
from app.http.bodies import MalformedRequest, header_of
from app.http.errors import answer_error
from app.tenancy.api_keys import Caller, KeyService
from app.tenancy.limits import LimitService

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
    """ASGI middleware that adds the caller to the scope, or refuses the request."""

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
