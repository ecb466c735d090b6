"""The model registry of a tenant: bundled entries, overridden by its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from app.common import json_text
from app.common.errors import NotFound, ServiceUnavailable
from app.common.pages import Page
from app.models.limits import ModelInfo, Models, merged_entry
from app.repositories import Database


class RegistryService:
    """Lists, reads and overrides entries of models."""

    def __init__(self, database: Database, models: Models) -> None:
        self._database = database
        self._models = models

    async def list(self, tenant_id: str, limit: int, after: str | None) -> Page[ModelInfo]:
        """Return a page of all models, sorted by name."""
        bundled = {info.model: info for info in await asyncio.to_thread(self._models.list)}
        async with self._database.session() as session:
            own = dict(await session.tenants.list_models(tenant_id))
        names = sorted(
            name for name in bundled.keys() | own.keys() if after is None or name > after
        )
        page = (merged_entry(name, bundled.get(name), own.get(name)) for name in names[:limit])
        return Page(page, has_more=len(names) > limit)

    async def get(self, tenant_id: str, model: str) -> ModelInfo:
        """Return a model's entry; raises NotFound."""
        bundled = await asyncio.to_thread(self._models.find, model)
        async with self._database.session() as session:
            own = await session.tenants.find_model(tenant_id, model)
        if bundled is None and own is None:
            raise NotFound(f"The model {model!r} is unknown", {"model": model})
        return merged_entry(model, bundled, own)

    async def find_entry(self, tenant_id: str, model: str) -> str | None:
        """Return the tenant's own entry as JSON text; None without one or without a database."""
        with suppress(ServiceUnavailable):
            async with self._database.session() as session:
                return await session.tenants.find_model(tenant_id, model)
        return None

    async def put(self, tenant_id: str, model: str, entry: Mapping[str, Any]) -> ModelInfo:
        """Add or replace the tenant's own entry, and return the merged one."""
        async with self._database.session() as session:
            await session.tenants.set_model(tenant_id, model, json_text.dumps(entry))
        return await self.get(tenant_id, model)

    async def remove(self, tenant_id: str, model: str) -> None:
        """Delete the tenant's own entry; raises NotFound when there is none."""
        async with self._database.session() as session:
            if not await session.tenants.remove_model(tenant_id, model):
                raise NotFound(f"You have no entry for {model!r}", {"model": model})
