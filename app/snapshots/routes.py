"""`/v1/snapshots`, and forks, exports and imports of conversations."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict
from datetime import UTC
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import AfterValidator, Field
from starlette.responses import StreamingResponse

from app.common.errors import Conflict, Gone
from app.conversations.messages.stored_results import Content
from app.conversations.routes import shown_conversation
from app.conversations.schemas import ShownConversation
from app.http import cursors
from app.http.bodies import Json, begun, dump, require_small_messages, require_uncoded
from app.http.cursors import Deleted
from app.http.errors import error_answers
from app.http.fields import (
    MAX_SEQ,
    UUID,
    AgentId,
    ConversationId,
    Metadata,
    RequestSchema,
    examples,
)
from app.http.routing import (
    AgentPath,
    ConversationPath,
    Cursor,
    Limit,
    WireRoute,
    by_caller,
    large,
    page_bound,
    paged,
    path_of,
    public_id_of,
    services,
    tenant_of,
)
from app.snapshots.restores import RestoredSnapshot
from app.snapshots.schemas import EXAMPLE_ID, Description, Snapshot, SnapshotFile, SnapshotPage
from app.snapshots.service import no_snapshot

_log = logging.getLogger("app.audit")
router = APIRouter(route_class=WireRoute, tags=["snapshots"])
copies_router = APIRouter(route_class=WireRoute, tags=["conversations"])

_NDJSON = "application/x-ndjson"
_LINES: dict[str, Any] = {
    _NDJSON: {
        "schema": {"type": "string", "format": "binary"},
        "example": '{"type":"export","format":"context-service.conversation","version":1}\n',
    }
}
_PATH = "/v1/snapshots"
_OF_AGENT = "/v1/agents/{agent_id}/snapshots"
_OF_CONVERSATION = "/v1/conversations/{conversation_id}/snapshots"


def _snapshot_id(text: str) -> str:
    """Return the normalised id of a path; raises NotFound for text that is not a UUID."""
    if not UUID.fullmatch(text):
        raise no_snapshot(repr(text))
    return text.lower()


SnapshotPath = Annotated[
    str,
    AfterValidator(_snapshot_id),
    Path(description="Id of the snapshot.", examples=[EXAMPLE_ID]),
]


class SnapshotSave(RequestSchema):
    """A snapshot to save."""

    model_config = examples({"description": "Working on auth refactor"})

    description: Description = None
    """The purpose of the snapshot."""


class SnapshotRestore(RequestSchema):
    """The target of a restore."""

    model_config = examples({}, {"conversation_id": EXAMPLE_ID})

    conversation_id: ConversationId | None = None
    """Another conversation to copy the messages to; the source conversations by default."""


class ForkRequest(RequestSchema):
    """A fork to create."""

    model_config = examples({"through_seq": 12})

    through_seq: int | None = Field(default=None, ge=0, le=MAX_SEQ)
    """Seq of the last message of the fork; the head by default, 0 for an empty log."""
    conversation_id: ConversationId | None = None
    metadata: Metadata | None = None
    """Metadata that replaces that of the source conversation."""


@router.post(_OF_AGENT, status_code=201, summary="Save an agent's windows", response_model=Snapshot)
async def save_agent_snapshot(
    request: Request, agent_id: AgentPath, body: SnapshotSave | None = None
) -> Response:
    """Save the active windows of all conversations of the agent, with a summary.

    Nothing is cleared. If the model fails, the snapshot is saved without a generated summary.
    `422` if they are empty.
    """
    return await _saved(request, body, agent_id=agent_id)


@router.post(
    _OF_CONVERSATION,
    status_code=201,
    summary="Save a conversation's active window",
    response_model=Snapshot,
)
async def save_conversation_snapshot(
    request: Request, conversation_id: ConversationPath, body: SnapshotSave | None = None
) -> Response:
    """Save the active window of the conversation, with a summary.

    Nothing is cleared. If the model fails, the snapshot is saved without a generated summary.
    `422` if it is empty.
    """
    return await _saved(request, body, conversation_id=conversation_id)


async def _saved(request: Request, body: SnapshotSave | None, **of: str) -> Response:
    description = body.description if body else None
    return _created(await services(request).snapshots.save(tenant_of(request), description, **of))


@router.get(_PATH, summary="List snapshots")
@paged
async def list_snapshots(
    request: Request,
    agent_id: Annotated[
        AgentId | None, Query(description="Only snapshots of this agent and its conversations.")
    ] = None,
    conversation_id: Annotated[
        ConversationId | None,
        Query(description="Only snapshots with messages of this conversation."),
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> SnapshotPage:
    """Return snapshots without their messages, newest first."""
    before = cursors.decode(cursor, "snapshots")
    page = await services(request).snapshots.page(
        tenant_of(request),
        limit,
        before,
        page_bound(request),
        agent_id=agent_id,
        public_id=conversation_id,
    )
    return SnapshotPage.up_to("snapshots", page, "created_at", "snapshot_id")


@router.post(
    _PATH,
    status_code=201,
    summary="Import a snapshot",
    response_model=Snapshot,
    responses=error_answers(Conflict),
)
@large
async def import_snapshot(request: Request, body: SnapshotFile) -> Response:
    """Store a downloaded snapshot with its conversations.

    Its messages are validated like those of an append. They are appended to new conversations,
    which have the ids of the file's unless those are used; a conversation that has all of them
    already is taken as it is. The snapshot keeps its `snapshot_id`: `409` if that id is used.
    """
    await require_small_messages(request, body.messages)
    return _created(await services(request).restores.add_import(tenant_of(request), body))


@router.get(
    f"{_PATH}/{{snapshot_id}}",
    summary="Read or download a snapshot",
    response_model=SnapshotFile,
    responses=error_answers(Gone),
)
@large
async def get_snapshot(
    request: Request,
    snapshot_id: SnapshotPath,
    download: Annotated[
        bool, Query(description="true: as a file, with the full content of large tool results.")
    ] = False,
) -> Response:
    """Stream a snapshot with its original messages.

    Tool results up to 64 KiB are complete, larger ones only in a download; `content_truncated` is
    true for a message with a preview instead. An interrupted response is not valid JSON.
    """
    content = Content.FULL if download else Content.AUTO
    service = services(request)
    snapshot, parts = await service.snapshots.find(tenant_of(request), snapshot_id)
    pages = service.restores.saved(snapshot, parts, content)
    # Windows allows no colons in file names.
    name = f"{snapshot.created_at.astimezone(UTC):%Y%m%dT%H%M%S.%fZ}_{snapshot_id}.json"
    disposition = f'{"attachment" if download else "inline"}; filename="{name}"'
    return await _streamed(_json_pieces(snapshot, pages), disposition, "application/json")


@router.delete(f"{_PATH}/{{snapshot_id}}", summary="Delete a snapshot")
async def delete_snapshot(request: Request, snapshot_id: SnapshotPath) -> Deleted:
    """Delete a snapshot and return the numbers of rows deleted. The logs are unchanged."""
    deleted = await services(request).snapshots.remove(tenant_of(request), snapshot_id)
    data = by_caller(request, snapshot_id=snapshot_id, rows=deleted)
    _log.info("snapshot_deleted", extra={"data": data})
    return Deleted(deleted=deleted)


@router.post(
    f"{_PATH}/{{snapshot_id}}/restore",
    summary="Restore a snapshot",
    responses=error_answers(Conflict, Gone),
)
@large
async def restore_snapshot(
    request: Request, snapshot_id: SnapshotPath, body: SnapshotRestore | None = None
) -> RestoredSnapshot:
    """Restore the messages into their own active windows, or copy them to another conversation.

    Messages that are active are skipped, so that a second restore changes nothing. Copies have new
    ids and name their source in `restored_from`. `422` if a snapshot of several conversations
    would be restored into one.
    """
    target_id = body.conversation_id if body is not None else None
    tenant_id, service = tenant_of(request), services(request)
    _, parts = await service.snapshots.find(tenant_id, snapshot_id)
    return await service.restores.restore(tenant_id, snapshot_id, parts, target_id)


async def _streamed(
    pieces: AsyncGenerator[bytes], disposition: str, media_type: str
) -> StreamingResponse:
    headers = {"Content-Disposition": disposition, "X-Content-Type-Options": "nosniff"}
    return StreamingResponse(await begun(pieces), headers=headers, media_type=media_type)


async def _json_pieces(snapshot: Snapshot, pages: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Yield a snapshot as JSON."""
    before = dump(asdict(snapshot))[:-1] + b',"messages":['
    async with aclosing(pages):
        async for page in pages:
            yield before + page
            before = b","
    yield b"]}"


