"""`/v1/conversations` and `/v1/agents`: their settings, lists of them, and clears."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response

from app.common import json_text
from app.common.errors import Conflict
from app.conversations.conversation import Agent, Conversation, SettingsList
from app.conversations.listing import METADATA_PARAMETER, Filter, Include
from app.conversations.schemas import (
    AgentCreate,
    AgentItem,
    AgentPage,
    AgentPatch,
    Cleared,
    ConversationCreate,
    ConversationPage,
    ConversationPatch,
    ConversationUsage,
    ListedConversation,
    ListVersion,
    ShownAgent,
    ShownConversation,
)
from app.http import cursors
from app.http.bodies import Json
from app.http.cursors import Deleted
from app.http.errors import error_answers
from app.http.fields import MAX_SEQ, NoFields
from app.http.routing import (
    AgentPath,
    ConversationPath,
    Cursor,
    Limit,
    WireRoute,
    by_caller,
    page_bound,
    paged,
    path_of,
    services,
    tenant_of,
)
from app.policy.policy import merge
from app.prompt.sections import section_from

_log = logging.getLogger("app.audit")
router = APIRouter(route_class=WireRoute, tags=["conversations"])
agents_router = APIRouter(route_class=WireRoute, tags=["agents"])
Kind = Annotated[SettingsList, Path(description="Which list: sections or tools.")]
Version = Annotated[int, Path(ge=1, le=MAX_SEQ, description="Version of the list.")]


@router.post(
    "/v1/conversations",
    status_code=201,
    summary="Create a conversation",
    response_model=ShownConversation,
    responses=error_answers(Conflict),
)
async def create_conversation(request: Request, body: ConversationCreate) -> Response:
    """Create an empty conversation; its own settings override those of its agent.

    `409` when the id is taken: with an id of your own a creation can be sent again safely.
    """
    made = await services(request).conversations.create(tenant_of(request), body)
    shown = shown_conversation(request, made)
    return Json(shown, 201, headers={"Location": path_of(made.public_id)})


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

    Filters are combined: a conversation must match all of them. Repeat the filters with a cursor.
    """
    before = cursors.decode(cursor, "conversations", wanted.digest)
    page, end = await services(request).conversations.list(
        tenant_of(request),
        wanted,
        limit,
        before,
        page_bound(request),
        with_usage=include is not None,
    )
    data = [
        ListedConversation.of(
            found, **_item(found), usage=ConversationUsage(**usage) if usage else None
        )
        for found, usage in page
    ]
    next_cursor = cursors.encode("conversations", wanted.digest, *end) if end else None
    return ConversationPage(data=data, next_cursor=next_cursor)


@router.get("/v1/conversations/{conversation_id}", summary="Read a conversation")
async def get_conversation(
    request: Request, conversation_id: ConversationPath
) -> ShownConversation:
    """Return a conversation with the effective value of every setting."""
    async with services(request).database.session() as session:
        found = await session.conversations.get(tenant_of(request), conversation_id)
    return shown_conversation(request, found)


@router.patch(
    "/v1/conversations/{conversation_id}",
    summary="Change a conversation",
    responses=error_answers(Conflict),
)
async def change_conversation(
    request: Request, conversation_id: ConversationPath, body: ConversationPatch
) -> ShownConversation:
    """Change settings, metadata or expiry; the policy is merged leaf by leaf.

    Sections and tools replace the earlier ones as a whole: a list that differs is a new version,
    and the next build may start a new epoch.

    `409` for another token counter once there are messages, since their counts are stored.
    """
    changed = await services(request).conversations.change(
        tenant_of(request), conversation_id, body
    )
    return shown_conversation(request, changed)


@router.delete("/v1/conversations/{conversation_id}", summary="Delete a conversation")
async def delete_conversation(request: Request, conversation_id: ConversationPath) -> Deleted:
    """Delete a conversation with all derived data, and return the deleted rows by table."""
    deleted = await services(request).conversations.remove(tenant_of(request), conversation_id)
    data = by_caller(request, conversation_id=conversation_id, rows=deleted)
    _log.info("conversation_deleted", extra={"data": data})
    return Deleted(deleted=deleted)


@router.get(
    "/v1/conversations/{conversation_id}/versions/{kind}/{version}",
    summary="Read earlier sections or tools of a conversation",
)
async def get_conversation_version(
    request: Request, conversation_id: ConversationPath, kind: Kind, version: Version
) -> ListVersion:
    """Return one of the newest 50 versions of its own sections or tools."""
    async with services(request).database.session() as session:
        body = await session.conversations.version(
            tenant_of(request), conversation_id, kind, version
        )
    return ListVersion(items=json_text.loads(body))


@router.post("/v1/conversations/{conversation_id}/clear", summary="Clear a conversation")
async def clear_conversation(
    request: Request, conversation_id: ConversationPath, body: NoFields | None = None
) -> Cleared:
    """Empty the active window of the conversation.

    Payloads no longer show earlier messages. Nothing is deleted: the transcript, search and
    snapshots still contain them. A summary and a running compaction of them are dropped.
    """
    return await services(request).conversations.clear(tenant_of(request), conversation_id)


