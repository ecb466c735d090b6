"""Routes of blobs (upload, list, read, download, collect), and of agent tools."""

from __future__ import annotations

import re
from contextlib import aclosing
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from starlette.responses import StreamingResponse

from app.common import json_text
from app.common.errors import ContextLimitUnknown, Gone, NotFound, Problem, ValidationError
from app.common.schema_errors import NAME_PATTERN
from app.common.texts import is_sendable
from app.formats import PROVIDERS
from app.formats.message import FormatName
from app.http import cursors
from app.http.bodies import Json, begun, body_bytes_of, require_uncoded
from app.http.cursors import Page
from app.http.errors import error_answers, problem
from app.http.fields import MAX_SEQ, RequestSchema, ResponseSchema, examples
from app.http.routing import (
    ConversationPath,
    Cursor,
    Limit,
    WireRoute,
    heavy,
    path_of,
    public_id_of,
    services,
    tenant_of,
)
from app.prompt.agent_tools import definitions_in
from app.prompt.schemas import (
    ToolCallAnswer,
    ToolCallRequest,
    ToolDefinitions,
    ToolSearchAnswer,
    ToolSearchRequest,
)
from app.tool_output.collection import CollectedBlobs
from app.tool_output.grep import MAX_PATTERN_CHARACTERS, GrepResult
from app.tool_output.slices import OutputBytes, OutputLines

router = APIRouter(route_class=WireRoute, tags=["blobs"])
tools_router = APIRouter(route_class=WireRoute, tags=["tools"])

MAX_LINES = 10_000
MAX_SLICE_BYTES = 2**20
MAX_MATCHES = 1000
MAX_CONTEXT_LINES = 100

_MAX_REF_CHARS = 256

_BLOBS = "/v1/conversations/{conversation_id}/blobs"
_RefPath = Annotated[
    str,
    Path(
        description="Id of a blob, or of a message whose result has no blob.",
        examples=["blob_9f86d081884c7d659a2feaa0"],
    ),
]
_BINARY: dict[str, Any] = {
    "application/octet-stream": {
        "schema": {"type": "string", "format": "binary"},
        "example": "12 passed in 0.45s",
    }
}


_RANGE = re.compile(r"bytes=([0-9]{0,99})-([0-9]{0,99})")

_MAX_MEDIA_TYPE_CHARS = 256
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+( *;[\x20-\x7e]*)?")


class Blob(ResponseSchema):
    """A stored output. Equal bytes are stored once in a conversation."""

    id: str
    """Id of its blob, or of its message if it has no blob."""
    byte_size: int
    """Size of the whole output in bytes."""
    line_count: int
    """Number of lines; text after the last newline is a line."""

    sha256: str
    """SHA-256 of the bytes, in hex."""
    media_type: str
    """Media type of the content."""
    tool_name: str | None
    """Name of the tool, if known."""
    tool_call_id: str | None
    """Id of the tool call, if known."""
    attached: bool
    """Whether a message refers to it; if not, it is collected."""
    created_at: datetime | None
    """Time at which it was stored."""


class UploadedBlob(Blob):
    """An uploaded blob and its preview."""

    view: str
    """The preview that a message without content shows."""


class BlobPage(Page[Blob]):
    """Blobs of a conversation, newest first."""


class CollectRequest(RequestSchema):
    """Options of a collection."""

    model_config = examples({"dry_run": True})

    dry_run: bool = False
    """true: report what would be collected, without collecting it."""


@router.post(
    _BLOBS,
    status_code=201,
    summary="Upload a tool output",
    response_model=UploadedBlob,
    openapi_extra={"requestBody": {"required": False, "content": _BINARY}},
)
@heavy
async def upload_blob(
    request: Request,
    conversation_id: ConversationPath,
    tool_name: Annotated[
        str | None, Query(max_length=256, pattern=NAME_PATTERN, description="Name of the tool.")
    ] = None,
    tool_call_id: Annotated[
        str | None,
        Query(max_length=256, description="Id of the tool call.", pattern=r"^[^\u0000]*$"),
    ] = None,
) -> Response:
    """Store the raw body as a stream, up to `CONTEXT_MAX_BLOB_BYTES`, with its `Content-Type`.

    It may be empty.
    Append a tool message with `output_ref: {"id": …}` to refer to the blob. Without `content`, that
    message shows the preview in `view`. An upload that no message refers to is collected.
    """
    require_uncoded(request)
    async with aclosing(request.stream()) as pieces:
        blob, preview = await services(request).uploads.upload(
            tenant_of(request),
            conversation_id,
            pieces,
            media_type=_media_type(request),
            tool_name=tool_name,
            tool_call_id=tool_call_id,
            declared_bytes=body_bytes_of(request.scope) or 0,
        )
    item = UploadedBlob.of(blob, view=preview.texts[0])
    location = f"{path_of(public_id_of(request))}/blobs/{blob.id}"
    return Json(item, 201, headers={"Location": location})


