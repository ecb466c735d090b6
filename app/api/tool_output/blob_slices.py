"""`/v1/conversations/{id}/blobs/{ref}/lines`, `/bytes` and `/grep`: parts of an output as text."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from app.api.http.bodies import Json
from app.api.http.dependencies import ConversationPath, services
from app.api.http.errors import problems_of
from app.api.http.fields import MAX_SEQ
from app.api.http.routing import WireRoute, heavy
from app.api.tool_output.blob_schemas import ByteSlice, GrepMatches, LineSlice
from app.api.tool_output.refs import BLOBS_PATH, RefPath, output_of
from app.domain.common.errors import Gone, NotFound, ServiceUnavailable, ValidationError
from app.domain.tool_output.grep import MAX_PATTERN_CHARACTERS

router = APIRouter(route_class=WireRoute, tags=["blobs"])

MAX_LINES = 10_000
MAX_SLICE_BYTES = 2**20
MAX_MATCHES = 1000
MAX_CONTEXT = 100

_PROBLEMS = problems_of(NotFound, Gone, ValidationError, ServiceUnavailable)


@router.get(
    f"{BLOBS_PATH}/{{ref}}/lines",
    operation_id="read_lines",
    summary="Read lines",
    response_model=LineSlice,
    responses=_PROBLEMS,
)
async def read_lines(
    request: Request,
    conversation_id: ConversationPath,
    ref: RefPath,
    offset: Annotated[int, Query(ge=0, le=MAX_SEQ, description="Number of lines to skip.")] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_LINES, description="Maximum number of lines.")] = 2000,
) -> Response:
    """Return numbered lines, at most `tool_output.max_message_bytes` of text.

    A line longer than `max_line_length` is cut; it names the byte at which it continues.
    """
    output = output_of(request, conversation_id, ref)
    return Json(await services(request).blobs.read_lines(*output, offset, limit))


@router.get(
    f"{BLOBS_PATH}/{{ref}}/bytes",
    operation_id="read_bytes",
    summary="Read bytes",
    response_model=ByteSlice,
    responses=_PROBLEMS,
)
async def read_bytes(
    request: Request,
    conversation_id: ConversationPath,
    ref: RefPath,
    offset: Annotated[int, Query(ge=0, le=MAX_SEQ, description="Number of bytes to skip.")] = 0,
    limit: Annotated[
        int, Query(ge=1, le=MAX_SLICE_BYTES, description="Maximum number of bytes.")
    ] = 4096,
) -> Response:
    """Return bytes as text. Read from 0 along `next_offset`, the texts add up to the output."""
    output = output_of(request, conversation_id, ref)
    return Json(await services(request).blobs.read_bytes(*output, offset, limit))


@router.get(
    f"{BLOBS_PATH}/{{ref}}/grep",
    operation_id="grep_blob",
    summary="Search an output",
    response_model=GrepMatches,
    responses=_PROBLEMS,
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
    ignore_case: Annotated[bool, Query(description="Whether to ignore case.")] = False,
    before: Annotated[
        int, Query(ge=0, le=MAX_CONTEXT, description="Number of lines before each match.")
    ] = 0,
    after: Annotated[
        int, Query(ge=0, le=MAX_CONTEXT, description="Number of lines after each match.")
    ] = 0,
    limit: Annotated[
        int, Query(ge=1, le=MAX_MATCHES, description="Maximum number of matches.")
    ] = 100,
) -> Response:
    """Return the lines that match a pattern, in time linear in the output.

    A response has at most 10,000 lines, the lines around matches included.
    """
    output = output_of(request, conversation_id, ref)
    grep = partial(services(request).blobs.grep, *output, pattern, ignore_case=ignore_case)
    return Json(await grep(before=before, after=after, limit=limit))
