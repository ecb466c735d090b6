"""`/v1/tokens/count`: what something costs (J1, J2)."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from app.api.deps import services, tenant_of
from app.api.errors import problems_of
from app.api.routing import WireRoute
from app.api.schemas.stateless import TokenCount, TokensAsk
from app.api.wire import Json, MalformedJson
from app.domain.errors import PayloadTooLarge, ValidationError
from app.services.stateless import CountAsk

router = APIRouter(route_class=WireRoute, tags=["models"])


@router.post(
    "/v1/tokens/count",
    operation_id="count_tokens",
    summary="Count tokens",
    response_model=TokenCount,
    responses=problems_of(ValidationError, MalformedJson, PayloadTooLarge),
)
async def count_tokens(request: Request, body: TokensAsk) -> Response:
    """Count messages, a text and tool definitions as a build counts them.

    Usage reported for `model` corrects the count. `margin` is the share to add for safety where
    the model's own tokenizer is another one.
    """
    ask = CountAsk(
        messages=body.messages,
        text=body.text,
        tools=body.tools,
        format=body.format,
        counter=body.counter,
        model=body.model,
    )
    return Json(await services(request).stateless.count(tenant_of(request), ask))
