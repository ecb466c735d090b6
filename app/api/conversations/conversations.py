"""`/v1/conversations`: conversations and their settings."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from app.api.conversations.conversation_schemas import (
    ClearedConversation,
    ConversationCreate,
    ConversationPage,
    ConversationPatch,
    ShownConversation,
)
from app.api.http import cursors
from app.api.http.bodies import Json, MalformedJson
from app.api.http.dependencies import (
    ConversationPath,
    Cursor,
    IdempotencyKey,
    Limit,
    conversation_id_from,
    services,
    tenant_of,
)
from app.api.http.errors import problems_of
from app.api.http.fields import AgentId
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
    ServiceUnavailable,
    ValidationError,
)
from app.domain.conversations.conversation import Conversation
from app.domain.conversations.settings import Versioned
from app.services.conversations import conversations as service
from app.services.prompt.settings_inheritance import OwnSettings, Patch

router = APIRouter(route_class=WireRoute, tags=["conversations"])
page_router = APIRouter(route_class=PageRoute, tags=["conversations"])

_READ = problems_of(NotFound, ServiceUnavailable)
_WRITE = problems_of(NotFound, ValidationError, MalformedJson, PayloadTooLarge, ServiceUnavailable)


@router.post(
    "/v1/conversations",
    status_code=201,
    operation_id="create_conversation",
    summary="Create a conversation",
    response_model=ShownConversation,
    responses=problems_of(
        Conflict, ValidationError, MalformedJson, PayloadTooLarge, ServiceUnavailable
    ),
)
async def create_conversation(
    request: Request, body: ConversationCreate, idempotency_key: IdempotencyKey = None
) -> Response:
    """Create an empty conversation, with settings of its own over its agent's.

    `409` when the id is taken, or when the `Idempotency-Key` was used with another body.
    """
    conversation_id = body.conversation_id.lower() if body.conversation_id else None
    new = service.NewConversation(
        conversation_id=conversation_id,
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
    )
    made = await services(request).conversations.create(tenant_of(request), new)
    location = f"/v1/conversations/{made.conversation.conversation_id}"
    return Json(shown_conversation(made), 201, headers={"Location": location})


@page_router.get(
    "/v1/conversations",
    operation_id="list_conversations",
    summary="List conversations",
    response_model=ConversationPage,
    responses=problems_of(ValidationError, ServiceUnavailable),
)
async def list_conversations(
    request: Request,
    agent_id: Annotated[AgentId | None, Query(description="Only this agent's.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """Return conversations, newest first, without their sections, tools and policies."""
    before = cursors.decode_time(cursor, "conversations") if cursor else None
    page = await services(request).conversations.list(
        tenant_of(request), agent_id, limit, before, read_of(request)
    )
    following = None
    if page.has_more:
        last = page[-1]
        created = last.created_at.isoformat()
        following = cursors.encode("conversations", created, last.conversation_id)
    return Json({"data": [_item(found) for found in page], "next_cursor": following})


@router.get(
    "/v1/conversations/{conversation_id}",
    operation_id="get_conversation",
    summary="Read a conversation",
    response_model=ShownConversation,
    responses=_READ,
)
async def get_conversation(request: Request, conversation_id: ConversationPath) -> Response:
    """Return a conversation with the effective value of every setting."""
    known_id = conversation_id_from(conversation_id)
    return Json(
        shown_conversation(await services(request).conversations.get(tenant_of(request), known_id))
    )


@router.patch(
    "/v1/conversations/{conversation_id}",
    operation_id="change_conversation",
    summary="Change a conversation",
    response_model=ShownConversation,
    responses=_WRITE | problems_of(Conflict),
)
async def change_conversation(
    request: Request, conversation_id: ConversationPath, body: ConversationPatch
) -> Response:
    """Change model, policy or metadata; the policy is merged leaf by leaf.

    `409` for another token counter once there are messages, since their counts are stored.
    """
    patch = Patch(
        given=frozenset(body.model_fields_set),
        model=body.model,
        policy=given_policy(body.policy),
        metadata=body.metadata,
    )
    known_id = conversation_id_from(conversation_id)
    return Json(
        shown_conversation(
            await services(request).conversations.change(tenant_of(request), known_id, patch)
        )
    )


@router.delete(
    "/v1/conversations/{conversation_id}",
    operation_id="delete_conversation",
    summary="Delete a conversation",
    response_model=Deleted,
    responses=_READ,
)
async def delete_conversation(request: Request, conversation_id: ConversationPath) -> Response:
    """Delete a conversation with everything derived from it, and say how much that was."""
    known_id = conversation_id_from(conversation_id)
    return Json(
        {"deleted": await services(request).conversations.remove(tenant_of(request), known_id)}
    )


@router.post(
    "/v1/conversations/{conversation_id}/clear",
    operation_id="clear_conversation",
    summary="Clear a conversation",
    response_model=ClearedConversation,
    responses=_READ,
)
async def clear_conversation(request: Request, conversation_id: ConversationPath) -> Response:
    """Have the conversation start anew: payloads show nothing from before.

    Nothing is deleted: the transcript, search and snapshots still have all of it. A summary and a
    running compaction of what came before are dropped.
    """
    known_id = conversation_id_from(conversation_id)
    state = await services(request).conversations.clear(tenant_of(request), known_id)
    return Json(
        {
            "conversation_id": known_id,
            "last_cleared_at": state.cleared_at,
            "head_seq": state.cleared_seq,
        }
    )


@router.get(
    "/v1/conversations/{conversation_id}/sections",
    operation_id="get_conversation_sections",
    summary="Read a conversation's sections",
    response_model=ShownSections,
    responses=_READ | problems_of(ValidationError),
)
async def get_sections(
    request: Request, conversation_id: ConversationPath, version: Version = None
) -> Response:
    """Return the conversation's own sections, without its agent's."""
    known_id = conversation_id_from(conversation_id)
    found = await services(request).conversations.get_list(
        tenant_of(request), known_id, Versioned.SECTIONS, version
    )
    return Json(shown_sections(found.body, found.version))


@router.put(
    "/v1/conversations/{conversation_id}/sections",
    operation_id="set_conversation_sections",
    summary="Replace a conversation's sections",
    response_model=ShownSections,
    responses=_WRITE | problems_of(Conflict),
)
async def put_sections(
    request: Request, conversation_id: ConversationPath, body: SectionList
) -> Response:
    """Replace the conversation's own sections; the next build starts a new epoch.

    They become a new version unless they are those there are; earlier ones stay readable. `409`
    when `expected_version` is not the newest.
    """
    known_id = conversation_id_from(conversation_id)
    found = await services(request).conversations.set_sections(
        tenant_of(request), known_id, given(body.sections), body.expected_version
    )
    return Json(shown_sections(found.body, found.version))


@router.get(
    "/v1/conversations/{conversation_id}/tools",
    operation_id="get_conversation_tools",
    summary="Read a conversation's tools",
    response_model=ShownTools,
    responses=_READ | problems_of(ValidationError),
)
async def get_tools(
    request: Request, conversation_id: ConversationPath, version: Version = None
) -> Response:
    """Return the conversation's own tools as they were given, without its agent's."""
    known_id = conversation_id_from(conversation_id)
    found = await services(request).conversations.get_list(
        tenant_of(request), known_id, Versioned.TOOLS, version
    )
    return Json(shown_tools(found.body, found.version))


@router.put(
    "/v1/conversations/{conversation_id}/tools",
    operation_id="set_conversation_tools",
    summary="Replace a conversation's tools",
    response_model=ShownTools,
    responses=_WRITE | problems_of(Conflict),
)
async def put_tools(
    request: Request, conversation_id: ConversationPath, body: ToolList
) -> Response:
    """Replace the conversation's own tools; the next build starts a new epoch.

    They become a new version unless they are those there are; earlier ones stay readable. `409`
    when `expected_version` is not the newest.
    """
    known_id = conversation_id_from(conversation_id)
    found = await services(request).conversations.set_tools(
        tenant_of(request), known_id, body.tools, body.expected_version
    )
    return Json(shown_tools(found.body, found.version))


def _item(found: Conversation) -> dict[str, Any]:
    state = found.state
    return {
        "conversation_id": found.conversation_id,
        "agent_id": found.agent_id,
        "model": found.settings.model,
        "metadata": json_text.loads(found.metadata),
        "head_seq": state.head_seq,
        "turns": state.turns,
        "message_count": state.head_seq,
        "tokens": state.tokens,
        "rolling_window_seconds": found.rolling_window_seconds,
        "last_cleared_at": found.state.cleared_at,
        "created_at": found.created_at,
        "updated_at": found.updated_at,
    }


def shown_conversation(found: service.ShownConversation) -> dict[str, Any]:
    """Return a conversation with all its settings, as `ShownConversation` describes it."""
    settings = found.conversation.settings
    return _item(found.conversation) | {
        "effective_model": found.model,
        "policy": found.policy,
        "policy_overrides": json_text.loads(settings.policy),
        "sections": shown(json_text.loads(settings.sections)),
        "sections_version": found.conversation.versions.sections,
        "tools": json_text.loads(settings.tools),
        "tools_version": found.conversation.versions.tools,
    }
