"""`/v1/models`: limits and prices of the registry, and a tenant's own, which override them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field

from app.common import json_text, pages
from app.common.errors import NotFound, ServiceUnavailable
from app.common.schema_errors import NAME_PATTERN
from app.database.connections import Statement
from app.database.sql import equal, insert
from app.http import cursors
from app.http.cursors import Deleted, Page
from app.http.fields import RequestSchema, Tokens, examples
from app.http.routing import Cursor, Limit, ModelPath, WireRoute, model_from, services, tenant_of
from app.models.model_info import ModelInfo, Models, merged_info
from app.repositories import Database

router = APIRouter(route_class=WireRoute, tags=["models"])

_TENANT = equal("tenant_id")
_IS_MODEL = equal("tenant_id", "model")

ADD_MODEL = Statement(f"""
    {insert("models", "tenant_id", "model", "info", updated_at="statement_timestamp()")}
    ON CONFLICT (tenant_id, model) DO UPDATE
    SET info = excluded.info, updated_at = excluded.updated_at
""")
LIST_MODELS = Statement(f"SELECT model, info FROM models WHERE {_TENANT} ORDER BY model")
FIND_MODEL = Statement(f"SELECT info FROM models WHERE {_IS_MODEL}")
REMOVE_MODEL = Statement(f"DELETE FROM models WHERE {_IS_MODEL}")

_Price = Annotated[float, Field(ge=0, le=1_000)]


class OwnModelInfo(RequestSchema):
    """A model's limits in tokens and prices in USD per token; omitted fields stay as they were."""

    model_config = examples({"context_window": 65536, "max_output_tokens": 8192})

    context_window: Tokens | None = None
    """Input and output together."""
    max_input_tokens: Tokens | None = None
    """Only where the input has a separate limit."""
    max_output_tokens: Tokens | None = None
    """The maximum length of an answer."""
    tokenizer: str | None = Field(default=None, max_length=256, pattern=NAME_PATTERN)
    """Name of its tokenizer."""
    exact: bool | None = None
    """Whether the service counts with its tokenizer: then no margin is added."""
    cache_minimum_tokens: Tokens | None = None
    """The shortest prefix that its provider caches."""
    input_price: _Price | None = None
    """USD per uncached input token."""
    output_price: _Price | None = None
    """USD per output token."""
    cache_read_price: _Price | None = None
    """USD per token read from the cache."""
    cache_write_price: _Price | None = None
    """USD per token written to the cache."""
    tool_search: bool | None = None
    """Whether the provider supports tool search with deferred tools."""
    cache_breakpoint: bool | None = None
    """Whether OpenAI's explicit cache breakpoints are supported."""
    mid_conversation_system: bool | None = None
    """Whether system text is accepted after the first message."""


class ModelPage(Page[ModelInfo]):
    """Models, by name."""


class RegistryService:
    """Lists, reads and overrides limits and prices of models."""

    def __init__(self, database: Database, models: Models) -> None:
        self._database = database
        self._models = models

    async def list(self, tenant_id: str, limit: int, after: str | None) -> pages.Page[ModelInfo]:
        """Return a page of all models, sorted by name."""
        bundled = {info.model: info for info in await asyncio.to_thread(self._models.list)}
        async with self._database.session() as session:
            own = dict(map(tuple, await session.session.all(LIST_MODELS, tenant_id=tenant_id)))
        names = sorted(
            name for name in bundled.keys() | own.keys() if after is None or name > after
        )
        page = (merged_info(name, bundled.get(name), own.get(name)) for name in names[:limit])
        return pages.Page(page, has_more=len(names) > limit)

    async def get(self, tenant_id: str, model: str) -> ModelInfo:
        """Return a model's limits and prices; raises NotFound."""
        bundled = await asyncio.to_thread(self._models.find, model)
        async with self._database.session() as session:
            own = await session.session.value(FIND_MODEL, tenant_id=tenant_id, model=model)
        if bundled is None and own is None:
            raise NotFound(f"The model {model!r} is unknown", {"model": model})
        return merged_info(model, bundled, own)

    async def find_own_info(self, tenant_id: str, model: str) -> str | None:
        """Return the tenant's own values as JSON text; None without any or without a database."""
        with suppress(ServiceUnavailable):
            async with self._database.session() as session:
                info: str | None = await session.session.value(
                    FIND_MODEL, tenant_id=tenant_id, model=model
                )
                return info
        return None

    async def put(self, tenant_id: str, model: str, info: Mapping[str, Any]) -> ModelInfo:
        """Set the tenant's own values, and return the merged ones."""
        async with self._database.session() as session:
            own = {"tenant_id": tenant_id, "model": model, "info": json_text.dumps(info)}
            await session.session.run(ADD_MODEL, **own)
        return await self.get(tenant_id, model)

    async def remove(self, tenant_id: str, model: str) -> None:
        """Delete the tenant's own values; raises NotFound where there are none."""
        async with self._database.session() as session:
            if not await session.session.run(REMOVE_MODEL, tenant_id=tenant_id, model=model):
                raise NotFound(f"You have set nothing for {model!r}", {"model": model})


@router.get("/v1/models", summary="List models")
async def list_models(request: Request, limit: Limit = 50, cursor: Cursor = None) -> ModelPage:
    """Return all models by name, with the source of each number."""
    after = cursors.decode(cursor, "models")
    page = await services(request).registry.list(tenant_of(request), limit, after)
    return ModelPage.up_to("models", page, "model")


@router.get("/v1/models/{model:path}", summary="Read a model")
async def get_model(request: Request, model: ModelPath) -> ModelInfo:
    """Return a model's limits and prices; your own override the bundled ones."""
    return await services(request).registry.get(tenant_of(request), model_from(model))


@router.put("/v1/models/{model:path}", summary="Set a model's limits and prices")
async def set_model(request: Request, model: ModelPath, body: OwnModelInfo) -> ModelInfo:
    """Set your own limits and prices of a model; fields that are omitted keep the bundled ones."""
    info = body.model_dump(exclude_none=True)
    return await services(request).registry.put(tenant_of(request), model_from(model), info)


@router.delete("/v1/models/{model:path}", summary="Delete your limits and prices of a model")
async def delete_model(request: Request, model: ModelPath) -> Deleted:
    """Delete your own limits and prices of a model; the bundled ones apply again."""
    await services(request).registry.remove(tenant_of(request), model_from(model))
    return Deleted(deleted={"models": 1})
