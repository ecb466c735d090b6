"""`/v1/context/…`, `/v1/tokens/count` and `/v1/models`: calls without a conversation."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from app.context.stateless_schemas import (
    Compression,
    CompressionCheck,
    ContextResult,
    MessageSummary,
    ModelEntry,
    ModelPage,
    StatelessBuild,
    StatelessMessages,
    TokenCount,
    TokensRequest,
)
from app.http import cursors
from app.http.bodies import long_json, size_of_body
from app.http.cursors import Deleted
from app.http.dependencies import Cursor, Limit, ModelPath, model_from, services, tenant_of
from app.http.routing import WireRoute
from app.models.limits import ModelInfo

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


@router.get("/v1/models", summary="List models", tags=["models"])
async def list_models(request: Request, limit: Limit = 50, cursor: Cursor = None) -> ModelPage:
    """Return all models by name, with the source of each number."""
    after = cursors.decode_name(cursor, "models") if cursor else None
    page = await services(request).registry.list(tenant_of(request), limit, after)
    next_cursor = cursors.encode("models", page[-1].model) if page.has_more else None
    return ModelPage(data=page, next_cursor=next_cursor)


@router.get("/v1/models/{model:path}", summary="Read a model", tags=["models"])
async def get_model(request: Request, model: ModelPath) -> ModelInfo:
    """Return a model's limits and prices; your own entry overrides the bundled one."""
    return await services(request).registry.get(tenant_of(request), model_from(model))


@router.put("/v1/models/{model:path}", summary="Set a model's entry", tags=["models"])
async def set_model(request: Request, model: ModelPath, body: ModelEntry) -> ModelInfo:
    """Add or replace your own entry for a model; omitted fields come from the bundled entry."""
    entry = body.model_dump(exclude_none=True)
    return await services(request).registry.put(tenant_of(request), model_from(model), entry)


@router.delete("/v1/models/{model:path}", summary="Delete a model's entry", tags=["models"])
async def delete_model(request: Request, model: ModelPath) -> Deleted:
    """Delete your own entry for a model; the bundled one applies again."""
    await services(request).registry.remove(tenant_of(request), model_from(model))
    return Deleted(deleted={"models": 1})
