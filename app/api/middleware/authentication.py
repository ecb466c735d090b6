"""Who may come in, and how often: every request but the open ones belongs to a caller (34).

1. The caller is known before anything of the request is looked at, so that a stranger is told
   nothing, not even which paths there are.
2. A request takes from its tenant's allowance of requests before it is handled, and from that of
   bytes as its body comes in.
3. Without a key the service is only as private as the loopback, and by DNS rebinding any page in a
   browser reaches that under a name of its own. So who has no key must ask for an address, for a
   name that no page can have, or for one of the names that the settings allow.
4. A request names one host, as RFC 9112 asks: of two, a proxy before the service could have
   checked the other one.
5. A page of another origin may send without asking its browser first, if there is no body. Without
   a key it is refused; one that sends a key was given it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from ipaddress import ip_address
from typing import Protocol

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.http.bodies import MalformedRequest
from app.api.http.errors import answer_error
from app.domain.common.errors import ContextError, Forbidden
from app.domain.tenancy.api_keys import Caller, is_address
from app.domain.tenancy.quotas import QuotaKind

OPEN = frozenset({"/healthz", "/readyz", "/metrics", "/docs", "/openapi.json"})
"""Paths for which nobody is asked for a key."""
ANY_HOST = "*"
"""The allowed host that allows all."""

_LONGEST_HOST = 300
_HOST = re.compile(r"(?:\[([^\]]+)\]|([^:\[\]]*))(?::\d*)?")


class Keys(Protocol):
    """Knows whose a key is."""

    async def admit(self, authorization: str, address: str) -> Caller:
        """Return the caller of an `Authorization` header, which may be empty.

        Raises Unauthenticated and ServiceUnavailable.
        """
        ...


Take = Callable[[str, QuotaKind, int], Awaitable[None]]
"""Takes so much of a kind from a tenant's allowance; raises RateLimited and ServiceUnavailable."""


class Guard:
    """ASGI middleware that puts the caller into the scope, or answers instead of the app."""

    def __init__(
        self, app: ASGIApp, keys: Keys, take: Take, allowed_hosts: Sequence[str] = ()
    ) -> None:
        self._app = app
        self._keys = keys
        self._take = take
        self._allowed_hosts = frozenset(name.lower() for name in allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Admit the request first, unless it is an open one."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        hosts = sum(name == b"host" for name, _ in scope["headers"])
        if hosts != 1 and (hosts > 1 or scope["http_version"] == "1.1"):
            await answer_error(MalformedRequest("A request has one Host header"))(
                scope, receive, send
            )
            return
        if scope["path"] in OPEN:
            await self._app(scope, receive, send)
            return
        client = scope.get("client")
        address = client[0] if client else ""
        headers = Headers(scope=scope)
        try:
            caller = await self._keys.admit(headers.get("authorization", ""), address)
            if caller.key_id is None:
                host = headers.get("host", "")
                _require_own_page(headers.get("origin"), host)
                self._require_allowed(host)
            scope["caller"] = caller
            await self._take(caller.tenant_id, QuotaKind.REQUESTS, 1)
        except ContextError as error:
            await answer_error(error)(scope, receive, send)
            return

        async def receive_counted() -> Message:
            message = await receive()
            if body := message.get("body"):
                await self._take(caller.tenant_id, QuotaKind.BYTES, len(body))
            return message

        await self._app(scope, receive_counted, send)

    def _require_allowed(self, host: str) -> None:
        """Raise Forbidden for a name that a page could have had made for it (rule 3)."""
        if len(host) <= _LONGEST_HOST and _is_private(host):
            return
        if ANY_HOST not in self._allowed_hosts and _name_of(host) not in self._allowed_hosts:
            raise Forbidden(
                "Without an API key this service answers to its address only, not to a name like"
                " this: use 127.0.0.1, make a key with `context-service keys create`, or name the"
                " host in CONTEXT_ALLOWED_HOSTS"
            )


@lru_cache(maxsize=1024)
def _is_private(host: str) -> bool:
    """Tell whether no page can have this host: an address, or a name that no one can register."""
    name = _name_of(host)
    return name is not None and ("." not in name or _is_local(name) or is_address(name))


def _require_own_page(origin: str | None, host: str) -> None:
    """Raise Forbidden for a page that is neither of this service nor of this machine (rule 5)."""
    if origin is None or origin.partition("://")[2] == host:
        return
    name = _name_of(origin.partition("://")[2])
    if not name or not (_is_local(name) or (is_address(name) and ip_address(name).is_loopback)):
        raise Forbidden("Pages of other origins are not served without an API key")


def _name_of(host: str) -> str | None:
    """Return a host without its port and brackets, in small letters; None for what is no host."""
    found = _HOST.fullmatch(host)
    return (found[1] or found[2]).lower() if found else None


def _is_local(name: str) -> bool:
    return name == "localhost" or name.endswith(".localhost")
