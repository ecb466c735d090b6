"""`/v1/conversations/{id}/blobs`: upload, list, read, delete and collect blobs."""

from __future__ import annotations

import re
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from app.blobs.blobs import ToolOutputRef
from app.blobs.schemas import (
    Blob,
    BlobPage,
    CollectedBlobs,
    CollectRequest,
    UploadedBlob,
)
from app.common.errors import Conflict, Gone, ValidationError
from app.common.schema_errors import NAME_PATTERN
from app.common.sendable import is_sendable
from app.http import cursors
from app.http.bodies import Json, require_uncoded
from app.http.conversation_ids import path_of, public_id_of
from app.http.dependencies import ConversationPath, Cursor, Limit, services, tenant_of
from app.http.errors import problems_of
from app.http.routing import WireRoute, heavy
from app.tool_output.reading_routes import BINARY, BLOBS_PATH, RefPath, output_of

router = APIRouter(route_class=WireRoute, tags=["blobs"])

_MAX_MEDIA_TYPE_CHARS = 256
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+( *;[\x20-\x7e]*)?")


@router.post(
    BLOBS_PATH,
    status_code=201,
    summary="Upload a tool output",
    response_model=UploadedBlob,
    openapi_extra={"requestBody": {"required": True, "content": BINARY}},
)
@heavy
async def upload_blob(
    request: Request,
    conversation_id: ConversationPath,
    tool_name: Annotated[
        str | None,
        Query(max_length=256, pattern=NAME_PATTERN, description="Name of the tool."),
    ] = None,
    tool_call_id: Annotated[
        str | None,
        Query(
            max_length=256,
            description="Id of the tool call.",
            json_schema_extra={"pattern": r"^[^\u0000]*$"},
        ),
    ] = None,
) -> Response:
    """Store the raw body as a stream, up to `CONTEXT_MAX_BLOB_BYTES`, with its `Content-Type`.

    Append a tool message with `output_ref: {"id": …}` to refer to the blob. Without `content`, that
    message shows the preview in `view`. An upload that no message refers to is collected.
    """
    if tool_call_id is not None and not is_sendable(tool_call_id):
        raise ValidationError.at(
            "/query/tool_call_id", "contains a character that cannot be stored"
        )
    require_uncoded(request)
    async with aclosing(request.stream()) as pieces:
        uploaded = await services(request).uploads.upload(
            tenant_of(request),
            conversation_id,
            pieces,
            media_type=_media_type(request),
            tool_name=tool_name,
            tool_call_id=tool_call_id,
            declared_bytes=_declared_bytes(request),
        )
    item = UploadedBlob.of(uploaded.blob, view=uploaded.preview.texts[0])
    location = f"{path_of(public_id_of(request))}/blobs/{uploaded.blob.id}"
    return Json(item, 201, headers={"Location": location})


@router.get(BLOBS_PATH, summary="List blobs")
async def list_blobs(
    request: Request, conversation_id: ConversationPath, limit: Limit = 50, cursor: Cursor = None
) -> BlobPage:
    """Return the blobs of a conversation, newest first, without collected ones."""
    before = cursors.decode_name(cursor, "blobs") if cursor else None
    page = await services(request).blobs.page(
        tenant_of(request), conversation_id, limit + 1, before
    )
    has_more = len(page) > limit
    next_cursor = cursors.encode("blobs", page[limit - 1].id) if has_more else None
    return BlobPage(data=[Blob.of(blob) for blob in page[:limit]], next_cursor=next_cursor)


@router.post(f"{BLOBS_PATH}/gc", summary="Collect blobs")
async def collect_blobs(
    request: Request, conversation_id: ConversationPath, body: CollectRequest | None = None
) -> CollectedBlobs:
    """Delete all uploads that no message refers to.

    With the policy's `gc.drop_compacted`, also the blobs whose messages are all compacted: the
    transcript keeps their previews, with `content_collected`.
    """
    result = await services(request).blob_collector.collect(
        tenant_of(request), conversation_id, dry_run=body is not None and body.dry_run
    )
    return CollectedBlobs.of(
        result,
        collected=[blob.ref for blob in result.blobs],
        byte_size=sum(blob.byte_size for blob in result.blobs),
    )


@router.get(f"{BLOBS_PATH}/{{ref}}", summary="Read about a blob", responses=problems_of(Gone))
async def get_blob(request: Request, conversation_id: ConversationPath, ref: RefPath) -> Blob:
    """Return the metadata of an output: its size, lines, hash and media type."""
    source = await services(request).blobs.find(*output_of(request, conversation_id, ref))
    return Blob.of(source.blob)


@router.delete(
    f"{BLOBS_PATH}/{{ref}}", summary="Delete an upload", responses=problems_of(Gone, Conflict)
)
async def delete_blob(
    request: Request, conversation_id: ConversationPath, ref: RefPath
) -> ToolOutputRef:
    """Delete an upload that no message refers to; any other blob is a `409`."""
    output = output_of(request, conversation_id, ref)
    return (await services(request).blob_collector.remove(*output)).ref


def _media_type(request: Request) -> str:
    media_type = request.headers.get("content-type", "").strip()
    if not media_type:
        return "application/octet-stream"
    if len(media_type) > _MAX_MEDIA_TYPE_CHARS or not _MEDIA_TYPE.fullmatch(media_type):
        raise ValidationError.at("/header/content-type", "must be a media type")
    return media_type


def _declared_bytes(request: Request) -> int:
    declared = request.headers.get("content-length", "")
    return int(declared) if declared.isdecimal() and len(declared) < 19 else 0
