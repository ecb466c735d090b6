"""`/v1/events`: a stream of the events of all conversations of a tenant."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from sse_starlette import EventSourceResponse

from app.api.conversations.event_schemas import (
    TENANT_STREAM,
    EventTypes,
    FirstTenantEventId,
    Follow,
    LastTenantEventId,
)
from app.api.conversations.event_streams import streamed
from app.api.http.dependencies import services, tenant_of
from app.api.http.errors import problems_of
from app.api.http.fields import AgentId
from app.api.http.routing import WireRoute
from app.domain.common.errors import ServiceUnavailable, ValidationError
from app.domain.conversations.tenant_events import EventFilter, tenant_cursor_from

router = APIRouter(route_class=WireRoute, tags=["context"])


@router.get(
    "/v1/events",
    operation_id="stream_tenant_events",
    summary="Follow the events of all conversations",
    response_class=EventSourceResponse,
    responses={200: TENANT_STREAM, **problems_of(ValidationError, ServiceUnavailable)},
)
async def stream_tenant_events(
    request: Request,
    agent_id: Annotated[
        AgentId | None,
        Query(description="Only events of conversations that had this agent at the time."),
    ] = None,
    types: EventTypes = None,
    last_event_id: LastTenantEventId = None,
    first_event_id: FirstTenantEventId = None,
    follow: Follow = True,
) -> Response:
    """Stream the events of all conversations as Server-Sent Events, from now on or after an id.

    The first event is `ready`, whose id is the start of the stream. Reconnect with the last id as
    `Last-Event-ID`, to any process and with any filter: no event is lost or sent twice. An id of
    another database, such as one before a restore, is a `422` with `newest_id`.

    Types: `created`, `due`, `started`, `compacted`, `failed`, `undone`, `pinned`, `unpinned`,
    `cleared`, `restored`, `gc`, `deleted`. Appends are in the stream of each conversation only.
    When a conversation is deleted, its events that were not sent yet are left out, except
    `deleted`. An event is sent once every transaction of the database server that began before it
    has ended, usually within milliseconds: `follow=false` may not have the newest yet.

    Comments, limits and the end of the stream are those of a conversation's stream.
    """
    last_id = last_event_id or first_event_id
    after = tenant_cursor_from(last_id) if last_id else None
    if last_id and after is None:
        place = "/header/Last-Event-ID" if last_event_id else "/query/last_event_id"
        raise ValidationError.at(place, "has a number that is too large")
    stream = await services(request).events.open_of_tenant(
        tenant_of(request), after, EventFilter(agent_id, types or ()), follow=follow
    )
    return streamed(
        request,
        stream,
        lambda event: {"conversation_id": event.conversation_id, "agent_id": event.agent_id},
    )
