"""`/v1/conversations` and `/v1/agents`: their settings, with the lists of sections and tools."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from app.common import json_text
from app.common.errors import Conflict
from app.conversations.agents import AgentService
from app.conversations.budget_status import BudgetStatus
from app.conversations.configurable_resources import Configured
from app.conversations.conversation import Agent, Conversation
from app.conversations.list_filters import (
    METADATA_PARAMETER,
    Filter,
    Include,
    cursor_at,
    place_from,
)
from app.conversations.listing_repository import ListedTotals
from app.conversations.schemas import (
    AgentCreate,
    AgentItem,
    AgentPage,
    AgentPatch,
    ClearedAgent,
    ClearedConversation,
    ConversationCreate,
    ConversationPage,
    ConversationPatch,
    ConversationUsage,
    ListedConversation,
    ShownAgent,
    ShownConversation,
)
from app.conversations.service import ConversationService
from app.conversations.settings import SettingsList
from app.http import cursors
from app.http.bodies import Json
from app.http.conversation_ids import path_of, public_id_of
from app.http.dependencies import (
    AgentPath,
    ConversationPath,
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
from app.prompt.section_schemas import (
    SectionList,
    ShownSections,
    ShownTools,
    ToolList,
    Version,
    complete_sections,
    sections_answer,
    sections_to_store,
    tools_answer,
)

_log = logging.getLogger("app.audit")
router = APIRouter(route_class=WireRoute, tags=["conversations"])
agents_router = APIRouter(route_class=WireRoute, tags=["agents"])
_REPLACE = """\
Replace its own {kind}; the next build starts a new epoch.

