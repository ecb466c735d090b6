"""API keys for tests, as `context-service keys create` makes them."""

from __future__ import annotations

from datetime import timedelta

from app.composition import Services, utc_now
from app.settings import Settings


async def create(
    tenant_id: str, name: str, days: int | None, settings: Settings, *, read_only: bool = False
) -> str:
    """Create a key and return it."""
    services = Services(settings)
    await services.store.open()
    expires_at = utc_now() + timedelta(days=days) if days is not None else None
    try:
        return await services.keys.create(tenant_id, name, expires_at, read_only=read_only)
    finally:
        await services.store.close()
