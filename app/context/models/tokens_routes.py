"""`/v1/tokens/count`: token counts of messages, text and tools."""

from __future__ import annotations

from fastapi import APIRouter, Request

from app.context.stateless_schemas import TokensRequest
from app.context.stateless_service import CountRequest, TokenCount
from app.http.dependencies import services, tenant_of
from app.http.routing import WireRoute

router = APIRouter(route_class=WireRoute, tags=["models"])


@router.post("/v1/tokens/count", summary="Count tokens")
async def count_tokens(request: Request, body: TokensRequest) -> TokenCount:
    """Count messages, a text and tool definitions as a build counts them.

    Usage reported for `model` corrects the count. `margin` is the share to add for safety where
    the model has another tokenizer.
    """
    count_request = CountRequest(**dict(body))
    return await services(request).stateless.count(tenant_of(request), count_request)
