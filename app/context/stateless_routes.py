"""`/v1/context/…` and `/v1/tokens/count`: calls without a conversation."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from app.context.stateless import (
    Compression,
    CompressionCheck,
    ContextResult,
    MessageSummary,
    StatelessBuild,
    StatelessMessages,
    TokenCount,
    TokensRequest,
)
from app.http.bodies import long_json, size_of_body
from app.http.routing import WireRoute, services, tenant_of

router = APIRouter(route_class=WireRoute)


@router.post(
    "/v1/context/build",
    summary="Build a context of messages sent along",
    response_model=ContextResult,
    tags=["stateless"],
)
async def build_stateless_context(request: Request, body: StatelessBuild) -> Response:
    """Return all messages or, over the threshold, top, a summary of the middle, and bottom.

    Nothing is stored: keep `new_state` and send it as `cached_state` next time. `503` when the
    model fails; the state you have stays valid then.
    """
    answer = await services(request).stateless.build(tenant_of(request), body)
    return await long_json(answer, size_of_body(request))


@router.post(
    "/v1/context/needs-compression",
    summary="Ask whether messages need compression",
    tags=["stateless"],
)
async def needs_compression(request: Request, body: StatelessMessages) -> CompressionCheck:
    """Return whether the messages are over the threshold and have a middle to compress."""
    return await services(request).stateless.needs_compression(body)


@router.post("/v1/context/compress", summary="Summarise messages", tags=["stateless"])
async def compress(request: Request, body: Compression) -> MessageSummary:
    """Return a summary of all the messages; `503` when the model fails."""
    return await services(request).stateless.compress(tenant_of(request), body)


@router.post("/v1/tokens/count", summary="Count tokens", tags=["models"])
async def count_tokens(request: Request, body: TokensRequest) -> TokenCount:
    """Count messages, a text and tool definitions as a build counts them.

    Usage reported for `model` corrects the count. `margin` is the share to add for safety where
    the model has another tokenizer.
    """
    return await services(request).stateless.count(tenant_of(request), body)