def _created(saved: Snapshot) -> Response:
    return Json(saved, 201, headers={"Location": f"{_PATH}/{saved.snapshot_id}"})


@copies_router.post(
    "/v1/conversations/{conversation_id}/fork",
    status_code=201,
    summary="Fork a conversation",
    response_model=ShownConversation,
    responses=error_answers(Conflict),
)
@large
async def fork_conversation(
    request: Request, conversation_id: ConversationPath, body: ForkRequest | None = None
) -> Response:
    """Create a conversation as a copy of this one up to a message.

    The fork has the log with its tool outputs, settings, pins and compactions; either conversation
    can be deleted without the other. Calls that are open at that message are closed: a result for
    one is a `409`, and payloads contain a placeholder result. If the source has none of the copied
    messages in its active window any more, the fork has all of them in its own. `409` if the id is
    used, `422` for a seq beyond the head.
    """
    new = body if body is not None else ForkRequest()
    key = await services(request).forks.fork(
        tenant_of(request), conversation_id, new.through_seq, new.conversation_id, new.metadata
    )
    return await _created_conversation(request, key)


@copies_router.get(
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
    export = services(request).exports.export(tenant_of(request), conversation_id)
    name = quote(public_id_of(request), safe="")
    return await _streamed(export, f"attachment; filename*=UTF-8''{name}.ndjson", _NDJSON)


@copies_router.post(
    "/v1/conversations/import",
    status_code=201,
    summary="Import a conversation",
    response_model=ShownConversation,
    responses=error_answers(Conflict),
    openapi_extra={"requestBody": {"required": True, "content": _LINES}},
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
) -> Response:
    """Create a conversation from an export, which is the raw body and may have any length.

    The import is complete or leaves nothing. An error names the line. `409` if the id is used;
    `422` if the agent does not exist.
    """
    require_uncoded(request)
    async with aclosing(request.stream()) as pieces:
        key = await services(request).imports.add(
            tenant_of(request), pieces, conversation_id, agent_id
        )
    return await _created_conversation(request, key)


async def _created_conversation(request: Request, key: str) -> Response:
    async with services(request).database.session() as session:
        shown = await session.conversations.get(tenant_of(request), key)
    answer = shown_conversation(request, shown)
    return Json(answer, 201, headers={"Location": path_of(answer.conversation_id)})
