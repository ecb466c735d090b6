"""`/v1/conversations/{id}/blobs`: full tool outputs, read by line, byte and pattern (F)."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from starlette.responses import StreamingResponse

from app.api.http import cursors
from app.api.http.bodies import Json, MalformedJson, require_uncoded
from app.api.http.dependencies import (
    ConversationPath,
    Cursor,
    Limit,
    conversation_id_from,
    services,
    tenant_of,
)
from app.api.http.errors import MEDIA_TYPE, problem, problems_of
from app.api.http.fields import MAX_SEQ, NAME_PATTERN
from app.api.http.routing import WireRoute, heavy
from app.api.tool_output.blob_schemas import (
    REF,
    Blob,
    BlobPage,
    ByteSlice,
    CollectedBlobs,
    CollectRequest,
    GrepMatches,
    LineSlice,
    ToolOutputRef,
    UploadedBlob,
)
from app.domain.common.errors import (
    Conflict,
    Gone,
    NotFound,
    PayloadTooLarge,
    Problem,
    ServiceUnavailable,
    StorageLimitReached,
    ValidationError,
)
from app.domain.common.messages import is_sendable
from app.domain.tool_output import blobs
from app.domain.tool_output.grep import MAX_PATTERN_CHARACTERS
from app.services.tool_output.blobs import Source

router = APIRouter(route_class=WireRoute, tags=["blobs"])

MAX_LINES = 10_000
MAX_SLICE_BYTES = 2**20
MAX_MATCHES = 1000
MAX_CONTEXT = 100
_MAX_REF = 256
_MAX_MEDIA_TYPE = 256
_RANGE = re.compile(r"bytes=([0-9]{0,99})-([0-9]{0,99})")
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+( *;[\x20-\x7e]*)?")

RefPath = Annotated[
    str,
    Path(
        description="Id of a blob, or of a message whose result has none.",
        examples=[REF],
    ),
]
_PATH = "/v1/conversations/{conversation_id}/blobs"
_BINARY: dict[str, Any] = {
    "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}
}

_PAST_THE_END: dict[str, Any] = {
    "description": "The range begins past the end.",
    "content": {
        MEDIA_TYPE: {
            "schema": {"$ref": "#/components/schemas/ProblemAnswer"},
            "examples": {
                "PastTheEnd": {
                    "value": {
                        "type": "urn:context-service:problem:validation-error",
                        "title": "Validation error",
                        "status": 416,
                        "detail": "The output has 48,231 bytes",
                        "code": ValidationError.code,
                        "errors": [
                            {"pointer": "/header/range", "detail": "The output has 48,231 bytes"}
                        ],
                        "request_id": "0199a1b2-3c4d-7e5f-8a9b-2f6b7c8d9e0f",
                    }
                }
            },
        }
    },
}


@router.post(
    _PATH,
    status_code=201,
    operation_id="upload_blob",
    summary="Upload a tool output",
    response_model=UploadedBlob,
    responses=problems_of(
        NotFound, ValidationError, PayloadTooLarge, StorageLimitReached, ServiceUnavailable
    ),
    openapi_extra={"requestBody": {"required": True, "content": _BINARY}},
)
@heavy
async def upload_blob(
    request: Request,
    conversation_id: ConversationPath,
    tool_name: Annotated[
        str | None,
        Query(max_length=256, pattern=NAME_PATTERN, description="The tool it comes from."),
    ] = None,
    tool_call_id: Annotated[
        str | None,
        Query(
            max_length=256,
            description="The call that it answers.",
            json_schema_extra={"pattern": r"^[^\u0000]*$"},
        ),
    ] = None,
) -> Response:
    """Store the raw body, of any size up to `CONTEXT_MAX_BLOB_BYTES`, as it streams in.

    Its `Content-Type` is kept. Append a tool message with `output_ref: {"id": …}` to refer to it;
    without `content` that message shows `view`. An upload no message refers to is collected.
    """
    known_id = conversation_id_from(conversation_id)
    if tool_call_id is not None and not is_sendable(tool_call_id):
        raise ValidationError.at("/query/tool_call_id", "It holds what no database text can")
    require_uncoded(request)
    async with aclosing(_body(request)) as pieces:
        uploaded = await services(request).blobs.upload(
            tenant_of(request),
            known_id,
            pieces,
            media_type=_media_type(request),
            tool_name=tool_name,
            tool_call_id=tool_call_id,
            declared_bytes=_declared_bytes(request),
        )
    item = _item(uploaded.blob) | {"view": uploaded.view}
    place = f"/v1/conversations/{known_id}/blobs/{uploaded.blob.id}"
    return Json(item, 201, headers={"Location": place})


@router.get(
    _PATH,
    operation_id="list_blobs",
    summary="List blobs",
    response_model=BlobPage,
    responses=problems_of(NotFound, ValidationError, ServiceUnavailable),
)
async def list_blobs(
    request: Request, conversation_id: ConversationPath, limit: Limit = 50, cursor: Cursor = None
) -> Response:
    """Return the blobs of a conversation, newest first; collected ones are left out."""
    known_id = conversation_id_from(conversation_id)
    before = cursors.decode_name(cursor, "blobs") if cursor else None
    page = await services(request).blobs.page(tenant_of(request), known_id, limit + 1, before)
    more = len(page) > limit
    following = cursors.encode("blobs", page[limit - 1].id) if more else None
    return Json({"data": [_item(blob) for blob in page[:limit]], "next_cursor": following})


@router.post(
    f"{_PATH}/gc",
    operation_id="collect_blobs",
    summary="Collect blobs",
    response_model=CollectedBlobs,
    responses=problems_of(
        NotFound, ValidationError, MalformedJson, PayloadTooLarge, ServiceUnavailable
    ),
)
async def collect_blobs(
    request: Request, conversation_id: ConversationPath, body: CollectRequest | None = None
) -> Response:
    """Take the uploads that no message refers to, however young.

    With the policy's `gc.drop_compacted` also the blobs whose messages are all compacted away:
    their transcript keeps the view, and says `content_collected`.
    """
    known_id = conversation_id_from(conversation_id)
    dry_run = body.dry_run if body is not None else False
    found = await services(request).blobs.collect(tenant_of(request), known_id, dry_run=dry_run)
    return Json(
        {
            "dry_run": found.dry_run,
            "collected": [blob.ref for blob in found.blobs],
            "byte_size": sum(blob.byte_size for blob in found.blobs),
            "uploads": found.uploads,
        }
    )


@router.get(
    f"{_PATH}/{{ref}}",
    operation_id="get_blob",
    summary="Read about a blob",
    response_model=Blob,
    responses=problems_of(NotFound, Gone, ServiceUnavailable),
)
async def get_blob(request: Request, conversation_id: ConversationPath, ref: RefPath) -> Response:
    """Return what is known of an output: its size, lines, hash and kind."""
    return Json(_source_item(await _source(request, conversation_id, ref)))


@router.delete(
    f"{_PATH}/{{ref}}",
    operation_id="delete_blob",
    summary="Delete an upload",
    response_model=ToolOutputRef,
    responses=problems_of(NotFound, Gone, Conflict, ServiceUnavailable),
)
async def delete_blob(
    request: Request, conversation_id: ConversationPath, ref: RefPath
) -> Response:
    """Delete an upload that no message refers to; any other blob is a `409`."""
    known_id = conversation_id_from(conversation_id)
    blob = await services(request).blobs.remove(tenant_of(request), known_id, _ref_from(ref))
    return Json(blob.ref)


@router.get(
    f"{_PATH}/{{ref}}/content",
    operation_id="read_content",
    summary="Download an output",
    response_class=StreamingResponse,
    responses={
        200: {"content": _BINARY, "description": "All of it, byte for byte."},
        206: {"content": _BINARY, "description": "The range asked for."},
        304: {"description": "`If-None-Match` names the content it has."},
        **problems_of(NotFound, Gone, ServiceUnavailable),
        416: _PAST_THE_END,
    },
)
@heavy
async def read_content(
    request: Request, conversation_id: ConversationPath, ref: RefPath
) -> Response:
    """Return the raw bytes of an output with its media type, streamed.

    Takes one `Range`, with `If-Range`; the `ETag` is the content's hash and never changes.
    """
    source = await _source(request, conversation_id, ref)
    total, etag = source.ref.byte_size, f'"{source.sha256}"'
    headers = {
        "Accept-Ranges": "bytes",
        "ETag": etag,
        "Cache-Control": "private, max-age=31536000, immutable",
        # What a tool printed must not run as a page of this origin.
        "Content-Disposition": "attachment",
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "X-Content-Type-Options": "nosniff",
    }
    if _tags(request.headers.get("if-none-match", "")) & {etag, "*"}:
        return Response(status_code=304, headers=headers)
    asked = _range(request, etag, total)
    start, end = asked or (0, total)
    status = 200
    if asked is not None:
        if start >= end:
            detail = f"The output has {total:,} bytes"
            past = {"Content-Range": f"bytes */{total}"}
            place = Problem("/header/range", detail)
            return problem(416, ValidationError.code, detail, [place], headers=past)
        status = 206
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{total}"
    # As it was uploaded: the response would add a charset of its own.
    headers |= {"Content-Type": source.media_type, "Content-Length": str(end - start)}
    pieces = await _begun(services(request).blobs.content(source, start, end))
    return StreamingResponse(pieces, status, headers)


@router.get(
    f"{_PATH}/{{ref}}/lines",
    operation_id="read_lines",
    summary="Read lines",
    response_model=LineSlice,
    responses=problems_of(NotFound, Gone, ValidationError, ServiceUnavailable),
)
async def read_lines(
    request: Request,
    conversation_id: ConversationPath,
    ref: RefPath,
    offset: Annotated[int, Query(ge=0, le=MAX_SEQ, description="Lines to skip.")] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_LINES, description="Lines at most.")] = 2000,
) -> Response:
    """Return numbered lines, at most `tool_output.max_message_bytes` of them.

    A line longer than `max_line_length` is cut, and says at which byte it goes on.
    """
    known_id = conversation_id_from(conversation_id)
    found = await services(request).blobs.read_lines(
        tenant_of(request), known_id, _ref_from(ref), offset, limit
    )
    return Json(found)


@router.get(
    f"{_PATH}/{{ref}}/bytes",
    operation_id="read_bytes",
    summary="Read bytes",
    response_model=ByteSlice,
    responses=problems_of(NotFound, Gone, ValidationError, ServiceUnavailable),
)
async def read_bytes(
    request: Request,
    conversation_id: ConversationPath,
    ref: RefPath,
    offset: Annotated[int, Query(ge=0, le=MAX_SEQ, description="Bytes to skip.")] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_SLICE_BYTES, description="Bytes at most.")] = 4096,
) -> Response:
    """Return the text of some bytes: from 0, following `next_offset`, the texts are the whole."""
    known_id = conversation_id_from(conversation_id)
    found = await services(request).blobs.read_bytes(
        tenant_of(request), known_id, _ref_from(ref), offset, limit
    )
    return Json(found)


@router.get(
    f"{_PATH}/{{ref}}/grep",
    operation_id="grep_blob",
    summary="Search an output",
    response_model=GrepMatches,
    responses=problems_of(NotFound, Gone, ValidationError, ServiceUnavailable),
)
@heavy
async def grep_blob(
    request: Request,
    conversation_id: ConversationPath,
    ref: RefPath,
    pattern: Annotated[
        str,
        Query(
            min_length=1,
            max_length=MAX_PATTERN_CHARACTERS,
            description="A regular expression (RE2).",
        ),
    ],
    ignore_case: Annotated[bool, Query(description="Whether case does not matter.")] = False,
    before: Annotated[
        int, Query(ge=0, le=MAX_CONTEXT, description="Lines to show before each match.")
    ] = 0,
    after: Annotated[
        int, Query(ge=0, le=MAX_CONTEXT, description="Lines to show after each match.")
    ] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_MATCHES, description="Matches at most.")] = 100,
) -> Response:
    """Return the lines that a pattern matches, in time linear in the output, whatever it is.

    At most 10,000 lines are shown, those around the matches among them.
    """
    known_id = conversation_id_from(conversation_id)
    found = await services(request).blobs.grep(
        tenant_of(request),
        known_id,
        _ref_from(ref),
        pattern,
        ignore_case=ignore_case,
        before=before,
        after=after,
        limit=limit,
    )
    return Json(found)


async def _source(request: Request, conversation_id: str, ref: str) -> Source:
    known_id = conversation_id_from(conversation_id)
    return await services(request).blobs.find(tenant_of(request), known_id, _ref_from(ref))


def _ref_from(text: str) -> str:
    """Return the ref of a path; what could be none is found nowhere."""
    if not 0 < len(text) <= _MAX_REF or not is_sendable(text):
        raise NotFound(f"No output {text!r} in this conversation", {"ref": text})
    return text


async def _body(request: Request) -> AsyncGenerator[bytes]:
    """Yield the body piece by piece, for each of which the tenant has room."""
    storage = services(request).storage
    async for piece in request.stream():
        await storage.take(tenant_of(request), len(piece))
        yield piece


def _media_type(request: Request) -> str:
    given = request.headers.get("content-type", "").strip()
    if not given:
        return "application/octet-stream"
    if len(given) > _MAX_MEDIA_TYPE or not _MEDIA_TYPE.fullmatch(given):
        raise ValidationError.at("/header/content-type", "This is no media type")
    return given


def _declared_bytes(request: Request) -> int:
    declared = request.headers.get("content-length", "")
    return int(declared) if declared.isdecimal() and len(declared) < 19 else 0


async def _begun(pieces: AsyncGenerator[bytes]) -> AsyncIterator[bytes]:
    """Read the first piece, so that a store that is away is an error and no broken answer."""
    first = await anext(pieces, b"")

    async def all_of_it() -> AsyncIterator[bytes]:
        async with aclosing(pieces):
            yield first
            async for piece in pieces:
                yield piece

    return all_of_it()


def _tags(header: str) -> set[str]:
    return {tag.strip().removeprefix("W/") for tag in header.split(",")}


def _range(request: Request, etag: str, total: int) -> tuple[int, int] | None:
    """Return the range a request asks for, an empty one past the end; None without a usable one.

    Several ranges at once are answered with everything, as RFC 9110 allows.
    """
    header = request.headers.get("range")
    condition = request.headers.get("if-range")
    if header is None or (condition is not None and condition.strip() != etag):
        return None
    asked = _RANGE.fullmatch(header.replace(" ", "").lower())
    if asked is None or asked[0] == "bytes=-":
        return None
    first, last = asked[1], asked[2]
    if not first:
        return max(0, total - int(last)), total
    if last and int(last) < int(first):
        return None
    return int(first), min(total, int(last) + 1) if last else total


def _item(blob: blobs.Blob) -> dict[str, Any]:
    return {
        "id": blob.id,
        "byte_size": blob.byte_size,
        "line_count": blob.line_count,
        "sha256": blob.sha256,
        "media_type": blob.media_type,
        "tool_name": blob.tool_name,
        "tool_call_id": blob.tool_call_id,
        "attached": blob.attached,
        "created_at": blob.created_at,
    }


def _source_item(source: Source) -> dict[str, Any]:
    if source.blob is not None:
        return _item(source.blob)
    return {
        "id": source.ref.id,
        "byte_size": source.ref.byte_size,
        "line_count": source.ref.line_count,
        "sha256": source.sha256,
        "media_type": source.media_type,
        "tool_name": None,
        "tool_call_id": None,
        "attached": True,
        "created_at": None,
    }
