"""`/v1/conversations/{id}/export` and `/v1/conversations/import`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from functools import cache
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from pydantic import TypeAdapter
from starlette.responses import StreamingResponse

from app.common.errors import Conflict
from app.common.pages import BATCH_BYTES, Bound
from app.conversations.routes import conversation_fields
from app.conversations.schemas import CONVERSATION, ConversationCreate, ShownConversation
from app.http.bodies import Json, require_uncoded
from app.http.conversation_ids import path_of, public_id_of
from app.http.dependencies import ConversationPath, IdempotencyKey, services, tenant_of
from app.http.errors import problems_of
from app.http.fields import AgentId, ConversationId, ResponseSchema, examples
from app.http.request_errors import validated
from app.http.routing import WireRoute, large
from app.snapshots.export_format import MEDIA_TYPE
from app.snapshots.imports_service import NewImport

router = APIRouter(route_class=WireRoute, tags=["conversations"])

_EXAMPLE = (
    '{"type":"export","format":"context-service.conversation","version":1,'
    '"conversation_id":"0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b",'
    '"created_at":"2026-01-05T09:30:00.123456+00:00",'
    '"exported_at":"2026-01-06T09:30:00.123456+00:00"}\n'
)
_RAW: dict[str, Any] = {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}
_LINES: dict[str, Any] = {
    MEDIA_TYPE: {
        "schema": {
            "type": "string",
            "format": "binary",
            "description": "One JSON object on each line.",
        },
        "example": _EXAMPLE,
    }
}


class ImportedContent(ResponseSchema):
    """What was imported."""

    messages: int
    """Messages of the log."""
    blobs: int
    """Tool outputs, with collected ones."""


class ImportedConversation(ShownConversation):
    """A conversation that was imported."""

    model_config = examples({**CONVERSATION, "imported": {"messages": 12, "blobs": 1}})

    imported: ImportedContent
    """What was imported."""


@router.get(
    "/v1/conversations/{conversation_id}/export",
    summary="Export a conversation",
    response_class=StreamingResponse,
    responses={200: {"description": "The export.", "content": _LINES}},
)
@large
async def export_conversation(request: Request, conversation_id: ConversationPath) -> Response:
    """Stream the conversation as lines of JSON, for `import_conversation` or a backup.

    It has the log as it is stored, the tool outputs, settings with their versions, pins,
    compactions and the active window. The last line has the type `end`, with the number of lines
    and a SHA-256: without it, the export is cut off.
    """
    export = services(request).exports.export(
        tenant_of(request), conversation_id, Bound(BATCH_BYTES)
    )
    # Read before the response starts, so that an unknown conversation is a 404.
    first = await anext(export)
    name = quote(public_id_of(request), safe="")
    headers = {
        "Content-Disposition": f"attachment; filename*=UTF-8''{name}.ndjson",
        "X-Content-Type-Options": "nosniff",
    }
    return StreamingResponse(_lines(first, export), headers=headers, media_type=MEDIA_TYPE)


@router.post(
    "/v1/conversations/import",
    status_code=201,
    summary="Import a conversation",
    response_model=ImportedConversation,
    responses=problems_of(Conflict),
    openapi_extra={"requestBody": {"required": True, "content": _RAW}},
)
@large
async def import_conversation(
    request: Request,
    conversation_id: Annotated[
        ConversationId | None, Query(description="Id of the new conversation.")
    ] = None,
    agent_id: Annotated[
        AgentId | None, Query(description="Agent of the new conversation; the export's by default.")
    ] = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Create a conversation from an export, which is the raw body and may have any length.

    The import is complete or leaves nothing. An error names the line. `409` if the id is used;
    `422` if the agent does not exist.
    """
    require_uncoded(request)
    new = NewImport(conversation_id, agent_id, idempotency_key)
    async with aclosing(request.stream()) as pieces:
        imported = await services(request).imports.add(tenant_of(request), pieces, new)
    shown = await services(request).conversations.get(tenant_of(request), imported.conversation_id)
    counts = ImportedContent.of(imported)
    location = path_of(imported.public_id)
    answer = ImportedConversation(**conversation_fields(shown), imported=counts)
    return Json(answer, 201, headers={"Location": location})


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raise ValidationError unless a conversation could be created with these settings."""
    validated(_creation(), dict(settings))


@cache
def _creation() -> TypeAdapter[Any]:
    return TypeAdapter(ConversationCreate)


async def _lines(first: bytes, export: AsyncGenerator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async with aclosing(export):
        async for lines in export:
            yield lines
