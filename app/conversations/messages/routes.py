"""`/v1/conversations/{id}/messages`: appends, transcripts, pins."""

from __future__ import annotations

import logging
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response

from app.common.errors import Conflict, NotFound, UnpairedToolResult
from app.common.pages import Page
from app.conversations.conversation import Conversation
from app.conversations.messages.draft import is_message_id
from app.conversations.messages.redactions import Redacted
from app.conversations.messages.row import Append, StoredMessage
from app.conversations.messages.schemas import (
    AppendAnswer,
    MessagePage,
    MessagesAppend,
    Pinned,
    RedactionRequest,
    ShownMessage,
)
from app.conversations.messages.stored_results import Content, Original
from app.http import cursors
from app.http.bodies import Json, long_json, require_small_messages
from app.http.dependencies import (
    ConversationPath,
    Cursor,
    IdempotencyKey,
    Limit,
    by_caller,
    caller_of,
    page_bound,
    path_of,
    public_id_of,
    services,
    tenant_of,
)
from app.http.errors import problems_of
from app.http.fields import MAX_SEQ, NoFields
from app.http.routing import WireRoute, direct, paged
from app.prompt.agent_tools import MAX_QUERY_CHARS

_log = logging.getLogger("app.audit")
router = APIRouter(route_class=WireRoute, tags=["messages"])

MessagePath = Annotated[
    str, Path(description="Id of the message.", examples=["0199a1b2-5d6e-7f80-9a1b-2c3d4e5f6071"])
]
Scope = Annotated[
    Literal["message", "turn"],
    Query(description="`turn`: all messages from its user message up to the next one."),
]
Contents = Annotated[
    Literal["view", "full"] | None,
    Query(
        description="The preview of offloaded results or all of them; by default all up to 64 KiB."
    ),
]

Words = Annotated[
    str | None,
    Query(
        max_length=MAX_QUERY_CHARS,
        description="Only messages with all of these words, including compacted messages."
        " Case and accents are ignored. A word of three letters or more also matches longer"
        " words that begin with it, and `words` matches `app/words.py` and `readWords`. The"
        " search reads texts, tool names, arguments and results as the log stores them.",
        examples=["trip Bergen"],
    ),
]

_PATH = "/v1/conversations/{conversation_id}/messages"
_MESSAGE = f"{_PATH}/{{message_id:path}}"


