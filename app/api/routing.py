"""The route class of every endpoint: it reads the body first and has the last word on errors."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from app.api.errors import answer_unexpected
from app.api.wire import WireRequest, require_json
from app.domain.errors import ContextError


class WireRoute(APIRoute):
    """A route that reads its body before FastAPI does, so that every error is one of ours."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler with reading before it and the last resort around it."""
        handle = super().get_route_handler()
        reads_body = self.body_field is not None

        async def handle_wire(request: Request) -> Response:
            request = WireRequest(request.scope, request.receive)
            try:
                if reads_body and await request.body():
                    require_json(request)
                    await request.json()
                return await handle(request)
            except (ContextError, HTTPException, RequestValidationError):
                raise
            except ClientDisconnect:
                return Response(status_code=400)
            except Exception as error:  # the last resort: no input gives a bare 500
                return answer_unexpected(request, error)

        return handle_wire