A list that differs from the current one becomes a new version, and the newest 50 versions stay
readable. `409` when `expected_version` is not the newest version."""


@router.post(
    "/v1/conversations",
    status_code=201,
    summary="Create a conversation",
    response_model=ShownConversation,
    responses=problems_of(Conflict),
)
async def create_conversation(
    request: Request, body: ConversationCreate, idempotency_key: IdempotencyKey = None
) -> Response:
    """Create an empty conversation; its own settings override those of its agent.

    `409` when the id is taken, or when the `Idempotency-Key` was used with another body.
    """
    configured = await services(request).conversations.create(
        tenant_of(request), body, idempotency_key
    )
    headers = {"Location": path_of(configured.resource.public_id)}
    return Json(ShownConversation(**conversation_fields(configured)), 201, headers=headers)


@router.get("/v1/conversations", summary="List conversations", openapi_extra=METADATA_PARAMETER)
@paged
async def list_conversations(
    request: Request,
    wanted: Filter,
    include: Include = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> ConversationPage:
    """Return conversations, newest first, without their sections, tools and policies.

    Filters are combined: a conversation must match all of them. Repeat the filters with a cursor. A
    page may have fewer items than `limit`, or none, and still a `next_cursor`.
    """
    before = place_from(cursor, wanted) if cursor else None
    page, end = await services(request).conversations.list(
        tenant_of(request),
        wanted,
        limit,
        before,
        page_bound(request),
        with_usage=include is not None,
    )
    data = [
        ListedConversation(**_item(found), usage=_usage(totals, status))
        for found, totals, status in page
    ]
    return ConversationPage(data=data, next_cursor=cursor_at(end, wanted) if end else None)


@router.get("/v1/conversations/{conversation_id}", summary="Read a conversation")
async def get_conversation(
    request: Request, conversation_id: ConversationPath
) -> ShownConversation:
    """Return a conversation with the effective value of every setting."""
    configured = await services(request).conversations.get(tenant_of(request), conversation_id)
    return ShownConversation(**conversation_fields(configured))


@router.patch(
    "/v1/conversations/{conversation_id}",
    summary="Change a conversation",
    responses=problems_of(Conflict),
)
async def change_conversation(
    request: Request, conversation_id: ConversationPath, body: ConversationPatch
) -> ShownConversation:
    """Change agent, model, policy, rolling window, metadata or expiry.

    The policy is merged leaf by leaf.

    With another agent the conversation inherits the settings of that one from its next append or
    build, and shows no message from before the last clear of that agent. `409` for another token
    counter once there are messages, since their counts are stored.
    """
    configured = await services(request).conversations.change(
        tenant_of(request), conversation_id, body
    )
    return ShownConversation(**conversation_fields(configured))


@router.delete("/v1/conversations/{conversation_id}", summary="Delete a conversation")
async def delete_conversation(request: Request, conversation_id: ConversationPath) -> Deleted:
    """Delete a conversation with all derived data, and return the deleted rows by table."""
    deleted = await services(request).conversations.remove(tenant_of(request), conversation_id)
    data = by_caller(request, conversation_id=conversation_id, rows=deleted)
    _log.info("conversation_deleted", extra={"data": data})
    return Deleted(deleted=deleted)


@router.post("/v1/conversations/{conversation_id}/clear", summary="Clear a conversation")
async def clear_conversation(
    request: Request, conversation_id: ConversationPath, body: NoFields | None = None
) -> ClearedConversation:
    """Empty the active window of the conversation.

    Payloads no longer show earlier messages. Nothing is deleted: the transcript, search and
    snapshots still contain them. A summary and a running compaction of them are dropped.
    """
    state = await services(request).conversations.clear(tenant_of(request), conversation_id)
    return ClearedConversation(
        conversation_id=public_id_of(request),
        last_cleared_at=state.cleared_at,
        head_seq=state.cleared_seq,
    )


@agents_router.post(
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
    configured = await services(request).agents.create(tenant_of(request), body, idempotency_key)
    headers = {"Location": f"/v1/agents/{configured.resource.agent_id}"}
    return Json(_shown_agent(configured), 201, headers=headers)


@agents_router.get("/v1/agents", summary="List agents")
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
    return AgentPage(
        data=[AgentItem(**_agent_item(agent)) for agent in page], next_cursor=next_cursor
    )


@agents_router.get("/v1/agents/{agent_id}", summary="Read an agent")
async def get_agent(request: Request, agent_id: AgentPath) -> ShownAgent:
    """Return an agent with the effective value of every setting."""
    return _shown_agent(
        await services(request).agents.get(tenant_of(request), agent_id_from(agent_id))
    )


@agents_router.patch("/v1/agents/{agent_id}", summary="Change an agent")
async def change_agent(request: Request, agent_id: AgentPath, body: AgentPatch) -> ShownAgent:
    """Change name, model, policy, rolling window or metadata; the policy is merged leaf by leaf.

    Conversations of the agent use the new settings from their next append or build.
    """
    agent_id = agent_id_from(agent_id)
    return _shown_agent(await services(request).agents.change(tenant_of(request), agent_id, body))


@agents_router.delete("/v1/agents/{agent_id}", summary="Delete an agent")
async def delete_agent(request: Request, agent_id: AgentPath) -> Deleted:
    """Delete an agent with all its conversations, and return the deleted rows by table."""
    agent_id = agent_id_from(agent_id)
    deleted = await services(request).agents.remove(tenant_of(request), agent_id)
    data = by_caller(request, agent_id=agent_id, rows=deleted)
    _log.info("agent_deleted", extra={"data": data})
    return Deleted(deleted=deleted)


@agents_router.post("/v1/agents/{agent_id}/clear", summary="Clear an agent")
async def clear_agent(
    request: Request, agent_id: AgentPath, body: NoFields | None = None
) -> ClearedAgent:
    """Empty the active windows of all conversations of the agent.

    Payloads no longer show earlier messages. Nothing is deleted: transcripts, search and
    snapshots still contain them. Summaries and running compactions of them are dropped.
    """
    agent_id = agent_id_from(agent_id)
    cleared_at, count = await services(request).agents.clear(tenant_of(request), agent_id)
    return ClearedAgent(agent_id=agent_id, last_cleared_at=cleared_at, conversations=count)


def _add_list_routes(router: APIRouter, resource: str, id_of: Callable[..., str]) -> None:
    """Add the routes of both lists of a kind of resource; `id_of` reads its id from the path."""
    path = f"/v1/{resource}s/{{{resource}_id}}"

    def service_of(request: Request) -> AgentService | ConversationService:
        found = services(request)
        return found.agents if resource == "agent" else found.conversations

    def add(
        kind: SettingsList,
        body_schema: type[SectionList | ToolList],
        answer_schema: type[ShownSections | ShownTools],
        shown: Callable[[str, int], ShownSections | ShownTools],
        list_description: str,
    ) -> None:
        owner = f"an {resource}" if resource == "agent" else f"a {resource}"

        @router.get(
            f"{path}/{kind}",
            operation_id=f"get_{resource}_{kind}",
            summary=f"Read {owner}'s {kind}",
            description=f"Return its own {list_description}, without inherited ones.",
            response_model=answer_schema,
        )
        async def get_list(
            request: Request, resource_id: str = Depends(id_of), version: Version = None
        ) -> ShownSections | ShownTools:
            service = service_of(request)
            found = await service.get_list(tenant_of(request), resource_id, kind, version)
            return shown(found.body, found.version)

        async def put_list(
            request: Request, body: SectionList | ToolList, resource_id: str = Depends(id_of)
        ) -> ShownSections | ShownTools:
            items = (
                sections_to_store(body.sections) if isinstance(body, SectionList) else body.tools
            )
            found = await service_of(request).set_list(
                tenant_of(request), resource_id, kind, items, body.expected_version
            )
            return shown(found.body, found.version)

        put_list.__annotations__["body"] = body_schema
        router.put(
            f"{path}/{kind}",
            operation_id=f"set_{resource}_{kind}",
            summary=f"Replace {owner}'s {kind}",
            description=_REPLACE.format(kind=kind),
            response_model=answer_schema,
            responses=problems_of(Conflict),
        )(put_list)

    add(SettingsList.SECTIONS, SectionList, ShownSections, sections_answer, "sections")
    add(SettingsList.TOOLS, ToolList, ShownTools, tools_answer, "tools as the caller gave them")


def _conversation_id(conversation_id: ConversationPath) -> str:
    return conversation_id


def _agent_id(agent_id: AgentPath) -> str:
    return agent_id_from(agent_id)


_add_list_routes(router, "conversation", _conversation_id)
_add_list_routes(agents_router, "agent", _agent_id)


def _item(conversation: Conversation) -> dict[str, Any]:
    state = conversation.state
    return {
        "conversation_id": conversation.public_id,
        "agent_id": conversation.agent_id,
        "head_seq": state.head_seq,
        "turns": state.turns,
        "message_count": state.head_seq,
        "tokens": state.tokens,
        "last_cleared_at": conversation.last_cleared_at,
        "last_message_at": conversation.last_message_at,
        "expires_at": conversation.expires_at,
        **_listed_settings(conversation),
    }


def _usage(totals: ListedTotals | None, status: BudgetStatus | None) -> ConversationUsage | None:
    if totals is None:
        return None
    return ConversationUsage.of(
        totals,
        budget=status.budget if status is not None else None,
        pressure=status.pressure.pressure if status is not None else None,
        cost_usd=totals.cost_usd,
    )


def conversation_fields(configured: Configured[Conversation]) -> dict[str, Any]:
    """Return the fields of `ShownConversation`."""
    return _item(configured.resource) | _effective_settings(configured)


def _agent_item(agent: Agent) -> dict[str, Any]:
    return {
        "agent_id": agent.agent_id,
        "name": agent.name,
        "last_cleared_at": agent.last_cleared_at,
        **_listed_settings(agent),
    }


def _shown_agent(configured: Configured[Agent]) -> ShownAgent:
    return ShownAgent(**_agent_item(configured.resource), **_effective_settings(configured))


def _listed_settings(resource: Agent | Conversation) -> dict[str, Any]:
    """Return the fields of `ListedSettings`."""
    return {
        "model": resource.settings.model,
        "metadata": json_text.loads(resource.metadata),
        "rolling_window_seconds": resource.rolling_window.seconds,
        "rolling_window_source": resource.rolling_window.source,
        "created_at": resource.created_at,
        "updated_at": resource.updated_at,
    }


def _effective_settings(configured: Configured[Agent] | Configured[Conversation]) -> dict[str, Any]:
    """Return the fields of `EffectiveSettings`."""
    settings, versions = configured.resource.settings, configured.resource.versions
    return {
        "effective_model": configured.model,
        "policy": configured.policy,
        "policy_overrides": json_text.loads(settings.policy),
        "sections": complete_sections(json_text.loads(settings.sections)),
        "sections_version": versions.sections,
        "tools": json_text.loads(settings.tools),
        "tools_version": versions.tools,
    }
