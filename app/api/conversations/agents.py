"""`/v1/agents`: the settings that several conversations share (B1)."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from app.api.conversations.agent_schemas import (
    AgentCreate,
    AgentPage,
    AgentPatch,
    ClearedAgent,
    ShownAgent,
)
from app.api.http import cursors
from app.api.http.bodies import Json, MalformedJson
from app.api.http.dependencies import (
    AgentPath,
    Cursor,
    IdempotencyKey,
    Limit,
    agent_id_from,
    services,
    tenant_of,
)
from app.api.http.errors import problems_of
from app.api.http.pacing import read_of
from app.api.http.pages import Deleted
from app.api.http.routing import PageRoute, WireRoute
from app.api.prompt.policy_schemas import given_policy
from app.api.prompt.section_schemas import (
    SectionList,
    ShownSections,
    ShownTools,
    ToolList,
    Version,
    given,
    shown,
    shown_sections,
    shown_tools,
)
from app.domain.common import json_text
from app.domain.common.errors import (
    Conflict,
    NotFound,
    PayloadTooLarge,
    Problem,
    ServiceUnavailable,
    ValidationError,
)
from app.domain.conversations.agent import Agent
from app.domain.conversations.settings import Versioned
from app.services.conversations import agents as service
from app.services.prompt.settings_inheritance import OwnSettings, Patch

router = APIRouter(route_class=WireRoute, tags=["agents"])
page_router = APIRouter(route_class=PageRoute, tags=["agents"])

_READ = problems_of(NotFound, ServiceUnavailable)
_WRITE = problems_of(NotFound, ValidationError, MalformedJson, PayloadTooLarge, ServiceUnavailable)


@router.post(
    "/v1/agents",
    status_code=201,
    operation_id="create_agent",
    summary="Create an agent",
    response_model=ShownAgent,
    responses=problems_of(
        Conflict, ValidationError, MalformedJson, PayloadTooLarge, ServiceUnavailable
    ),
)
async def create_agent(
    request: Request, body: AgentCreate, idempotency_key: IdempotencyKey = None
) -> Response:
    """Create an agent, whose settings its conversations inherit.

    `409` when the id is taken, or when the `Idempotency-Key` was used with another body.
    """
    new = service.NewAgent(
        name=body.name,
        agent_id=body.agent_id,
        settings=OwnSettings(
            model=body.model,
            policy=given_policy(body.policy) or {},
            sections=given(body.sections),
            tools=body.tools,
        ),
        metadata=body.metadata,
        idempotency_key=idempotency_key,
        request=body.model_dump(exclude_unset=True),
        rolling_window_seconds=body.rolling_window_seconds,
    )
    made = await services(request).agents.create(tenant_of(request), new)
    return Json(_full(made), 201, headers={"Location": f"/v1/agents/{made.agent.agent_id}"})


@page_router.get(
    "/v1/agents",
    operation_id="list_agents",
    summary="List agents",
    response_model=AgentPage,
    responses=problems_of(ValidationError, ServiceUnavailable),
)
async def list_agents(request: Request, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """Return agents, newest first, without their sections, tools and policies."""
    before = cursors.decode_time(cursor, "agents") if cursor else None
    page = await services(request).agents.list(tenant_of(request), limit, before, read_of(request))
    following = None
    if page.has_more:
        last = page[-1]
        following = cursors.encode("agents", last.created_at.isoformat(), last.agent_id)
    return Json({"data": [_item(found) for found in page], "next_cursor": following})


@router.get(
    "/v1/agents/{agent_id}",
    operation_id="get_agent",
    summary="Read an agent",
    response_model=ShownAgent,
    responses=_READ,
)
async def get_agent(request: Request, agent_id: AgentPath) -> Response:
    """Return an agent with the effective value of every setting."""
    return Json(
        _full(await services(request).agents.get(tenant_of(request), agent_id_from(agent_id)))
    )


@router.patch(
    "/v1/agents/{agent_id}",
    operation_id="change_agent",
    summary="Change an agent",
    response_model=ShownAgent,
    responses=_WRITE,
)
async def change_agent(request: Request, agent_id: AgentPath, body: AgentPatch) -> Response:
    """Change name, model, policy, rolling window or metadata; the policy is merged leaf by leaf.

    Conversations of the agent see the change with their next append or build.
    """
    if body.name is None and "name" in body.model_fields_set:
        places = (Problem("/name", "An agent has a name"),)
        raise ValidationError("The name cannot be null", problems=places)
    patch = Patch(
        given=frozenset(body.model_fields_set),
        name=body.name or "",
        model=body.model,
        policy=given_policy(body.policy),
        metadata=body.metadata,
        rolling_window_seconds=body.rolling_window_seconds,
    )
    known_id = agent_id_from(agent_id)
    return Json(_full(await services(request).agents.change(tenant_of(request), known_id, patch)))


@router.delete(
    "/v1/agents/{agent_id}",
    operation_id="delete_agent",
    summary="Delete an agent",
    response_model=Deleted,
    responses=_READ,
)
async def delete_agent(request: Request, agent_id: AgentPath) -> Response:
    """Delete an agent with all its conversations, and say how much that was."""
    known_id = agent_id_from(agent_id)
    return Json({"deleted": await services(request).agents.remove(tenant_of(request), known_id)})


@router.post(
    "/v1/agents/{agent_id}/clear",
    operation_id="clear_agent",
    summary="Clear an agent",
    response_model=ClearedAgent,
    responses=_READ,
)
async def clear_agent(request: Request, agent_id: AgentPath) -> Response:
    """Have all conversations of the agent start anew: payloads show nothing from before.

    Nothing is deleted: transcripts, search and snapshots still have all of it. Summaries and
    running compactions of what came before are dropped.
    """
    known_id = agent_id_from(agent_id)
    cleared = await services(request).agents.clear(tenant_of(request), known_id)
    return Json(
        {
            "agent_id": known_id,
            "last_cleared_at": cleared.last_cleared_at,
            "conversations": cleared.conversations,
        }
    )


@router.get(
    "/v1/agents/{agent_id}/sections",
    operation_id="get_agent_sections",
    summary="Read an agent's sections",
    response_model=ShownSections,
    responses=_READ | problems_of(ValidationError),
)
async def get_sections(request: Request, agent_id: AgentPath, version: Version = None) -> Response:
    """Return the agent's sections."""
    known_id = agent_id_from(agent_id)
    found = await services(request).agents.get_list(
        tenant_of(request), known_id, Versioned.SECTIONS, version
    )
    return Json(shown_sections(found.body, found.version))


