"""The work of `context-service tenants delete`."""

from __future__ import annotations

import logging

from app.cli.api_keys import by_account
from app.composition import Services
from app.conversations.tenant_deletion import TenantDeletion
from app.settings import Settings

_log = logging.getLogger("app.audit")


async def delete(tenant_id: str, settings: Settings) -> dict[str, int]:
    """Delete a tenant and return the numbers of rows by table."""
    services = Services(settings)
    await services.store.open()
    _log.info("tenant_deletion_begun", extra={"data": by_account(tenant_id=tenant_id)})
    try:
        counts = await TenantDeletion(services.database, services.conversations).delete(tenant_id)
    finally:
        await services.store.close()
        await services.gateway.close()
    rows = {name: count for name, count in sorted(counts.items()) if count}
    _log.info("tenant_deleted", extra={"data": by_account(tenant_id=tenant_id, rows=rows)})
    return rows
