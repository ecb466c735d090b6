"""`/v1/conversations/{id}/fork`: a conversation that goes on from another one's log (I6)."""

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
    """Copy a conversation up to a message into one of its own, which goes on from there.

    The fork has the log with its tool outputs, settings, pins and what is compacted of it; each of
    the two can be deleted without the other. Calls that are open at that message are closed: a
    result for one is a `409`, and payloads say that none was recorded. A fork of messages that are
    not in the window any more has all of them in its own. `409` when the id is taken, `422` for a
    seq beyond the head.
    """
    asked = body if body is not None else ForkRequest()
    new = NewFork(
        at_seq=asked.at_seq,
        conversation_id=asked.conversation_id.lower() if asked.conversation_id else None,
        metadata=asked.metadata,
        idempotency_key=idempotency_key,
        request=asked.model_dump(exclude_unset=True),
    )
    source_id = conversation_id_from(conversation_id)
    made = await services(request).forks.fork(tenant_of(request), source_id, new)
    shown = await services(request).conversations.get(tenant_of(request), made.conversation_id)
    told = {"conversation_id": made.source_id, "at_seq": made.at_seq}
    location = f"/v1/conversations/{made.conversation_id}"
    return Json(
        shown_conversation(shown) | {"forked_from": told}, 201, headers={"Location": location}
    )
