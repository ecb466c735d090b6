"""`/v1/conversations`: conversations and their settings."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import APIRouter, Request, Response

from app.common.errors import Conflict
from app.conversations.configurable_resources import Configured
from app.conversations.conversation import Conversation
from app.conversations.list_filters import (
    METADATA_PARAMETER,
    Filter,
    Include,
    cursor_at,
    place_from,
)
from app.conversations.list_routes import add_list_routes
from app.conversations.listing_service import ListedUsage
from app.conversations.schemas import (
    ClearedConversation,
    ConversationCreate,
    ConversationPage,
    ConversationPatch,
    ConversationUsage,
    ListedConversation,
    ShownConversation,
)
from app.conversations.service import NewConversation
from app.conversations.settings_schemas import effective_settings, listed_settings
from app.http.bodies import Json
from app.http.conversation_ids import path_of, public_id_of
from app.http.dependencies import (
    ConversationPath,
    Cursor,
    IdempotencyKey,
    Limit,
    by_caller,
    page_bound,
    services,
    tenant_of,
)
from app.http.errors import problems_of
from app.http.fields import NoFields
from app.http.pages import Deleted
from app.http.routing import WireRoute, paged
from app.models.usage_totals import shown_usd

_log = logging.getLogger("app.audit")
router = APIRouter(route_class=WireRoute, tags=["conversations"])


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
    new = NewConversation(
        public_id=body.conversation_id,
        agent_id=body.agent_id,
        rolling_window_seconds=body.rolling_window_seconds,
        idempotency_key=idempotency_key,
        expiry=body.expiry(),
        **body.creation(),
    )
    configured = await services(request).conversations.create(tenant_of(request), new)
    headers = {"Location": path_of(configured.resource.public_id)}
    return Json(shown_conversation(configured), 201, headers=headers)


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
    with_usage = include is not None
    before = place_from(cursor, wanted) if cursor else None
    page = await services(request).conversations.list(
        tenant_of(request),
        wanted,
        limit,
        before,
        page_bound(request),
        with_usage=with_usage,
    )
    next_cursor = cursor_at(page.end, wanted) if page.end is not None else None
    data = [
        ListedConversation(**_item(found), usage=_usage(page.usage.get(found.conversation_id)))
        for found in page.items
    ]
    return ConversationPage(data=data, next_cursor=next_cursor)


@router.get("/v1/conversations/{conversation_id}", summary="Read a conversation")
async def get_conversation(
    request: Request, conversation_id: ConversationPath
) -> ShownConversation:
    """Return a conversation with the effective value of every setting."""
    return shown_conversation(
        await services(request).conversations.get(tenant_of(request), conversation_id)
    )


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
    return shown_conversation(
        await services(request).conversations.change(
            tenant_of(request),
            conversation_id,
            body.patch(
                agent_id=body.agent_id,
                rolling_window_seconds=body.rolling_window_seconds,
                expiry=body.expiry(),
            ),
        )
    )


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


def _conversation_id(conversation_id: ConversationPath) -> str:
    return conversation_id


add_list_routes(
    router,
    "/v1/conversations/{conversation_id}",
    "conversation",
    _conversation_id,
    lambda found: found.conversations,
)


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
        **listed_settings(conversation),
    }


def _usage(usage: ListedUsage | None) -> ConversationUsage | None:
    if usage is None:
        return None
    status = usage.status
    return ConversationUsage.of(
        usage.totals,
        budget=status.budget if status is not None else None,
        pressure=status.pressure.pressure if status is not None else None,
        cost_usd=shown_usd(usage.totals.cost_usd),
    )


def shown_conversation(configured: Configured[Conversation]) -> ShownConversation:
    """Return a conversation with all its settings."""
    return ShownConversation(**conversation_fields(configured))


def conversation_fields(configured: Configured[Conversation]) -> dict[str, Any]:
    """Return the fields of `ShownConversation`."""
    return _item(configured.resource) | effective_settings(configured)
