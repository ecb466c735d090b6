"""`/v1/conversations/{id}/blobs/{ref}/content`: download of an output, whole or as a byte range."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.responses import StreamingResponse

from app.api.http.dependencies import ConversationPath, services
from app.api.http.errors import MEDIA_TYPE, problem, problems_of
from app.api.http.routing import WireRoute, heavy
from app.api.tool_output.refs import BINARY, BLOBS_PATH, RefPath, output_of
from app.domain.common.errors import Gone, NotFound, Problem, ServiceUnavailable, ValidationError

router = APIRouter(route_class=WireRoute, tags=["blobs"])

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


@router.get(
    f"{BLOBS_PATH}/{{ref}}/content",
    operation_id="read_content",
    summary="Download an output",
    response_class=StreamingResponse,
    responses={
        200: {"content": BINARY, "description": "The whole output, byte for byte."},
        206: {"content": BINARY, "description": "The requested range."},
        304: {"description": "`If-None-Match` names the current content."},
        **problems_of(NotFound, Gone, ServiceUnavailable),
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