@agents_router.post(
    "/v1/agents",
    status_code=201,
    summary="Create an agent",
    response_model=ShownAgent,
    responses=error_answers(Conflict),
)
async def create_agent(request: Request, body: AgentCreate) -> Response:
    """Create an agent; its conversations inherit its settings.

    `409` when the id is taken: with an id of your own a creation can be sent again safely.
    """
    agent = await services(request).agents.create(tenant_of(request), body)
    headers = {"Location": f"/v1/agents/{agent.agent_id}"}
    return Json(_shown_agent(request, agent), 201, headers=headers)


@agents_router.get("/v1/agents", summary="List agents")
@paged
async def list_agents(request: Request, limit: Limit = 50, cursor: Cursor = None) -> AgentPage:
    """Return agents, newest first, without their sections, tools and policies."""
    before = cursors.decode(cursor, "agents")
    async with services(request).database.session() as session:
        page = await session.agents.page(tenant_of(request), limit, before, page_bound(request))
    data = [AgentItem.of(agent, **_item(agent)) for agent in page]
    return AgentPage.up_to("agents", page, "created_at", "agent_id", data=data)


@agents_router.get("/v1/agents/{agent_id}", summary="Read an agent")
async def get_agent(request: Request, agent_id: AgentPath) -> ShownAgent:
    """Return an agent with the effective value of every setting."""
    async with services(request).database.session() as session:
        found = await session.agents.get(tenant_of(request), agent_id)
    return _shown_agent(request, found)


@agents_router.patch("/v1/agents/{agent_id}", summary="Change an agent")
async def change_agent(request: Request, agent_id: AgentPath, body: AgentPatch) -> ShownAgent:
    """Change name, settings or metadata; the policy is merged leaf by leaf.

    Sections and tools replace the earlier ones as a whole: a list that differs is a new version.
    Conversations of the agent use the new settings from their next append or build.
    """
    changed = await services(request).agents.change(tenant_of(request), agent_id, body)
    return _shown_agent(request, changed)


@agents_router.delete("/v1/agents/{agent_id}", summary="Delete an agent")
async def delete_agent(request: Request, agent_id: AgentPath) -> Deleted:
    """Delete an agent with all its conversations, and return the deleted rows by table."""
    deleted = await services(request).agents.remove(tenant_of(request), agent_id)
    data = by_caller(request, agent_id=agent_id, rows=deleted)
    _log.info("agent_deleted", extra={"data": data})
    return Deleted(deleted=deleted)


@agents_router.get(
    "/v1/agents/{agent_id}/versions/{kind}/{version}",
    summary="Read earlier sections or tools of an agent",
)
async def get_agent_version(
    request: Request, agent_id: AgentPath, kind: Kind, version: Version
) -> ListVersion:
    """Return one of the newest 50 versions of its own sections or tools."""
    async with services(request).database.session() as session:
        body = await session.agents.version(tenant_of(request), agent_id, kind, version)
    return ListVersion(items=json_text.loads(body))


@agents_router.post("/v1/agents/{agent_id}/clear", summary="Clear an agent")
async def clear_agent(
    request: Request, agent_id: AgentPath, body: NoFields | None = None
) -> Cleared:
    """Empty the active windows of all conversations of the agent.

    Payloads no longer show earlier messages. Nothing is deleted: transcripts, search and
    snapshots still contain them. Summaries and running compactions of them are dropped.
    """
    return await services(request).agents.clear(tenant_of(request), agent_id)


def shown_conversation(request: Request, conversation: Conversation) -> ShownConversation:
    """Return a conversation as an answer shows it."""
    policies = conversation.agent.policy, conversation.settings.policy
    shown = _item(conversation) | _effective_settings(request, conversation, *policies)
    # It has its own counter from its creation on, even if the agent's policy changes later.
    policy = merge(shown["policy"], {"budget": {"counter": conversation.counter}})
    return ShownConversation.of(conversation, **shown | {"policy": policy})


def _shown_agent(request: Request, agent: Agent) -> ShownAgent:
    effective = _effective_settings(request, agent, agent.settings.policy)
    return ShownAgent.of(agent, **_item(agent), **effective)


def _item(resource: Agent | Conversation) -> dict[str, Any]:
    """Return the fields of an `AgentItem` or a `ConversationItem` that it has by other names."""
    settings, metadata = resource.settings, json_text.loads(resource.metadata)
    listed = {"model": settings.model, "metadata": metadata}
    if isinstance(resource, Agent):
        return listed
    state = resource.state
    counts = {"turn_count": state.turns, "message_count": state.head_seq}
    counts |= {"head_seq": state.head_seq, "token_count": state.tokens}
    return listed | counts | {"conversation_id": resource.public_id}


def _effective_settings(
    request: Request, resource: Agent | Conversation, *policies: str
) -> dict[str, Any]:
    """Return the fields of `EffectiveSettings`; the policy is not checked again."""
    own, resolver = resource.settings, services(request).resolver
    sections = enumerate(json_text.loads(own.sections))
    return {
        "effective_model": resource.model or resolver.default_model,
        "policy": resolver.unchecked_policy(*policies),
        "policy_overrides": json_text.loads(own.policy),
        "sections": [
            replace(section_from(raw, index), content=raw["content"]) for index, raw in sections
        ],
        "sections_version": own.sections_version,
        "tools": json_text.loads(own.tools),
        "tools_version": own.tools_version,
    }
