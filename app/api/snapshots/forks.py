"""`/v1/conversations/{id}/fork`: copy a conversation up to a message."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from app.api.conversations.conversations import shown_conversation
from app.api.http.bodies import Json, MalformedJson
from app.api.http.dependencies import (
    ConversationPath,
    IdempotencyKey,
    conversation_id_from,
    services,
    tenant_of,
)
from app.api.http.errors import problems_of
from app.api.http.routing import WireRoute, heavy
from app.api.snapshots.fork_schemas import Fork, ForkRequest
from app.domain.common.errors import (
    Conflict,
    NotFound,
    PayloadTooLarge,
    ServiceUnavailable,
    StorageLimitReached,
    ValidationError,
)
from app.services.snapshots.forks import NewFork

router = APIRouter(route_class=WireRoute, tags=["conversations"])


@router.post(
    "/v1/conversations/{conversation_id}/fork",
    status_code=201,
    operation_id="fork_conversation",
    summary="Fork a conversation",
    response_model=Fork,
    responses=problems_of(
        NotFound,
        Conflict,
        ValidationError,
        MalformedJson,
        PayloadTooLarge,
        StorageLimitReached,
        ServiceUnavailable,
    ),
)
@heavy
async def fork_conversation(
    request: Request,
    conversation_id: ConversationPath,
    body: ForkRequest | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Create a conversation as a copy of this one up to a message.

    The fork has the log with its tool outputs, settings, pins and compactions; either conversation
    can be deleted without the other. Calls that are open at that message are closed: a result for
    one is a `409`, and payloads contain a placeholder result. If the source has none of the copied
    messages in its active window any more, the fork has all of them in its own. `409` if the id is
    used, `422` for a seq beyond the head.
    """
    fork = body if body is not None else ForkRequest()
    new = NewFork(
        at_seq=fork.at_seq,
        conversation_id=fork.conversation_id.lower() if fork.conversation_id else None,
        metadata=fork.metadata,
        idempotency_key=idempotency_key,
        request=fork.model_dump(exclude_unset=True),
    )
    source_id = conversation_id_from(conversation_id)
    created = await services(request).forks.fork(tenant_of(request), source_id, new)
    shown = await services(request).conversations.get(tenant_of(request), created.conversation_id)
    source = {"conversation_id": created.source_id, "at_seq": created.at_seq}
    location = f"/v1/conversations/{created.conversation_id}"
    return Json(
        shown_conversation(shown) | {"forked_from": source}, 201, headers={"Location": location}
    )
