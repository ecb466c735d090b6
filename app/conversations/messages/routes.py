"""`/v1/conversations/{id}/messages`: appends, transcripts, pins."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import ConfigDict, Field

from app.blobs.chunks import ToolOutputRef
from app.common.answer_schemas import AnyObject
from app.common.errors import Conflict, NotFound, UnpairedToolResult
from app.common.pages import Page
from app.common.schema_errors import NAME_PATTERN
from app.conversations.conversation import Conversation
from app.conversations.messages.draft import is_message_id
from app.conversations.messages.redactions import Redacted
from app.conversations.messages.row import RawBatch, StoredMessage
from app.conversations.messages.service import AppendResult
from app.conversations.messages.stored_results import Content
from app.conversations.messages.transcripts import Visibility
from app.formats.message import FormatName, Role
from app.http import cursors
from app.http.bodies import Json, long_json, require_small_messages
from app.http.errors import error_answers
from app.http.fields import (
    MAX_SEQ,
    Format,
    MessageObject,
    NoFields,
    RequestSchema,
    ResponseSchema,
    examples,
)
from app.http.routing import (
    ConversationPath,
    Cursor,
    IdempotencyKey,
    Limit,
    WireRoute,
    by_caller,
    caller_of,
    direct,
    page_bound,
    paged,
    path_of,
    public_id_of,
    services,
    tenant_of,
)
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


class MessagesAppend(RequestSchema):
    """A batch to append: all messages or none."""

    model_config = examples(
        {
            "messages": [
                {"role": "user", "content": "What is the weather in Bergen?"},
                {"role": "assistant", "content": "It rains, 8 degrees."},
            ],
            "expected_seq": 0,
        }
    )

    messages: list[MessageObject]
    """1 to 1000 messages in `format`: chat messages, Responses items, Anthropic messages, Gemini
    contents or steps of Gemini Interactions. Consecutive items or steps of the model become one
    message, `{"role": "assistant", "output": [items]}`. A message with several tool results
    becomes several messages. A Gemini call or response without an id has its name as id, the nth
    of a name in its content `name#n`."""
    format: Format = FormatName.OPENAI_CHAT
    expected_seq: int | None = Field(default=None, ge=0, le=MAX_SEQ)
    """409 unless this is the newest seq of the log, or all messages are stored already."""


class ShownMessage(ResponseSchema):
    """A message as it was sent, with fields of the service."""

    model_config = ConfigDict(extra="allow")

    id: str
    """Its id in the conversation."""
    seq: int
    """Its position, from 1 without gaps."""
    turn: int
    """Number of user messages up to it."""
    role: Role
    """Role of the message."""
    token_count: int
    """Its tokens, including reasoning."""
    format: FormatName
    """The format in which it was sent."""
    created_at: datetime
    """When it was received."""
    redacted_at: datetime | None
    """When its content was replaced by a tombstone; null for other messages."""
    conversation_id: str
    """The conversation it belongs to."""
    agent_id: str | None
    """The agent of that conversation."""
    output_ref: ToolOutputRef | None
    """Reference to read a tool result by; null for other messages."""
    content_truncated: bool
    """Whether only the preview of a result is returned."""
    content_collected: bool
    """Whether a collection deleted the whole result."""
    pinned: bool
    """Whether it is pinned, so that no compaction hides it."""
    visibility: Visibility
    """How the current context shows it."""
    given: AnyObject | None
    """Fields of the original message that fields of the service replace; null without any."""


class MessagePage(cursors.Page[ShownMessage]):
    """Messages in the requested order."""

    searched_through_seq: int | None
    """With `query`: the seq through which messages were searched; null if all were. Later ones are
    indexed within a minute."""


class Pinned(ResponseSchema):
    """The messages that were pinned or unpinned."""

    seqs: list[int]
    """Seqs of the message with its call group, or of its turn; ascending."""


class RedactionRequest(RequestSchema):
    """Why a message is redacted."""

    model_config = examples({"reason": "The user withdrew consent"})

    reason: str | None = Field(default=None, max_length=500, pattern=NAME_PATTERN)
    """Kept in the record and in the event; it should quote no content."""


_PATH = "/v1/conversations/{conversation_id}/messages"
_MESSAGE = f"{_PATH}/{{message_id:path}}"


@router.post(
    _PATH,
    status_code=201,
    summary="Append messages",
    response_model=AppendResult,
    responses=error_answers(Conflict, UnpairedToolResult),
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
    batch = RawBatch(body.messages, body.format, body.expected_seq, idempotency_key)
    appended = (await found.log.append(tenant_id, conversation_id, batch)).answer
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
    query: Words = None,
    content: Contents = None,
) -> Response:
    """Return the messages as they were sent, each with its seq, turn, token count and time.

    Compaction does not change the log; `visibility` is how the context shows each message now.
    Repeat `after_seq`, `before_seq` and `query` with a cursor. A tool result has an `output_ref`;
    with `content_truncated` the message has only its preview. A page of large messages ends before
    `limit`, with a `next_cursor`.
    """
    page_order: str = order
    if cursor:
        page_order, seq = cursors.decode(cursor, "messages")
        if page_order == "asc":
            after_seq = max(after_seq, seq)
        else:
            before_seq = min(before_seq, seq)
    where: dict[str, Any] = {"after_seq": after_seq, "before_seq": before_seq, "order": page_order}
    where |= {"limit": limit, "bound": page_bound(request)}
    tenant_id, through = tenant_of(request), None
    if query is None:
        async with services(request).database.session() as session:
            conversation = await session.conversations.get(tenant_id, conversation_id)
            page = await session.log.page(conversation_id, **where)
    else:
        search = services(request).search.page
        conversation, page, through = await search(tenant_id, conversation_id, query, **where)
    return await transcript(request, conversation, page, page_order, content, through)


@router.put(f"{_MESSAGE}/pin", summary="Pin a message")
async def pin_message(
    request: Request,
    conversation_id: ConversationPath,
    message_id: MessagePath,
    scope: Scope = "message",
    body: NoFields | None = None,
) -> Pinned:
    """Keep a message in the context, with its call group.

    It is never summarised, cleared or dropped; only texts and media too large for the payload are
    cut. A hidden message is shown again at its position. `422` when pins would take more than half
    of the tokens that the context window leaves for history.
    """
    return await _pinned(request, conversation_id, message_id, scope, pinned=True)


@router.delete(f"{_MESSAGE}/pin", summary="Unpin a message")
async def unpin_message(
    request: Request,
    conversation_id: ConversationPath,
    message_id: MessagePath,
    scope: Scope = "message",
) -> Pinned:
    """Unpin a message; the next compaction, or `sliding_window`, may hide or clear it."""
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
    through: int | None = None,
) -> Response:
    """Return a page of messages of one conversation, as many as its maximum size allows."""
    data, size = await _shown(request, conversation, messages, content)
    next_cursor = None
    if messages.has_more or len(messages) > len(data):
        next_cursor = cursors.encode("messages", order, data[-1]["seq"])
    page = {"data": data, "next_cursor": next_cursor, "searched_through_seq": through}
    return await long_json(page, size)


async def _shown(
    request: Request, conversation: Conversation, messages: Page[StoredMessage], content: str | None
) -> tuple[list[dict[str, Any]], int]:
    tenant_id, how = tenant_of(request), Content(content or Content.AUTO)
    transcripts = services(request).transcripts
    return await transcripts.shown(tenant_id, conversation, messages, how, page_bound(request))


@router.get(_MESSAGE, summary="Read a message", response_model=ShownMessage)
@paged
async def get_message(
    request: Request,
    conversation_id: ConversationPath,
    message_id: MessagePath,
    content: Contents = None,
) -> Response:
    """Return one message by its id, as the transcript shows it."""
    async with services(request).database.session() as session:
        conversation = await session.conversations.get(tenant_of(request), conversation_id)
        messages = await session.log.by_ids(conversation_id, [message_id_from(message_id)])
    if not messages:
        raise NotFound.message(message_id)
    (data,), size = await _shown(request, conversation, messages, content)
    return await long_json(data, size)


@router.post(f"{_MESSAGE}/redact", summary="Redact a message")
async def redact_message(
    request: Request,
    conversation_id: ConversationPath,
    message_id: MessagePath,
    body: RedactionRequest | None = None,
) -> Redacted:
    """Replace the content of a message by a tombstone, for good, also in forks and snapshots.

    Its role, position, token count without reasoning, and the ids and names of its tool calls
    stay. Blobs that only this message has, and summaries that used it, are deleted; a compaction
    makes new ones. The next build begins an epoch with the reason `redacted`, and earlier builds
    are `410`. A repeated request returns the first record.
    """
    redacted = await services(request).redactions.redact(
        tenant_of(request),
        conversation_id,
        message_id_from(message_id),
        body.reason if body is not None else None,
        caller_of(request).key_id,
    )
    if redacted.conversation_count:
        shown = {"seq": redacted.seq, "conversation_count": redacted.conversation_count}
        data = by_caller(request, conversation_id=conversation_id, **shown)
        _log.info("message_redacted", extra={"data": data})
    return redacted
