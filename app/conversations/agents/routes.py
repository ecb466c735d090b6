"""`/v1/agents`: settings that several conversations share."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import APIRouter, Request, Response

from app.common.errors import Conflict
from app.conversations.agents.agent import Agent
from app.conversations.agents.schemas import (
    AgentCreate,
    AgentItem,
    AgentPage,
    AgentPatch,
    ClearedAgent,
    ShownAgent,
)
from app.conversations.agents.service import NewAgent
from app.conversations.configurable_resources import Configured
from app.conversations.list_routes import add_list_routes
from app.conversations.settings_schemas import effective_settings, listed_settings
from app.http import cursors
from app.http.bodies import Json
from app.http.dependencies import (
    AgentPath,
    Cursor,
    IdempotencyKey,
    Limit,
    agent_id_from,
    by_caller,
    page_bound,
    services,
    tenant_of,
)
from app.http.errors import problems_of
from app.http.fields import NoFields
from app.http.pages import Deleted
from app.http.routing import WireRoute, paged

_log = logging.getLogger("app.audit")
router = APIRouter(route_class=WireRoute, tags=["agents"])


@router.post(
    "/v1/agents",
    status_code=201,
    summary="Create an agent",
    response_model=ShownAgent,
    responses=problems_of(Conflict),
)
async def create_agent(
    request: Request, body: AgentCreate, idempotency_key: IdempotencyKey = None
) -> Response:
    """Create an agent; its conversations inherit its settings.

    `409` when the id is taken, or when the `Idempotency-Key` was used with another body.
    """
    new = NewAgent(
        name=body.name,
        agent_id=body.agent_id,
        rolling_window_seconds=body.rolling_window_seconds,
        idempotency_key=idempotency_key,
        **body.creation(),
    )
    configured = await services(request).agents.create(tenant_of(request), new)
    return Json(
        _shown_agent(configured),
        201,
        headers={"Location": f"/v1/agents/{configured.resource.agent_id}"},
    )


@router.get("/v1/agents", summary="List agents")
@paged
async def list_agents(request: Request, limit: Limit = 50, cursor: Cursor = None) -> AgentPage:
    """Return agents, newest first, without their sections, tools and policies."""
    before = cursors.decode_time(cursor, "agents") if cursor else None
    page = await services(request).agents.list(
        tenant_of(request), limit, before, page_bound(request)
    )
    last = page[-1] if page.has_more else None
    cursor_fields = (last.created_at.isoformat(), last.agent_id) if last else ()
    next_cursor = cursors.encode("agents", *cursor_fields) if last else None
    return AgentPage(data=[AgentItem(**_item(agent)) for agent in page], next_cursor=next_cursor)


@router.get("/v1/agents/{agent_id}", summary="Read an agent")
async def get_agent(request: Request, agent_id: AgentPath) -> ShownAgent:
    """Return an agent with the effective value of every setting."""
    return _shown_agent(
        await services(request).agents.get(tenant_of(request), agent_id_from(agent_id))
    )


@router.patch("/v1/agents/{agent_id}", summary="Change an agent")
async def change_agent(request: Request, agent_id: AgentPath, body: AgentPatch) -> ShownAgent:
    """Change name, model, policy, rolling window or metadata; the policy is merged leaf by leaf.

    Conversations of the agent use the new settings from their next append or build.
    """
    patch = body.patch(name=body.name or "", rolling_window_seconds=body.rolling_window_seconds)
    agent_id = agent_id_from(agent_id)
    return _shown_agent(await services(request).agents.change(tenant_of(request), agent_id, patch))


@router.delete("/v1/agents/{agent_id}", summary="Delete an agent")
async def delete_agent(request: Request, agent_id: AgentPath) -> Deleted:
    """Delete an agent with all its conversations, and return the deleted rows by table."""
    agent_id = agent_id_from(agent_id)
    deleted = await services(request).agents.remove(tenant_of(request), agent_id)
    data = by_caller(request, agent_id=agent_id, rows=deleted)
    _log.info("agent_deleted", extra={"data": data})
    return Deleted(deleted=deleted)


@router.post("/v1/agents/{agent_id}/clear", summary="Clear an agent")
async def clear_agent(
    request: Request, agent_id: AgentPath, body: NoFields | None = None
) -> ClearedAgent:
    """Empty the active windows of all conversations of the agent.

    Payloads no longer show earlier messages. Nothing is deleted: transcripts, search and
    snapshots still contain them. Summaries and running compactions of them are dropped.
    """
    agent_id = agent_id_from(agent_id)
    cleared = await services(request).agents.clear(tenant_of(request), agent_id)
    return ClearedAgent.of(cleared, agent_id=agent_id)


def _agent_id(agent_id: AgentPath) -> str:
    return agent_id_from(agent_id)


add_list_routes(router, "/v1/agents/{agent_id}", "agent", _agent_id, lambda found: found.agents)


def _item(agent: Agent) -> dict[str, Any]:
    return {
        "agent_id": agent.agent_id,
        "name": agent.name,
        "last_cleared_at": agent.last_cleared_at,
        **listed_settings(agent),
    }


def _shown_agent(configured: Configured[Agent]) -> ShownAgent:
    return ShownAgent(**_item(configured.resource), **effective_settings(configured))