@router.put(
    "/v1/agents/{agent_id}/sections",
    operation_id="set_agent_sections",
    summary="Replace an agent's sections",
    response_model=ShownSections,
    responses=_WRITE | problems_of(Conflict),
)
async def put_sections(request: Request, agent_id: AgentPath, body: SectionList) -> Response:
    """Replace the agent's sections; the next build of its conversations starts a new epoch.

    They become a new version unless they are those there are; earlier ones stay readable. `409`
    when `expected_version` is not the newest.
    """
    known_id = agent_id_from(agent_id)
    found = await services(request).agents.set_sections(
        tenant_of(request), known_id, given(body.sections), body.expected_version
    )
    return Json(shown_sections(found.body, found.version))


@router.get(
    "/v1/agents/{agent_id}/tools",
    operation_id="get_agent_tools",
    summary="Read an agent's tools",
    response_model=ShownTools,
    responses=_READ | problems_of(ValidationError),
)
async def get_tools(request: Request, agent_id: AgentPath, version: Version = None) -> Response:
    """Return the agent's tools as they were given."""
    known_id = agent_id_from(agent_id)
    found = await services(request).agents.get_list(
        tenant_of(request), known_id, Versioned.TOOLS, version
    )
    return Json(shown_tools(found.body, found.version))


@router.put(
    "/v1/agents/{agent_id}/tools",
    operation_id="set_agent_tools",
    summary="Replace an agent's tools",
    response_model=ShownTools,
    responses=_WRITE | problems_of(Conflict),
)
async def put_tools(request: Request, agent_id: AgentPath, body: ToolList) -> Response:
    """Replace the agent's tools; the next build of its conversations starts a new epoch.

    They become a new version unless they are those there are; earlier ones stay readable. `409`
    when `expected_version` is not the newest.
    """
    known_id = agent_id_from(agent_id)
    found = await services(request).agents.set_tools(
        tenant_of(request), known_id, body.tools, body.expected_version
    )
    return Json(shown_tools(found.body, found.version))


def _item(found: Agent) -> dict[str, Any]:
    return {
        "agent_id": found.agent_id,
        "name": found.name,
        "model": found.settings.model,
        "metadata": json_text.loads(found.metadata),
        "rolling_window_seconds": found.rolling_window_seconds,
        "last_cleared_at": found.last_cleared_at,
        "created_at": found.created_at,
        "updated_at": found.updated_at,
    }


def _full(found: service.ShownAgent) -> dict[str, Any]:
    settings = found.agent.settings
    return _item(found.agent) | {
        "effective_model": found.model,
        "policy": found.policy,
        "policy_overrides": json_text.loads(settings.policy),
        "sections": shown(json_text.loads(settings.sections)),
        "sections_version": found.agent.versions.sections,
        "tools": json_text.loads(settings.tools),
        "tools_version": found.agent.versions.tools,
    }