@router.get(_BLOBS, summary="List blobs")
async def list_blobs(
    request: Request, conversation_id: ConversationPath, limit: Limit = 50, cursor: Cursor = None
) -> BlobPage:
    """Return the blobs of a conversation, newest first, without collected ones."""
    before = cursors.decode(cursor, "blobs")
    page = await services(request).blobs.page(tenant_of(request), conversation_id, limit, before)
    return BlobPage.up_to("blobs", page, "id", data=[Blob.of(blob) for blob in page])


@router.post(f"{_BLOBS}/collect", summary="Collect blobs")
async def collect_blobs(
    request: Request, conversation_id: ConversationPath, body: CollectRequest | None = None
) -> CollectedBlobs:
    """Delete all uploads that no message refers to.

    With the policy's `collection.drop_compacted`, also the blobs whose messages are all compacted:
    the transcript keeps their previews, with `content_collected`.
    """
    return await services(request).collection.collect(
        tenant_of(request), conversation_id, dry_run=body is not None and body.dry_run
    )


@router.get(f"{_BLOBS}/{{ref_id}}", summary="Read about a blob", responses=error_answers(Gone))
async def get_blob(request: Request, conversation_id: ConversationPath, ref_id: _RefPath) -> Blob:
    """Return the metadata of an output: its size, lines, hash and media type."""
    source = await services(request).blobs.find(*_output_of(request, conversation_id, ref_id))
    return Blob.of(source.blob)


def _media_type(request: Request) -> str:
    media_type = request.headers.get("content-type", "").strip()
    if not media_type:
        return "application/octet-stream"
    if len(media_type) > _MAX_MEDIA_TYPE_CHARS or not _MEDIA_TYPE.fullmatch(media_type):
        raise ValidationError.at("/header/content-type", "must be a media type")
    return media_type


@router.get(
    f"{_BLOBS}/{{ref_id}}/content",
    summary="Download an output",
    response_class=StreamingResponse,
    responses={
        200: {"content": _BINARY, "description": "The whole output, byte for byte."},
        206: {"content": _BINARY, "description": "The requested range."},
        **error_answers(Gone),
        416: error_answers(ValidationError)[422]
        | {"description": "The range begins past the end."},
    },
)
@heavy
async def read_content(
    request: Request, conversation_id: ConversationPath, ref_id: _RefPath
) -> Response:
    """Return the raw bytes of an output with its media type, as a stream; takes one `Range`."""
    source = await services(request).blobs.find(*_output_of(request, conversation_id, ref_id))
    total = source.blob.byte_size
    start, end, status = _range(request.headers.get("range", ""), total)
    if status == 416:
        detail = f"The output has {total:,} bytes"
        content_range = {"Content-Range": f"bytes */{total}"}
        error = Problem("/header/range", detail)
        return problem(status, ValidationError.code, detail, [error], headers=content_range)
    headers = {
        "Accept-Ranges": "bytes",
        # A tool's output must not run as a page of this origin.
        "Content-Disposition": "attachment",
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "X-Content-Type-Options": "nosniff",
        # Set as a header, because the response would add a charset to a `media_type`.
        "Content-Type": source.blob.media_type,
        "Content-Length": str(end - start),
    }
    if status == 206:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{total}"
    pieces = await begun(services(request).blobs.content(source, start, end))
    return StreamingResponse(pieces, status, headers)


def _range(header: str, total: int) -> tuple[int, int, int]:
    """Return the start and end of a requested range, and the status.

    Several ranges and an invalid one get the whole output, as RFC 9110 allows.
    """
    match = _RANGE.fullmatch(header.replace(" ", "").lower())
    first, last = (match[1], match[2]) if match is not None else ("", "")
    if not (first or last) or (first and last and int(last) < int(first)):
        return 0, total, 200
    if not first:
        first, last = str(max(0, total - int(last))), ""
    start, end = int(first), min(total, int(last) + 1) if last else total
    return start, end, 206 if start < end else 416


@router.get(f"{_BLOBS}/{{ref_id}}/lines", summary="Read lines", responses=error_answers(Gone))
async def read_lines(
    request: Request,
    conversation_id: ConversationPath,
    ref_id: _RefPath,
    offset: Annotated[int, Query(ge=0, le=MAX_SEQ, description="Number of lines to skip.")] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_LINES, description="Maximum number of lines.")] = 2000,
) -> OutputLines:
    """Return numbered lines, at most `tool_output.max_message_bytes` of text.

    A line longer than `max_line_length` is cut; it names the byte at which it continues.
    """
    output = _output_of(request, conversation_id, ref_id)
    return await services(request).blobs.read_lines(*output, offset, limit)


