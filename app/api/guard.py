"""Who may come in: every request but those of `OPEN` belongs to a caller (decision 34)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.errors import answer_error
from app.domain.errors import ContextError
from app.domain.keys import Caller

OPEN = frozenset({"/healthz", "/readyz", "/metrics", "/docs", "/openapi.json"})
"""Paths for which nobody is asked for a key."""

Admit = Callable[[str], Awaitable[Caller]]
"""Takes the `Authorization` header, which may be empty, and tells whose it is.

Raises Unauthenticated, RateLimited and ServiceUnavailable.
"""


class Guard:
    """ASGI middleware that puts the caller into the scope, or answers instead of the app."""

    def __init__(self, app: ASGIApp, admit: Admit) -> None:
        self._app = app
        self._admit = admit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Admit the request first, unless it is an open one."""
        if scope["type"] != "http" or scope["path"] in OPEN:
            await self._app(scope, receive, send)
            return
        try:
            scope["caller"] = await self._admit(Headers(scope=scope).get("authorization", ""))
        except ContextError as error:
            await answer_error(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)
