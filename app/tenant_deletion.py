"""The work of `context-service tenants delete`."""

from __future__ import annotations

from app.composition import compose
from app.keys import log_change
from app.services.conversations.tenant_deletion import TenantDeletion
from app.settings import Settings


async def delete(tenant_id: str, settings: Settings) -> dict[str, int]:
    """Delete a tenant and return the numbers of rows by table."""
    parts = compose(settings)
    await parts.store.open()
    log_change("tenant_deletion_begun", tenant_id=tenant_id)
    try:
        counts = await TenantDeletion(parts.database, parts.conversations).delete(tenant_id)
    finally:
        await parts.store.close()
        await parts.gateway.close()
    rows = {name: count for name, count in sorted(counts.items()) if count}
    log_change("tenant_deleted", tenant_id=tenant_id, rows=rows)
    return rows
