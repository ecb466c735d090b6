"""Collection (garbage collection) of blobs that nothing refers to [tool-output.collect].

A collection decides and deletes under the conversation's lock, so that no append can refer to a
blob that it deletes [tool-output.collect-race].
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from app.blobs.blobs import Blob
from app.blobs.store import BlobStore
from app.common import json_text
from app.common.errors import Conflict, Gone, NotFound
from app.conversations.conversation import Conversation
from app.conversations.events import EventType
from app.conversations.lookup import lock_conversation
from app.conversations.messages.stored_results import StoredResults
from app.conversations.settings_resolver import SettingsResolver
from app.repositories import Database, Repositories
from app.tool_output.reading import find_message

_SWEEP_BATCH = 100
_MIN_ORPHAN_AGE = timedelta(hours=1)
_log = logging.getLogger("app.blobs")


@dataclass(frozen=True, slots=True)
class CollectionResult:
    """The blobs and unfinished uploads that a collection deleted; a dry run deletes none."""

    dry_run: bool
    blobs: tuple[Blob, ...]
    uploads: int


class BlobCollector:
    """Deletes uploads on request, and collects blobs."""

    def __init__(
        self,
        database: Database,
        resolver: SettingsResolver,
        store: BlobStore,
        outputs: StoredResults,
        now: Callable[[], datetime],
        *,
        upload_ttl_seconds: float,
    ) -> None:
        self._database = database
        self._resolver = resolver
        self._store = store
        self._outputs = outputs
        self._now = now
        self._upload_ttl = timedelta(seconds=upload_ttl_seconds)

    async def remove(self, tenant_id: str, conversation_id: str, ref: str) -> Blob:
        """Delete an upload that no message refers to; raises Conflict for any other blob."""
        async with self._database.transaction() as session:
            await self._lock(session, tenant_id, conversation_id)
            blob = await session.blobs.find(conversation_id, ref)
            if blob is None:
                if await find_message(session, conversation_id, ref) is not None:
                    raise Conflict(f"Output {ref} is part of the log", {"ref": ref})
                raise NotFound(f"No blob {ref!r} in this conversation", {"ref": ref})
            if blob.collected_at is not None:
                raise Gone(f"Output {ref} was collected", {"ref": ref})
            if blob.attached:
                raise Conflict(f"A message refers to blob {ref}", {"ref": ref})
            await session.blobs.collect(conversation_id, [ref])
        await self._outputs.delete_objects(blob.object_key)
        return blob

    async def collect(
        self,
        tenant_id: str,
        conversation_id: str,
        *,
        dry_run: bool = False,
        uploaded_before: datetime | None = None,
    ) -> CollectionResult:
        """Collect blobs that nothing refers to; with `gc.drop_compacted` also compacted ones.

        Uploads after `uploaded_before` stay, because a message may still be appended for them.
        """
        async with self._database.transaction() as session:
            conversation = await self._lock(session, tenant_id, conversation_id)
            compacted = self._resolver.policy_of(conversation).gc.drop_compacted
            blobs = await session.blobs.collectable(
                conversation_id, uploaded_before, compacted=compacted
            )
            begun_before = self._now() - self._upload_ttl
            uploads = await session.blobs.stale_uploads(conversation_id, begun_before)
            if not dry_run:
                await _delete(session, conversation_id, blobs, uploads)
        if not dry_run:
            await self._outputs.delete_objects(*(blob.object_key for blob in blobs))
        return CollectionResult(dry_run, tuple(blobs), len(uploads))

    async def _lock(
        self, session: Repositories, tenant_id: str, conversation_id: str
    ) -> Conversation:
        model = self._resolver.default_model
        return await lock_conversation(session, tenant_id, conversation_id, model)

    async def collect_all(self) -> int:
        """Collect in every conversation that may have something to collect; return the blobs."""
        uploaded_before = self._now() - self._upload_ttl
        collected = 0
        visited: set[str] = set()
        while True:
            async with self._database.session() as session:
                due = await session.blobs.list_due(uploaded_before, _SWEEP_BATCH)
            unvisited = [item for item in due if item[1] not in visited]
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
                collected += len(result.blobs)
        await self._sweep_objects()
        return collected

    async def _sweep_objects(self) -> None:
        """Delete objects that no row names, and parts of unfinished objects.

        Refused appends and killed uploads leave such objects [tool-output.orphans].
        """
        older_than = self._now() - max(self._upload_ttl, _MIN_ORPHAN_AGE)
        if dropped := await self._store.drop_parts(older_than):
            _log.info("upload_parts_dropped", extra={"data": {"parts": dropped}})
        async for key, conversation_id, content_id in self._store.orphans(older_than):
            async with self._database.session() as session:
                is_used = await session.blobs.holds_content(conversation_id, content_id)
            if not is_used:
                await self._outputs.delete_objects(key)


async def _delete(
    session: Repositories, conversation_id: str, blobs: list[Blob], uploads: list[str]
) -> None:
    if blobs:
        await session.blobs.collect(conversation_id, [blob.id for blob in blobs])
        size = sum(blob.byte_size for blob in blobs)
        data = json_text.dumps({"blobs": len(blobs), "byte_size": size})
        await session.events.add(conversation_id, EventType.GC, data)
    for content_id in uploads:
        await session.blobs.drop_upload(conversation_id, content_id)
    await session.blobs.mark_swept(conversation_id)
