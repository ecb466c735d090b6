"""The collection of blobs: the removal of those that nothing refers to.

It decides and deletes under the conversation's lock, so that no append can refer to a blob that it
deletes [tool-output.collect, tool-output.collect-race].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from app.blobs.byte_store import BlobStore
from app.blobs.chunks import Blob, ToolOutputRef
from app.blobs.repository import COLLECT, COLLECTABLE, LIST_DUE, SET_COLLECTED, STALE_UPLOADS
from app.common.answer_schemas import answer
from app.common.errors import NotFound
from app.conversations.events import EventType
from app.conversations.messages.stored_results import StoredResults
from app.conversations.settings_resolver import SettingsResolver
from app.database.sql import read
from app.repositories import Database

_COLLECTION_BATCH = 100
_MIN_ORPHAN_AGE = timedelta(hours=1)


@answer()
@dataclass(frozen=True, slots=True)
class CollectedBlobs:
    """The blobs that were collected, or would be in a dry run."""

    dry_run: bool
    """Whether this was a dry run, which collects nothing."""
    collected: tuple[ToolOutputRef, ...]
    """The blobs; reading one is now a `410`."""
    byte_size: int
    """Total size of the blobs in bytes."""
    upload_count: int
    """Number of unfinished uploads that were dropped."""


@dataclass(eq=False, repr=False)
class BlobCollection:
    """Collects blobs. An upload without a message stays for `_upload_ttl`."""

    _database: Database
    _resolver: SettingsResolver
    _store: BlobStore
    _outputs: StoredResults
    _now: Callable[[], datetime]
    _upload_ttl: timedelta

    async def collect(
        self,
        tenant_id: str,
        conversation_id: str,
        *,
        dry_run: bool = False,
        uploaded_before: datetime | None = None,
    ) -> CollectedBlobs:
        """Collect blobs that nothing refers to; with `drop_compacted` also compacted ones.

        Uploads after `uploaded_before` stay, because a message may still be appended for them.
        """
        async with self._database.transaction() as session:
            conversation = await session.conversations.get(tenant_id, conversation_id, lock=True)
            compacted = self._resolver.policy_of(conversation).collection.drop_compacted
            sql, own = session.session, {"conversation_id": conversation_id}
            ages = {
                "uploaded_before": uploaded_before,
                "begun_before": self._now() - self._upload_ttl,
            }
            rows = await sql.all(COLLECTABLE, **own, **ages, compacted=compacted)
            blobs = [read(Blob, row) for row in rows]
            size = sum(blob.byte_size for blob in blobs)
            uploads = await sql.all(STALE_UPLOADS, **own, **ages)
            if not dry_run:
                if blobs:
                    await sql.run(COLLECT, **own, refs=[blob.id for blob in blobs])
                    sizes = {"blob_count": len(blobs), "byte_size": size}
                    await session.events.add(conversation_id, EventType.COLLECTED, **sizes)
                for row in uploads:
                    await session.blobs.drop_upload(conversation_id, str(row["content_id"]))
                await sql.run(SET_COLLECTED, **own)
        if not dry_run:
            await self._outputs.delete_objects(*(blob.object_key for blob in blobs))
        return CollectedBlobs(dry_run, tuple(blob.ref for blob in blobs), size, len(uploads))

    async def collect_all(self) -> int:
        """Collect in every conversation that may have something to collect; return the blobs."""
        uploaded_before = self._now() - self._upload_ttl
        collected = 0
        visited: set[str] = set()
        while True:
            async with self._database.session() as session:
                due = await session.session.all(
                    LIST_DUE, uploaded_before=uploaded_before, limit=_COLLECTION_BATCH
                )
            unvisited = [(row[0], str(row[1])) for row in due if str(row[1]) not in visited]
            if not unvisited:
                break
            for tenant_id, conversation_id in unvisited:
                visited.add(conversation_id)
                try:
                    result = await self.collect(
                        tenant_id, conversation_id, uploaded_before=uploaded_before
                    )
                except NotFound:
                    continue
                collected += len(result.collected)
        await self._delete_orphans()
        return collected

    async def _delete_orphans(self) -> None:
        """Delete objects that no row names.

        Refused appends and killed uploads leave such objects [tool-output.orphans].
        """
        older_than = self._now() - max(self._upload_ttl, _MIN_ORPHAN_AGE)
        async for key, conversation_id, content_id in self._store.orphans(older_than):
            async with self._database.session() as session:
                is_used = await session.blobs.holds_content(conversation_id, content_id)
            if not is_used:
                await self._outputs.delete_objects(key)
