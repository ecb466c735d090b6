"""Archives all conversations of a database once, as a worker does after days without activity."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta

from app.adapters.blobs.archives import ArchiveObjects
from app.adapters.blobs.object_store import ObjectStore
from app.adapters.postgres.database import PostgresDatabase
from app.composition import new_id, store_of, utc_now
from app.domain.common.errors import ServiceUnavailable
from app.services.conversations.archives import ArchiveService
from app.settings import read_settings

AFTER = timedelta(days=1)
_LATER = timedelta(days=7)


def archive() -> None:
    """Archive what has no open work; a database that is away ends it."""
    with suppress(ServiceUnavailable):
        asyncio.run(_archive_all())


async def _archive_all() -> None:
    settings = read_settings()
    assert settings.blob_store_url is not None
    store = store_of(settings)
    await store.open()
    try:
        await ArchiveService(
            PostgresDatabase(store),
            ArchiveObjects(ObjectStore(settings.blob_store_url)),
            new_id,
            lambda: utc_now() + _LATER,
            AFTER,
        ).archive_all()
    finally:
        await store.close()
