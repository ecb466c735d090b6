"""`/v1/conversations/{id}/messages`: appending to the log and reading it back (A1, A2, A6)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response

from app.api import cursors
from app.api.deps import (
    TENANT,
    ConversationPath,
    Cursor,
    IdempotencyKey,
    Limit,
    conversation_id_from,
    services,
)
from app.api.errors import problems_of
from app.api.routing import DirectRoute, WireRoute
from app.api.schemas.fields import MOST_SEQ
from app.api.schemas.messages import Appended, MessagePage, MessagesAppend
from app.api.wire import Json, MalformedJson
from app.domain import jsontext
from app.domain.errors import (
    Conflict,
    NotFound,
    PayloadTooLarge,
    ServiceUnavailable,
    UnpairedToolResult,
    ValidationError,
)
from app.domain.records import Conversation, StoredMessage
from app.services.log import Append

router = APIRouter(route_class=WireRoute, tags=["messages"])
hot_router = APIRouter(route_class=DirectRoute, tags=["messages"])

_PATH = "/v1/conversations/{conversation_id}/messages"


@hot_router.post(
    _PATH,
    status_code=201,
    operation_id="append_messages",
    summary="Append messages",
    response_model=Appended,
    responses=problems_of(
        NotFound,
        Conflict,
        UnpairedToolResult,
        ValidationError,
        MalformedJson,
        PayloadTooLarge,
        ServiceUnavailable,
    ),
)
async def append_messages(
    request: Request,
    conversation_id: ConversationPath,
    body: MessagesAppend,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Append a batch of user, assistant and tool messages: all of it or nothing.

    A message `id` that is stored with the same content is a no-op, with other content `409`.
    A tool result must answer an open call of the log, else `409` `UNPAIRED_TOOL_RESULT`.
    `expected_seq` gives `409` with the current head when another writer was first.
    """
    known_id = conversation_id_from(conversation_id)
    batch = Append(body.messages, body.format, body.expected_seq, idempotency_key)
    appended = await services(request).log.append(TENANT, known_id, batch)
    return Json(appended, 201, headers={"Location": f"/v1/conversations/{known_id}/messages"})


@router.get(
    _PATH,
    operation_id="list_messages",
    summary="Read the transcript",
    response_model=MessagePage,
    responses=problems_of(NotFound, ValidationError, ServiceUnavailable),
)
async def list_messages(
    request: Request,
    conversation_id: ConversationPath,
    limit: Limit = 50,
    cursor: Cursor = None,
    order: Annotated[
        Literal["asc", "desc"], Query(description="By seq; a cursor keeps the order of its page.")
    ] = "asc",
    after_seq: Annotated[
        int, Query(ge=0, le=MOST_SEQ, description="Only messages after this seq.")
    ] = 0,
    before_seq: Annotated[
        int, Query(ge=0, le=MOST_SEQ, description="Only messages before this seq.")
    ] = MOST_SEQ,
) -> Response:
    """Return the messages as they came, each with its seq, turn, token count and time.

    The log is never rewritten, whatever is compacted. Send `after_seq` and `before_seq` along
    with a cursor.
    """
    known_id = conversation_id_from(conversation_id)
    given_order: str = order
    if cursor:
        given_order, seq = cursors.decode_seq(cursor)
        if given_order == "asc":
            after_seq = max(after_seq, seq)
        else:
            before_seq = min(before_seq, seq)
    conversation, page = await services(request).log.page(
        TENANT,
        known_id,
        after_seq=after_seq,
        before_seq=before_seq,
        order=given_order,
        limit=limit + 1,
    )
    more = len(page) > limit
    following = cursors.encode("messages", given_order, page[limit - 1].seq) if more else None
    items = [_item(message, conversation) for message in page[:limit]]
    return Json({"data": items, "next_cursor": following})


def _item(message: StoredMessage, conversation: Conversation) -> dict[str, Any]:
    """Return the message as it came, with the service's fields; those it hides are in `given`."""
    body: dict[str, Any] = jsontext.loads(message.body)
    own = {
        "id": message.id,
        "seq": message.seq,
        "turn": message.turn,
        "role": message.role,
        "token_count": message.token_count,
        "format": message.format,
        "created_at": message.created_at,
        "conversation_id": conversation.conversation_id,
        "agent_id": conversation.agent_id,
    }
    hidden = {name: body[name] for name in own if name in body and body[name] != own[name]}
    return {**body, **own, "given": hidden or None}
