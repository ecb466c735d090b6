"""The work of `context-service tenants export` and `delete`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import BinaryIO

from app.composition import compose, utc_now
from app.keys import actor
from app.services.snapshots.exports import ExportService
from app.services.snapshots.tenant_data import TenantDataService
from app.settings import Settings


async def export(tenant_id: str, file: BinaryIO, settings: Settings) -> int:
    """Write the export of a tenant to a file; return the number of bytes."""
    size = 0
    async with _opened(settings) as service:
        async for piece in service.export(tenant_id):
            file.write(piece)
            size += len(piece)
    return size


async def delete(tenant_id: str, settings: Settings) -> dict[str, int]:
    """Delete a tenant and return the numbers of rows by table."""
    async with _opened(settings) as service:
        counts = await service.delete(tenant_id)
    return {name: count for name, count in sorted(counts.items()) if count}


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncIterator[TenantDataService]:
    parts = compose(settings)
    await parts.store.open()
    try:
        exports = ExportService(parts.database, parts.outputs, utc_now)
        yield TenantDataService(parts.database, parts.conversations, exports, actor())
    finally:
        await parts.store.close()
        await parts.gateway.close()
