"""Routes of agent tools: definitions, calls, and tool search."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from app.common import json_text
from app.common.errors import ContextLimitUnknown, ValidationError
from app.formats import PROVIDERS
from app.formats.message import FormatName
from app.http.errors import problems_of
from app.http.routing import ConversationPath, WireRoute, services, tenant_of
from app.prompt.agent_tools import definitions_in
from app.prompt.schemas import (
    ToolCallAnswer,
    ToolCallRequest,
    ToolDefinitions,
    ToolSearchAnswer,
    ToolSearchRequest,
)

router = APIRouter(route_class=WireRoute, tags=["tools"])


@router.get("/v1/tool-definitions", summary="List the service's tools")
async def list_tool_definitions(
    format: Annotated[
        FormatName, Query(description="The provider's format.")
    ] = FormatName.OPENAI_CHAT,
) -> ToolDefinitions:
    """Return the tools for reading stored output, searching tools and messages, and compacting.

    Add them to the tools of a model request, and send the model's calls to `…/tool-calls`.
    """
    return ToolDefinitions(format=format, tools=definitions_in(format))


@router.post(
    "/v1/conversations/{conversation_id}/tool-calls",
    summary="Execute a tool call",
    responses=problems_of(ValidationError, ContextLimitUnknown),
)
async def answer_tool_call(
    request: Request, conversation_id: ConversationPath, body: ToolCallRequest
) -> ToolCallAnswer:
    """Execute one call of a tool of `GET /v1/tool-definitions`, and return the tool message.

    Nothing is appended: append the message yourself, with the results of your other tools.
    Tools that `tool_search` finds are promoted: the next builds of the turn have them.
    An error that the model can correct, such as an unknown ref, is a `200` with `is_error` and an
    error message for the model. A malformed call, or a call of another tool, is a `422`.
    """
    answered = await services(request).tool_calls.answer(
        tenant_of(request), conversation_id, body.format, body.tool_call, native=body.native
    )
    return ToolCallAnswer.of(answered, format=body.format)


@router.post(
    "/v1/conversations/{conversation_id}/tools/search", summary="Find tools and promote them"
)
async def search_tools(
    request: Request, conversation_id: ConversationPath, body: ToolSearchRequest
) -> ToolSearchAnswer:
    """Return the definitions of the tools that match, best first, and promote them.

    The search covers the name, description and parameters of every tool of the conversation,
    deferred or not. Matches are not deferred until the next user message. Without a match the list
    is empty.
    """
    tools = json_text.dumps(body.tools or [])
    result = await services(request).tools.search(
        tenant_of(request), conversation_id, body.query, body.limit, tools
    )
    return ToolSearchAnswer.of(
        result,
        format=body.format,
        tools=PROVIDERS[body.format].tools_to_wire(result.tools),
        names=[tool.name for tool in result.tools],
    )
