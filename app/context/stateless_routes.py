"""`/v1/context/…`: builds, compression and token counts of messages in the request."""

from __future__ import annotations

from dataclasses import replace

from fastapi import APIRouter, Request, Response

from app.context.stateless import Ends
from app.context.stateless_schemas import (
    Compression,
    StatelessBuild,
    StatelessMessages,
)
from app.context.stateless_service import (
    CompressionCheck,
    ContextResult,
    MessageSummary,
    StatelessRequest,
)
from app.conversations.compaction_results import ContextState
from app.http.bodies import long_json, size_of_body
from app.http.dependencies import services, tenant_of
from app.http.routing import WireRoute

router = APIRouter(route_class=WireRoute, tags=["stateless"])


@router.post(
    "/v1/context/build",
    summary="Build a context of messages sent along",
    response_model=ContextResult,
)
async def build_stateless_context(request: Request, body: StatelessBuild) -> Response:
    """Return all messages or, over the threshold, top, a summary of the middle, and bottom.

    Nothing is stored: keep `new_state` and send it as `cached_state` next time. `503` when the
    model fails; the state you have stays valid then.
    """
    state = None
    if body.cached_state is not None:
        start, end = body.cached_state.summary_range
        state = ContextState(**dict(body.cached_state) | {"summary_range": (start, end)})
    build = replace(_request(body), state=state, model=body.model)
    answer = await services(request).stateless.build(tenant_of(request), build)
    return await long_json(answer, size_of_body(request))


@router.post("/v1/context/needs-compression", summary="Ask whether messages need compression")
async def needs_compression(request: Request, body: StatelessMessages) -> CompressionCheck:
    """Return whether the messages are over the threshold and have a middle to compress."""
    return await services(request).stateless.needs_compression(_request(body))


@router.post("/v1/context/compress", summary="Summarise messages")
async def compress(request: Request, body: Compression) -> MessageSummary:
    """Return a summary of all the messages; `503` when the model fails."""
    return await services(request).stateless.compress(tenant_of(request), body.messages, body.model)


def _request(body: StatelessMessages) -> StatelessRequest:
    ends = Ends(body.preserve_top, body.preserve_bottom, body.compression_threshold)
    return StatelessRequest(body.messages, body.max_context_tokens, ends)
