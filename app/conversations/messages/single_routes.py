"""`/v1/conversations/{id}/messages/{message_id}`: one message of a conversation."""

from __future__ import annotations

import logging

from fastapi import APIRouter, Request, Response

from app.conversations.messages.routes import (
    Contents,
    MessagePath,
    message_id_from,
    shown_message,
    size_of,
)
from app.conversations.messages.schemas import Redacted, RedactionRequest, ShownMessage
from app.conversations.messages.stored_results import Content
from app.http.bodies import long_json
from app.http.dependencies import (
    ConversationPath,
    by_caller,
    caller_of,
    page_bound,
    services,
    tenant_of,
)
from app.http.routing import WireRoute, paged

_log = logging.getLogger("app.audit")
router = APIRouter(route_class=WireRoute, tags=["messages"])

_PATH = "/v1/conversations/{conversation_id}/messages/{message_id:path}"


@router.get(_PATH, summary="Read a message", response_model=ShownMessage)
@paged
async def get_message(
    request: Request,
    conversation_id: ConversationPath,
    message_id: MessagePath,
    content: Contents = None,
) -> Response:
    """Return one message by its id, as the transcript shows it."""
    transcripts = services(request).transcripts
    found = await transcripts.one(tenant_of(request), conversation_id, message_id_from(message_id))
    (shown,) = await transcripts.with_visibility(
        tenant_of(request), [found], Content(content or Content.AUTO), page_bound(request)
    )
    return await long_json(shown_message(shown), size_of([shown]))


@router.post(f"{_PATH}/redact", summary="Redact a message")
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
    done = await services(request).redactions.redact(
        tenant_of(request),
        conversation_id,
        message_id_from(message_id),
        body.reason if body is not None else None,
        caller_of(request).key_id,
    )
    record = done.redaction
    if done.conversations:
        redacted = {"seq": record.seq, "conversations": done.conversations}
        data = by_caller(request, conversation_id=conversation_id, **redacted)
        _log.info("message_redacted", extra={"data": data})
    return Redacted.of(record, id=record.message_id, conversations=done.conversations)
