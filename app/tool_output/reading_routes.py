"""`/v1/conversations/{id}/blobs/{ref}/…`: an output as a download, and parts of it as text."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from starlette.responses import StreamingResponse

from app.blobs.schemas import REF
from app.common.errors import Gone, NotFound, Problem, ValidationError
from app.common.sendable import is_sendable
from app.http.dependencies import ConversationPath, services, tenant_of
from app.http.errors import MEDIA_TYPE, problem, problems_of
from app.http.fields import MAX_SEQ
from app.http.routing import WireRoute, heavy
from app.tool_output.grep import MAX_PATTERN_CHARACTERS, GrepResult
from app.tool_output.slices import OutputBytes, OutputLines

router = APIRouter(route_class=WireRoute, tags=["blobs"])

MAX_LINES = 10_000
MAX_SLICE_BYTES = 2**20
MAX_MATCHES = 1000
MAX_CONTEXT_LINES = 100

_MAX_REF_CHARS = 256

BLOBS_PATH = "/v1/conversations/{conversation_id}/blobs"
RefPath = Annotated[
    str,
    Path(description="Id of a blob, or of a message whose result has no blob.", examples=[REF]),
]
BINARY: dict[str, Any] = {
    "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}
}


_RANGE = re.compile(r"bytes=([0-9]{0,99})-([0-9]{0,99})")

_RANGE_NOT_SATISFIABLE: dict[str, Any] = {
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


def output_of(request: Request, conversation_id: str, ref: str) -> tuple[str, str, str]:
    """Return the tenant, conversation and ref of a path; raises NotFound for invalid ids."""
    if not 0 < len(ref) <= _MAX_REF_CHARS or not is_sendable(ref):
        raise NotFound(f"No output {ref!r} in this conversation", {"ref": ref})
    return tenant_of(request), conversation_id, ref


@router.get(
    f"{BLOBS_PATH}/{{ref}}/content",
    summary="Download an output",
    response_class=StreamingResponse,
    responses={
        200: {"content": BINARY, "description": "The whole output, byte for byte."},
        206: {"content": BINARY, "description": "The requested range."},
        304: {"description": "`If-None-Match` names the current content."},
        **problems_of(Gone),
        416: _RANGE_NOT_SATISFIABLE,
    },
)
@heavy
async def read_content(
    request: Request, conversation_id: ConversationPath, ref: RefPath
) -> Response:
    """Return the raw bytes of an output with its media type, as a stream.

    Takes one `Range`, with `If-Range`. The `ETag` is the content's hash and never changes.
    """
    source = await services(request).blobs.find(*output_of(request, conversation_id, ref))
    total, etag = source.blob.byte_size, f'"{source.blob.sha256}"'
    headers = {
        "Accept-Ranges": "bytes",
        "ETag": etag,
        "Cache-Control": "private, max-age=31536000, immutable",
        # A tool's output must not run as a page of this origin.
        "Content-Disposition": "attachment",
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "X-Content-Type-Options": "nosniff",
    }
    if _tags(request.headers.get("if-none-match", "")) & {etag, "*"}:
        return Response(status_code=304, headers=headers)
    byte_range = _range(request, etag, total)
    start, end = byte_range or (0, total)
    status = 200
    if byte_range is not None:
        if start >= end:
            detail = f"The output has {total:,} bytes"
            error = Problem("/header/range", detail)
            content_range = {"Content-Range": f"bytes */{total}"}
            return problem(416, ValidationError.code, detail, [error], headers=content_range)
        status = 206
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{total}"
    # Set as a header, because the response would add a charset to a `media_type`.
    headers |= {"Content-Type": source.blob.media_type, "Content-Length": str(end - start)}
    pieces = await _started(services(request).blobs.content(source, start, end))
    return StreamingResponse(pieces, status, headers)


async def _started(pieces: AsyncGenerator[bytes]) -> AsyncIterator[bytes]:
    """Read the first piece, so that a failure of the store is an error response."""
    first = await anext(pieces, b"")

    async def all_pieces() -> AsyncIterator[bytes]:
        async with aclosing(pieces):
            yield first
            async for piece in pieces:
                yield piece

    return all_pieces()


def _tags(header: str) -> set[str]:
    return {tag.strip().removeprefix("W/") for tag in header.split(",")}


def _range(request: Request, etag: str, total: int) -> tuple[int, int] | None:
    """Return the requested range, an empty one if it is past the end; None without a valid one.

    A request for several ranges gets the whole output, as RFC 9110 allows.
    """
    header = request.headers.get("range")
    condition = request.headers.get("if-range")
    if header is None or (condition is not None and condition.strip() != etag):
        return None
    match = _RANGE.fullmatch(header.replace(" ", "").lower())
    if match is None or match[0] == "bytes=-":
        return None
    first, last = match[1], match[2]
    if not first:
        return max(0, total - int(last)), total
    if last and int(last) < int(first):
        return None
    return int(first), min(total, int(last) + 1) if last else total


@router.get(f"{BLOBS_PATH}/{{ref}}/lines", summary="Read lines", responses=problems_of(Gone))
async def read_lines(
    request: Request,
    conversation_id: ConversationPath,
    ref: RefPath,
    offset: Annotated[int, Query(ge=0, le=MAX_SEQ, description="Number of lines to skip.")] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_LINES, description="Maximum number of lines.")] = 2000,
) -> OutputLines:
    """Return numbered lines, at most `tool_output.max_message_bytes` of text.

    A line longer than `max_line_length` is cut; it names the byte at which it continues.
    """
    output = output_of(request, conversation_id, ref)
    return await services(request).blobs.read_lines(*output, offset, limit)


@router.get(f"{BLOBS_PATH}/{{ref}}/bytes", summary="Read bytes", responses=problems_of(Gone))
async def read_bytes(
    request: Request,
    conversation_id: ConversationPath,
    ref: RefPath,
    offset: Annotated[int, Query(ge=0, le=MAX_SEQ, description="Number of bytes to skip.")] = 0,
    limit: Annotated[
        int, Query(ge=1, le=MAX_SLICE_BYTES, description="Maximum number of bytes.")
    ] = 4096,
) -> OutputBytes:
    """Return bytes as text. Read from 0 along `next_offset`, the texts add up to the output."""
    output = output_of(request, conversation_id, ref)
    return await services(request).blobs.read_bytes(*output, offset, limit)


@router.get(f"{BLOBS_PATH}/{{ref}}/grep", summary="Search an output", responses=problems_of(Gone))
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
    output = output_of(request, conversation_id, ref)
    grep = partial(services(request).blobs.grep, *output, pattern, ignore_case=ignore_case)
    return await grep(before=before, after=after, limit=limit)
