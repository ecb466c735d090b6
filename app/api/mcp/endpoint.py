"""The endpoint of the Model Context Protocol: what is asked before the SDK is (L1, M).

1. `/mcp` and `/mcp/` take POST alone. Without sessions there is no stream to GET and none to
   DELETE, and any process may answer any request (decision 37).
2. The SDK comes with the first request, in a thread (decision 36): nobody else pays for it.
3. A client is bound to one conversation by its URL or by a header. One that is not names the
   conversation in each call.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from app.api.http.bodies import NO_ANSWER, WireRequest, beside, require_json, require_structure
from app.api.http.errors import answer_error, answer_unexpected
from app.domain.common.errors import ContextError, ValidationError
from app.domain.common.json_structure import StructureLimits

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

PATHS = ("/mcp", "/mcp/")
CONVERSATION = "conversation_id"
"""What binds a client: a parameter of the URL. Unbound, an argument of every tool."""

CONVERSATION_HEADER = "Context-Conversation-Id"


class McpEndpoint:
    """ASGI application that serves the service's own tools over MCP.

    A call that takes longer than `deadline_seconds` is given up.
    """

    def __init__(
        self,
        version: str,
        max_body_bytes: int,
        deadline_seconds: float,
        limits: StructureLimits,
    ) -> None:
        self._version = version
        self._max_body_bytes = max_body_bytes
        self._limits = limits
        self._deadline_seconds = deadline_seconds
        self._serving: asyncio.Task[None] | None = None
        self._manager: asyncio.Future[StreamableHTTPSessionManager] | None = None

    @property
    def routes(self) -> list[Route]:
        """Its routes; they are no operations of the published API."""
        return [Route(path, self, methods=["POST"], include_in_schema=False) for path in PATHS]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Stop, after the block, what the first request has started."""
        try:
            yield
        finally:
            serving, self._serving = self._serving, None
            if serving is not None:
                serving.cancel()
                await asyncio.wait([serving])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = WireRequest(scope, receive)
        try:
            conversation_of(request)
            require_json(request)
            body = await request.body()
            # The SDK parses it on the event loop: what a tool is called with is never large.
            await beside(body, require_structure, body, self._limits)
            manager = await self._started()
        except ContextError as error:
            response = answer_error(error)
        except ClientDisconnect:
            response = Response(status_code=NO_ANSWER)
        except Exception as error:  # the last resort: no input gives a bare 500
            response = answer_unexpected(request, error)
        else:
            await manager.handle_request(scope, _again(body, receive), send)
            return
        await response(scope, receive, send)

    async def _started(self) -> StreamableHTTPSessionManager:
        if self._serving is None or self._serving.done():
            self._manager = asyncio.get_running_loop().create_future()
            self._serving = asyncio.create_task(self._serve(self._manager))
        assert self._manager is not None
        # Others wait for the same one when the client of this request goes away.
        return await asyncio.shield(self._manager)

    async def _serve(self, ready: asyncio.Future[StreamableHTTPSessionManager]) -> None:
        """Run the SDK's tasks where they can also be ended: in a task of their own."""
        try:
            await asyncio.to_thread(import_module, "app.api.mcp.tools")
            from app.api.mcp.tools import manager_of

            manager = manager_of(self._version, self._max_body_bytes, self._deadline_seconds)
            async with manager.run():
                ready.set_result(manager)
                await asyncio.Event().wait()
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)


def conversation_of(request: Request) -> str | None:
    """Return what a client is bound to, as it came; None for one that is not (rule 4).

    Raises ValidationError where the URL and the header do not agree.
    """
    named = [
        *request.query_params.getlist(CONVERSATION),
        *request.headers.getlist(CONVERSATION_HEADER),
    ]
    if len({text.lower() for text in named}) > 1:
        detail = f"{CONVERSATION} and {CONVERSATION_HEADER} name different conversations"
        raise ValidationError.at(f"/query/{CONVERSATION}", detail)
    return named[0] if named else None


def _again(body: bytes, receive: Receive) -> Receive:
    """Return what gives the body that has been read, and then what else comes."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
