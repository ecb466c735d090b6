"""The endpoint of the Model Context Protocol: request validation, then the SDK.

1. `/mcp` and `/mcp/` accept POST only. They are stateless: there is no session to GET or DELETE,
   and any process answers any request [agent-tools.mcp].
2. The first request imports the SDK, in a thread [operation.lazy-imports].
3. A client is bound to one conversation by a header or by its URL. An unbound client passes the
   conversation in each call.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from app.common.concurrency import THREAD_BYTES, in_thread_if
from app.common.environment import missing
from app.common.errors import ContextError, NotFound
from app.common.json_text import MAX_MESSAGE_VALUES, StructureLimits
from app.http.bodies import CLIENT_CLOSED_REQUEST, WireRequest, require_json, require_structure
from app.http.errors import answer_error, answer_unexpected

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

PATHS = ("/mcp", "/mcp/")
MAX_BYTES = 2**20
"""The longest body: the SDK parses it on the event loop. No tool takes arguments as long."""


class McpEndpoint:
    """ASGI application that serves the agent tools over MCP.

    A call is cancelled after `deadline_seconds`.
    """

    def __init__(self, version: str, max_body_bytes: int, deadline_seconds: float) -> None:
        self._version = version
        self._max_body_bytes = max_body_bytes
        self._deadline_seconds = deadline_seconds
        self._serving: asyncio.Task[None] | None = None
        self._manager: asyncio.Future[StreamableHTTPSessionManager] | None = None

    @property
    def routes(self) -> list[Route]:
        """The routes, which openapi.json leaves out."""
        return [Route(path, self, methods=["POST"], include_in_schema=False) for path in PATHS]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Stop the SDK's tasks after the block."""
        try:
            yield
        finally:
            serving, self._serving = self._serving, None
            if serving is not None:
                serving.cancel()
                await asyncio.wait([serving])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        request = WireRequest(scope, receive)
        try:
            require_json(request)
            body = await request.read_body(min(MAX_BYTES, self._max_body_bytes))
            if needed := missing("mcp", "mcp"):
                raise NotFound(f"MCP needs {needed}")
            limits: StructureLimits = request.app.state.json_limits
            limits = limits.at_most(MAX_MESSAGE_VALUES)
            await in_thread_if(len(body) > THREAD_BYTES, require_structure, body, limits)
            manager = await self._started()
        except ContextError as error:
            response = answer_error(error)
        except ClientDisconnect:
            response = Response(status_code=CLIENT_CLOSED_REQUEST)
        except Exception as error:  # every 500 is a problem document
            response = answer_unexpected(request, error)
        else:
            await manager.handle_request(scope, _replayed(body, receive), send)
            return
        await response(scope, receive, send)

    async def _started(self) -> StreamableHTTPSessionManager:
        if self._serving is None or self._serving.done():
            self._manager = asyncio.get_running_loop().create_future()
            self._serving = asyncio.create_task(self._serve(self._manager))
        assert self._manager is not None
        # Shielded: other requests wait for it too when this client disconnects.
        return await asyncio.shield(self._manager)

    async def _serve(self, ready: asyncio.Future[StreamableHTTPSessionManager]) -> None:
        """Run the SDK's task group in a task that enters and leaves it."""
        try:
            await asyncio.to_thread(import_module, "app.mcp_server.tools")
            from app.mcp_server.tools import manager_of

            manager = manager_of(self._version, self._max_body_bytes, self._deadline_seconds)
            async with manager.run():
                ready.set_result(manager)
                await asyncio.Event().wait()
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that yields the body that was read first."""
    is_replayed = False

    async def receive_again() -> Message:
        nonlocal is_replayed
        if is_replayed:
            return await receive()
        is_replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again
