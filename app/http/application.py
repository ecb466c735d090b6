"""The FastAPI application, with the service's middleware around FastAPI's own.

1. The middleware of the service sees every request first and answers every error, so it stands
   outside of FastAPI's.
2. A request to a direct route goes from there to the route: FastAPI's middleware and its search
   for the route take as long as the rest of an append. Such a route answers all errors itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import FastAPI
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from app.http.heavy_requests import HEAVY_SHARE, HeavyShare
from app.http.routing import WireRoute


class Application(FastAPI):
    """FastAPI with middleware that is outside of FastAPI's own (rule 1)."""

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
        share = scope[HEAVY_SHARE] = HeavyShare(self.state.heavy)
        try:
            await self.middleware_stack(scope, receive, send)
        finally:
            share.release()

    def build_middleware_stack(self) -> ASGIApp:
        """Return the app that handles a request; FastAPI calls this for the first one."""
        stack: ASGIApp = DirectRouting(super().build_middleware_stack(), self.routes)
        for middleware in self._outer:
            stack = middleware(stack)
        return stack


class DirectRouting:
    """ASGI app that calls the direct routes, and passes other requests on (rule 2)."""

    def __init__(self, app: ASGIApp, routes: Sequence[BaseRoute]) -> None:
        self._app = app
        self._routes = [
            (method, route.path_regex, route)
            for route in routes
            if isinstance(route, WireRoute) and route.is_direct
            for method in route.methods or ()
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the request."""
        if scope["type"] == "http" and not scope.get("root_path"):
            path, method = scope["path"], scope["method"]
            for accepted, pattern, route in self._routes:
                if method == accepted and (match := pattern.match(path)):
                    scope["route"] = route
                    scope["path_params"] = match.groupdict()
                    await route.app(scope, receive, send)
                    return
        await self._app(scope, receive, send)
