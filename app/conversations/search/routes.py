"""`/v1/search`: messages of all conversations by their words."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from app.conversations.search.service import MAX_HITS, SearchPage
from app.http.fields import AgentId
from app.http.routing import Cursor, WireRoute, paged, services, tenant_of
from app.prompt.agent_tools import MAX_QUERY_CHARS

router = APIRouter(route_class=WireRoute, tags=["messages"])


@router.get("/v1/search", summary="Search all conversations")
@paged
async def search_messages(
    request: Request,
    query: Annotated[
        str,
        Query(
            max_length=MAX_QUERY_CHARS,
            description="Words that a message has, as `query` of a transcript.",
            examples=["trip Bergen"],
        ),
    ],
    agent_id: Annotated[AgentId | None, Query(description="Only this agent's.")] = None,
    limit: Annotated[
        int, Query(ge=1, le=MAX_HITS, description="Maximum number of items on a page.")
    ] = 20,
    cursor: Cursor = None,
) -> SearchPage:
    """Return messages of all conversations that match a query, each with a snippet.

    The newest conversation is first, and in it the newest message. A worker indexes messages half
    a minute after they are appended; `indexed_before` tells how far it is. A page ends after 1,000
    conversations: it may have fewer items than `limit`, or none, and still a `next_cursor`. Repeat
    `query` and `agent_id` with a cursor.
    """
    search = services(request).search
    return await search.page_of_all(tenant_of(request), query, agent_id, cursor, limit)
