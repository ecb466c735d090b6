"""`/v1/conversations/{id}/fork`: copy a conversation up to a message."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import Field

from app.common.errors import Conflict
from app.conversations.routes import conversation_fields
from app.conversations.schemas import CONVERSATION, ShownConversation
from app.http.bodies import Json
from app.http.conversation_ids import path_of, public_id_of
from app.http.dependencies import ConversationPath, IdempotencyKey, services, tenant_of
from app.http.errors import problems_of
from app.http.fields import (
    MAX_SEQ,
    ConversationId,
    Metadata,
    RequestSchema,
    ResponseSchema,
    examples,
)
from app.http.routing import WireRoute, large
from app.snapshots.forks_service import NewFork

router = APIRouter(route_class=WireRoute, tags=["conversations"])

_FORKED_AT = "2026-01-05T09:45:00.123456+00:00"
_EXAMPLE: dict[str, Any] = {
    **CONVERSATION,
    "conversation_id": "0199a1b2-9f8e-7d6c-8b5a-4c3d2e1f0a9b",
    "created_at": _FORKED_AT,
    "updated_at": _FORKED_AT,
    "forked_from": {"conversation_id": CONVERSATION["conversation_id"], "at_seq": 12},
}


class ForkRequest(RequestSchema):
    """A fork to create."""

    model_config = examples({"at_seq": 12})

    at_seq: int | None = Field(default=None, ge=0, le=MAX_SEQ)
    """Seq of the last message of the fork; the head by default, 0 for an empty log."""
    conversation_id: ConversationId | None = None
    metadata: Metadata | None = None
    """Metadata that replaces that of the source conversation."""


class ForkedFrom(ResponseSchema):
    """The source of a fork."""

    conversation_id: str
    """Id of the source conversation."""
    at_seq: int
    """Seq of the last copied message."""


class Fork(ShownConversation):
    """A conversation that was created as a fork."""

    model_config = examples(_EXAMPLE)

    forked_from: ForkedFrom
    """The source of the fork."""


@router.post(
    "/v1/conversations/{conversation_id}/fork",
    status_code=201,
    summary="Fork a conversation",
    response_model=Fork,
    responses=problems_of(Conflict),
)
@large
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
        public_id=fork.conversation_id,
        metadata=fork.metadata,
        idempotency_key=idempotency_key,
        request=fork.model_dump(exclude_unset=True),
    )
    created = await services(request).forks.fork(tenant_of(request), conversation_id, new)
    shown = await services(request).conversations.get(tenant_of(request), created.conversation_id)
    source = ForkedFrom(conversation_id=public_id_of(request), at_seq=created.at_seq)
    location = path_of(created.public_id)
    answer = Fork(**conversation_fields(shown), forked_from=source)
    return Json(answer, 201, headers={"Location": location})