@router.get(f"{_BLOBS}/{{ref_id}}/bytes", summary="Read bytes", responses=error_answers(Gone))
async def read_bytes(
    request: Request,
    conversation_id: ConversationPath,
    ref_id: _RefPath,
    offset: Annotated[int, Query(ge=0, le=MAX_SEQ, description="Number of bytes to skip.")] = 0,
    limit: Annotated[
        int, Query(ge=1, le=MAX_SLICE_BYTES, description="Maximum number of bytes.")
    ] = 4096,
) -> OutputBytes:
    """Return bytes as text. Read from 0 along `next_offset`, the texts add up to the output."""
    output = _output_of(request, conversation_id, ref_id)
    return await services(request).blobs.read_bytes(*output, offset, limit)


@router.get(f"{_BLOBS}/{{ref_id}}/grep", summary="Search an output", responses=error_answers(Gone))
@heavy
async def grep_blob(
    request: Request,
    conversation_id: ConversationPath,
    ref_id: _RefPath,
    pattern: Annotated[
        str,
        Query(
            min_length=1,
            max_length=MAX_PATTERN_CHARACTERS,
            description="A regular expression (RE2).",
        ),
    ],
    ignore_case: Annotated[bool, Query(description="Whether to ignore case.")] = False,
    before: Annotated[
        int, Query(ge=0, le=MAX_CONTEXT_LINES, description="Number of lines before each match.")
    ] = 0,
    after: Annotated[
        int, Query(ge=0, le=MAX_CONTEXT_LINES, description="Number of lines after each match.")
    ] = 0,
    limit: Annotated[
        int, Query(ge=1, le=MAX_MATCHES, description="Maximum number of matches.")
    ] = 100,
) -> GrepResult:
    """Return the lines that match a pattern, in time linear in the output.

    A response has at most 10,000 lines, the lines around matches included.
    """
    return await services(request).blobs.grep(
        *_output_of(request, conversation_id, ref_id),
        pattern,
        ignore_case=ignore_case,
        before=before,
        after=after,
        limit=limit,
    )


def _output_of(request: Request, conversation_id: str, ref_id: str) -> tuple[str, str, str]:
    """Return the tenant, conversation and ref of a path; raises NotFound for invalid ids."""
    if not 0 < len(ref_id) <= _MAX_REF_CHARS or not is_sendable(ref_id):
        raise NotFound(f"No output {ref_id!r} in this conversation", {"ref_id": ref_id})
    return tenant_of(request), conversation_id, ref_id


# --- agent tools ---


@tools_router.get("/v1/tool-definitions", summary="List the service's tools")
async def list_tool_definitions(
    format: Annotated[
        FormatName, Query(description="The provider's format.")
    ] = FormatName.OPENAI_CHAT,
) -> ToolDefinitions:
    """Return the tools for reading stored output, searching tools and messages, and compacting.

    Add them to the tools of a model request, and send the model's calls to `…/tool-calls`.
    """
    return ToolDefinitions(format=format, tools=definitions_in(format))


@tools_router.post(
    "/v1/conversations/{conversation_id}/tool-calls",
    summary="Execute a tool call",
    responses=error_answers(ValidationError, ContextLimitUnknown),
)
async def answer_tool_call(
    request: Request, conversation_id: ConversationPath, body: ToolCallRequest
) -> ToolCallAnswer:
    """Execute one call of a tool of `GET /v1/tool-definitions`, and return the tool message.

    Nothing is appended: append the message yourself, with the results of your other tools.
    Tools that `tool_search` finds are promoted: the next builds of the turn have them.
    An error that the model can correct, such as an unknown ref, is a `200` with `is_error` and an
    error message for the model. A malformed call, or a call of another tool, is a `422`.
    """
    answered = await services(request).tool_calls.answer(
        tenant_of(request), conversation_id, body.format, body.tool_call, native=body.native
    )
    return ToolCallAnswer.of(answered, format=body.format)


@tools_router.post(
    "/v1/conversations/{conversation_id}/tools/search", summary="Find tools and promote them"
)
async def search_tools(
    request: Request, conversation_id: ConversationPath, body: ToolSearchRequest
) -> ToolSearchAnswer:
    """Return the definitions of the tools that match, best first, and promote them.

    The search covers the name, description and parameters of every tool of the conversation,
    deferred or not. Matches are not deferred until the next user message. Without a match the list
    is empty.
    """
    tools = json_text.dumps(body.tools or [])
    result = await services(request).tools.search(
        tenant_of(request), conversation_id, body.query, body.limit, tools
    )
    return ToolSearchAnswer.of(
        result,
        format=body.format,
        tools=PROVIDERS[body.format].tools_to_wire(result.tools),
        names=[tool.name for tool in result.tools],
    )
