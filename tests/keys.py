"""API keys for tests, as `context-service keys create` makes them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from app.composition import Services, utc_now
from app.settings import Settings
from app.tenancy.api_keys import KeyService


async def create(
    tenant_id: str, name: str, days: int | None, settings: Settings, *, read_only: bool = False
) -> str:
    """Create a key and return it."""
    expires_at = utc_now() + timedelta(days=days) if days is not None else None
    async with _opened(settings) as keys:
        return await keys.create(tenant_id, name, expires_at, read_only=read_only)


async def revoke(key_id: str, settings: Settings) -> None:
    """Revoke a key."""
    async with _opened(settings) as keys:
        await keys.revoke(key_id)


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncIterator[KeyService]:
    services = Services(settings)
    await services.store.open()
    try:
        yield services.keys
    finally:
        await services.store.close()
