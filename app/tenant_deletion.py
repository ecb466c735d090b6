"""The work of `context-service tenants delete`."""

from __future__ import annotations

from app.composition import compose
from app.keys import actor
from app.services.conversations.tenant_deletion import TenantDeletion
from app.settings import Settings


async def delete(tenant_id: str, settings: Settings) -> dict[str, int]:
    """Delete a tenant and return the numbers of rows by table."""
    parts = compose(settings)
    await parts.store.open()
    try:
        counts = await TenantDeletion(parts.database, parts.conversations, actor()).delete(
            tenant_id
        )
    finally:
        await parts.store.close()
        await parts.gateway.close()
    return {name: count for name, count in sorted(counts.items()) if count}
