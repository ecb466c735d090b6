"""`/v1/search`: messages of all conversations by their words."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request

from app.conversations.search.service import MAX_HITS
from app.formats.message import Role
from app.http import cursors
from app.http.cursors import Page
from app.http.fields import AgentId, ResponseSchema
from app.http.routing import Cursor, WireRoute, paged, services, tenant_of
from app.prompt.agent_tools import MAX_QUERY_CHARS

router = APIRouter(route_class=WireRoute, tags=["messages"])


class SearchHit(ResponseSchema):
    """A message that a search found."""

    conversation_id: str
    """UUID of its conversation."""
    seq: int
    """Its position in the log."""
    id: str
    """Id of the message."""
    role: Role
    """Role of the message."""
    snippet: str
    """Its text around the words, on one line."""
    created_at: datetime
    """When it was received."""


class SearchPage(Page[SearchHit]):
    """Hits, those of the newest conversation first."""

    indexed_before: datetime | None
    """What was stored before this time was searched; null if everything was."""


@router.get("/v1/search", summary="Search all conversations")
@paged
async def search_messages(
    request: Request,
    q: Annotated[
        str,
        Query(
            max_length=MAX_QUERY_CHARS,
            description="Words that a message has, as `q` of a transcript.",
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
    `q` and `agent_id` with a cursor.
    """
    digest = cursors.digest_of(q, agent_id)
    after = cursors.decode_search(cursor, digest) if cursor else None
    hits = await services(request).search.page_of_all(tenant_of(request), q, agent_id, after, limit)
    next_cursor = None
    if hits.end is not None:
        at, conversation_id, before_seq = hits.end
        next_cursor = cursors.encode("search", digest, at.isoformat(), conversation_id, before_seq)
    async with services(request).database.session() as session:
        public_ids = await session.conversations.public_ids(
            tenant_of(request), {key for key, _, _ in hits.found}
        )
    data = [
        SearchHit.of(message, conversation_id=public_ids[key], snippet=snippet)
        for key, message, snippet in hits.found
    ]
    return SearchPage(data=data, next_cursor=next_cursor, indexed_before=hits.indexed_before)