@router.post(
    _PATH,
    status_code=201,
    summary="Append messages",
    response_model=AppendAnswer,
    responses=problems_of(Conflict, UnpairedToolResult),
)
@direct
async def append_messages(
    request: Request,
    conversation_id: ConversationPath,
    body: MessagesAppend,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Append all messages of a batch, or none.

    System messages that begin the log become a section of the conversation, `system_section` of
    the answer; later ones are messages.

    A message whose `id` is stored with the same content is skipped; with other content it is a
    `409`. A tool result must answer an open call of the log, otherwise `409`
    `UNPAIRED_TOOL_RESULT`. If `expected_seq` is not the newest seq, `409` returns the newest one.
    """
    await require_small_messages(request, body.messages)
    found, tenant_id = services(request), tenant_of(request)
    batch = Append(body.messages, body.format, body.expected_seq, idempotency_key)
    appended = await found.log.append(tenant_id, conversation_id, batch)
    location = f"{path_of(public_id_of(request))}/messages"
    return Json(appended, 201, headers={"Location": location})


@router.get(_PATH, summary="Read the transcript", response_model=MessagePage)
@paged
async def list_messages(
    request: Request,
    conversation_id: ConversationPath,
    limit: Limit = 50,
    cursor: Cursor = None,
    order: Annotated[
        Literal["asc", "desc"],
        Query(description="Order by seq; a cursor keeps the order of its page."),
    ] = "asc",
    after_seq: Annotated[
        int, Query(ge=0, le=MAX_SEQ, description="Only messages after this seq.")
    ] = 0,
    before_seq: Annotated[
        int, Query(ge=0, le=MAX_SEQ, description="Only messages before this seq.")
    ] = MAX_SEQ,
    q: Words = None,
    content: Contents = None,
) -> Response:
    """Return the messages as they were sent, each with its seq, turn, token count and time.

    Compaction does not change the log; `visibility` is how the context shows each message now.
    Repeat `after_seq`, `before_seq` and `q` with a cursor. A tool result has an `output_ref`; with
    `content_truncated` the message has only its preview. A page of large messages ends before
    `limit`, with a `next_cursor`.
    """
    page_order: str = order
    if cursor:
        page_order, seq = cursors.decode_message(cursor)
        if page_order == "asc":
            after_seq = max(after_seq, seq)
        else:
            before_seq = min(before_seq, seq)
    app_services = services(request)
    read = app_services.transcripts.page
    if q is not None:
        read = partial(app_services.search.page, query=q)
    conversation, page = await read(
        tenant_of(request),
        conversation_id,
        after_seq=after_seq,
        before_seq=before_seq,
        order=page_order,
        limit=limit,
        bound=page_bound(request),
    )
    return await transcript(request, conversation, page, page_order, content)


@router.put(f"{_MESSAGE}/pin", summary="Pin a message")
async def pin_message(
    request: Request,
    conversation_id: ConversationPath,
    message_id: MessagePath,
    scope: Scope = "message",
    body: NoFields | None = None,
) -> Pinned:
    """Keep a message in the context verbatim, with its call group.

    It is never summarised, cleared or dropped. A hidden message is shown again at its position.
    `422` when pins would take more than half of the tokens that the context window leaves for
    history.
    """
    return await _pinned(request, conversation_id, message_id, scope, pinned=True)


@router.delete(f"{_MESSAGE}/pin", summary="Unpin a message")
async def unpin_message(
    request: Request,
    conversation_id: ConversationPath,
    message_id: MessagePath,
    scope: Scope = "message",
) -> Pinned:
    """Unpin a message; the next compaction may hide or clear it."""
    return await _pinned(request, conversation_id, message_id, scope, pinned=False)


async def _pinned(
    request: Request, conversation_id: str, message_id: str, scope: str, *, pinned: bool
) -> Pinned:
    key = message_id_from(message_id)
    seqs = await services(request).transcripts.pin(
        tenant_of(request), conversation_id, key, whole_turn=scope == "turn", pinned=pinned
    )
    return Pinned(seqs=seqs)


def message_id_from(text: str) -> str:
    """Return the message id of a path; raises NotFound for an invalid id."""
    if not is_message_id(text):
        raise NotFound.message(text)
    return text


async def transcript(
    request: Request,
    conversation: Conversation,
    messages: Page[StoredMessage],
    order: str,
    content: str | None,
) -> Response:
    """Return a page of messages of one conversation, as many as its maximum size allows."""
    data, size = await _shown(request, conversation, messages, content)
    next_cursor = None
    if messages.has_more or len(messages) > len(data):
        next_cursor = cursors.encode("messages", order, data[-1]["seq"])
    return await long_json({"data": data, "next_cursor": next_cursor}, size)


@router.get(_MESSAGE, summary="Read a message", response_model=ShownMessage)
@paged
async def get_message(
    request: Request,
    conversation_id: ConversationPath,
    message_id: MessagePath,
    content: Contents = None,
) -> Response:
    """Return one message by its id, as the transcript shows it."""
    conversation, messages = await services(request).transcripts.one(
        tenant_of(request), conversation_id, message_id_from(message_id)
    )
    (data,), size = await _shown(request, conversation, messages, content)
    return await long_json(data, size)


async def _shown(
    request: Request,
    conversation: Conversation,
    messages: Page[StoredMessage],
    content: str | None,
) -> tuple[list[dict[str, Any]], int]:
    """Return the messages as they are shown, and their approximate size."""
    shown = await services(request).transcripts.with_visibility(
        tenant_of(request),
        conversation,
        messages,
        Content(content or Content.AUTO),
        page_bound(request),
    )
    data = [_shown_message(conversation, original) for original in shown]
    return data, sum(original.size for original in shown)


def _shown_message(conversation: Conversation, original: Original) -> dict[str, Any]:
    """Return the original message with the service's fields; fields they hide are in `given`."""
    message, body = original.message, original.raw_message
    own = {
        "id": message.id,
        "seq": message.seq,
        "turn": message.turn,
        "role": message.role,
        "token_count": message.token_count,
        "format": message.format,
        "created_at": message.created_at,
        "redacted_at": original.redacted_at,
        "conversation_id": conversation.public_id,
        "agent_id": conversation.agent_id,
        "output_ref": message.output_ref,
        "content_truncated": original.is_truncated,
        "content_collected": original.is_collected,
        "pinned": original.pinned,
        "visibility": original.visibility,
    }
    hidden = {name: body[name] for name in own if name in body and body[name] != own[name]}
    return {**body, **own, "given": hidden or None}


@router.post(f"{_MESSAGE}/redact", summary="Redact a message")
async def redact_message(
    request: Request,
    conversation_id: ConversationPath,
    message_id: MessagePath,
    body: RedactionRequest | None = None,
) -> Redacted:
    """Replace the content of a message by a tombstone, for good, also in forks and snapshots.

    Its role, position, token count and the ids and names of its tool calls stay. Blobs that only
    this message has, and summaries that used it, are deleted; a compaction makes new ones. The next
    build begins an epoch with the reason `redacted`, and earlier builds are `410`. A repeated
    request returns the first record.
    """
    redacted = await services(request).redactions.redact(
        tenant_of(request),
        conversation_id,
        message_id_from(message_id),
        body.reason if body is not None else None,
        caller_of(request).key_id,
    )
    if redacted.conversations:
        shown = {"seq": redacted.seq, "conversations": redacted.conversations}
        data = by_caller(request, conversation_id=conversation_id, **shown)
        _log.info("message_redacted", extra={"data": data})
    return redacted
