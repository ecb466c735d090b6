"""The agent tools in the form of MCP; imported by the first request.

1. The tools are those of `app.prompt.agent_tools`, executed by `ToolCallService`.
2. An error that the model can correct is a result with `isError`. Others, such as an unknown bound
   conversation or an unavailable database, are JSON-RPC errors.
3. A conversation of another tenant is an unknown conversation.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final
from urllib.parse import unquote

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)
from starlette.requests import Request

from app.blobs.preview import COMPACT_CONTEXT, PIN_MESSAGES, TOOL_SEARCH
from app.common.errors import ContextError, NotFound, ValidationError
from app.common.ids import MAX_CHARS
from app.context.agent_tool_calls import ToolCallResult
from app.formats import ToolDefinition
from app.formats.message import FormatName
from app.http.errors import answer_error, answer_unexpected
from app.http.routing import call_with_key, services, tenant_of
from app.prompt.agent_tools import AGENT_TOOLS

INSTRUCTIONS: Final = (
    "Tools to look at what a conversation no longer shows: whole tool outputs, messages that were"
    " summarised, and tools that were held back. Call them when a note in the conversation names"
    " them, with the refs exactly as it gives them."
)
UNEXPECTED: Final = "Internal error; see the log of the service"

_CONVERSATION, CONVERSATION_HEADER = "conversation_id", "Context-Conversation-Id"
"""The argument of an unbound client and URL parameter of a bound one, and the header for that."""
_CUT_CHARS = MAX_CHARS + 1  # a text that is cut is too long for an id
_STATE_CHANGING = frozenset({TOOL_SEARCH, COMPACT_CONTEXT, PIN_MESSAGES})
_ARGUMENT = {"type": "string", "description": "Id of the conversation."}

_Context = ServerRequestContext[Any, Request]


def manager_of(
    version: str, max_body_bytes: int, deadline_seconds: float
) -> StreamableHTTPSessionManager:
    """Return the SDK's stateless server with JSON responses; its `run` is entered once."""

    async def list_tools(context: _Context, _: PaginatedRequestParams | None) -> ListToolsResult:
        is_unbound = _bound_to(_request_of(context)) is None
        return ListToolsResult(tools=[_listed(tool, is_unbound) for tool in AGENT_TOOLS.values()])

    async def call_tool(context: _Context, params: CallToolRequestParams) -> CallToolResult:
        return await _call(_request_of(context), params, deadline_seconds)

    server: Server[Any] = Server(
        "context-service",
        version=version,
        title="Context Service",
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        # No schema: so the SDK does not compare arguments with headers.
        get_tool_input_schema=lambda _name: None,
    )
    # The SDK's middleware names spans by client input.
    server.middleware.clear()
    # The SDK logs client input, which the service never does.
    logging.getLogger("mcp").setLevel(logging.CRITICAL)
    return StreamableHTTPSessionManager(
        server, json_response=True, stateless=True, max_request_body_size=max_body_bytes
    )


def _bound_to(request: Request) -> str | None:
    """Return the conversation of a bound client, None for an unbound one."""
    # A header holds ASCII only: its id is percent-encoded like that of a path.
    header = request.headers.get(CONVERSATION_HEADER)
    return request.query_params.get(_CONVERSATION) if header is None else unquote(header)


async def _call(
    request: Request, params: CallToolRequestParams, deadline_seconds: float
) -> CallToolResult:
    if params.name not in AGENT_TOOLS:
        detail = f"Unknown tool; the tools are {', '.join(AGENT_TOOLS)}"
        raise MCPError(INVALID_PARAMS, detail)
    deadline = asyncio.timeout(deadline_seconds)
    try:
        async with deadline:
            return await _call_tool(request, params.name, params.arguments or {})
    except (TimeoutError, ContextError) as error:
        if isinstance(error, ContextError) and not deadline.expired():
            raise _rpc_error(error) from error
        return _failed(f"{params.name} took longer than {deadline_seconds:g} s and was cancelled.")
    except Exception as error:
        answer_unexpected(request, error)  # logs the error
        raise MCPError(INTERNAL_ERROR, UNEXPECTED) from None


async def _call_tool(request: Request, name: str, arguments: dict[str, Any]) -> CallToolResult:
    bound = _bound_to(request)
    if bound is not None:
        return await _execute(request, name, bound, arguments)
    tool_arguments = dict(arguments)
    named = tool_arguments.pop(_CONVERSATION, None)
    if not isinstance(named, str):
        return _failed(f"{name} was not run: {_CONVERSATION} is required.")
    try:
        return await _execute(request, name, named, tool_arguments)
    except NotFound as error:
        return _failed(error.detail)


async def _execute(
    request: Request, name: str, named: str, arguments: dict[str, Any]
) -> CallToolResult:
    """Execute a call in Anthropic's format, whose results have `is_error` like those of MCP."""
    call = {"type": "tool_use", "id": name, "name": name, "input": arguments}

    async def answered(key: str) -> ToolCallResult:
        tool_calls = services(request).tool_calls
        return await tool_calls.answer(tenant_of(request), key, FormatName.ANTHROPIC, call)

    answer = await call_with_key(request, named[:_CUT_CHARS], answered)
    (result,) = answer.message["content"]
    return CallToolResult(content=[TextContent(text=result["content"])], is_error=answer.is_error)


def _failed(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text)], is_error=True)


def _rpc_error(error: ContextError) -> MCPError:
    """Return a JSON-RPC error; `data.code` is the code of the problem document."""
    data: dict[str, Any] = {"code": error.code}
    if (seconds := answer_error(error).headers.get("retry-after")) is not None:
        data["retry_after"] = int(seconds)
    is_client_error = isinstance(error, NotFound | ValidationError)
    return MCPError(INVALID_PARAMS if is_client_error else INTERNAL_ERROR, error.sentence, data)


def _request_of(context: _Context) -> Request:
    assert context.request is not None
    return context.request


def _listed(tool: ToolDefinition, is_unbound: bool) -> Tool:
    schema = dict(tool.parameters)
    if is_unbound:
        schema["properties"] = {_CONVERSATION: _ARGUMENT, **schema["properties"]}
        schema["required"] = [_CONVERSATION, *schema["required"]]
    title = tool.name.replace("_", " ").capitalize()
    return Tool(
        name=tool.name,
        title=title,
        description=tool.description,
        input_schema=schema,
        annotations=ToolAnnotations(
            title=title,
            read_only_hint=tool.name not in _STATE_CHANGING,
            destructive_hint=False,
            idempotent_hint=tool.name != COMPACT_CONTEXT,
            open_world_hint=False,
        ),
    )
