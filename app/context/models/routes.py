"""`/v1/models`: limits and prices of models, and a tenant's own entries."""

from __future__ import annotations

from fastapi import APIRouter, Request

from app.context.models.schemas import ModelEntry, ModelPage
from app.context.stateless_schemas import TokensRequest
from app.context.stateless_service import CountRequest, TokenCount
from app.http import cursors
from app.http.dependencies import Cursor, Limit, ModelPath, model_from, services, tenant_of
from app.http.pages import Deleted
from app.http.routing import WireRoute
from app.models.limits import ModelInfo

router = APIRouter(route_class=WireRoute, tags=["models"])


@router.get("/v1/models", summary="List models")
async def list_models(request: Request, limit: Limit = 50, cursor: Cursor = None) -> ModelPage:
    """Return all models by name, with the source of each number."""
    after = cursors.decode_name(cursor, "models") if cursor else None
    page = await services(request).registry.list(tenant_of(request), limit, after)
    following = cursors.encode("models", page.last) if page.last is not None else None
    return ModelPage(data=page.models, next_cursor=following)


@router.get("/v1/models/{model:path}", summary="Read a model")
async def get_model(request: Request, model: ModelPath) -> ModelInfo:
    """Return a model's limits and prices; your own entry overrides the bundled one."""
    return await services(request).registry.get(tenant_of(request), model_from(model))


@router.put("/v1/models/{model:path}", summary="Set a model's entry")
async def set_model(request: Request, model: ModelPath, body: ModelEntry) -> ModelInfo:
    """Add or replace your own entry for a model; omitted fields come from the bundled entry."""
    entry = body.model_dump(exclude_none=True)
    return await services(request).registry.put(tenant_of(request), model_from(model), entry)


@router.delete("/v1/models/{model:path}", summary="Delete a model's entry")
async def delete_model(request: Request, model: ModelPath) -> Deleted:
    """Delete your own entry for a model; the bundled one applies again."""
    await services(request).registry.remove(tenant_of(request), model_from(model))
    return Deleted(deleted={"models": 1})


@router.post("/v1/tokens/count", summary="Count tokens")
async def count_tokens(request: Request, body: TokensRequest) -> TokenCount:
    """Count messages, a text and tool definitions as a build counts them.

    Usage reported for `model` corrects the count. `margin` is the share to add for safety where
    the model has another tokenizer.
    """
    count_request = CountRequest(**dict(body))
    return await services(request).stateless.count(tenant_of(request), count_request)
