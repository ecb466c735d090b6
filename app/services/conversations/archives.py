"""Archive: conversations without activity move to the object store, and return when they are used.

1. The text of an archive is written to a file, stored as an object and read back, before a
   transaction deletes the rows that it holds. If the conversation changes meanwhile, it stays.
2. A request that does not find a conversation asks here, and is tried again: conversations that are
   not archived cost nothing. A restore stores the rows, and deletes the object afterwards.
3. So at every moment the database or a complete object has the rows. What a crash leaves is an
   object that no row names, which the sweep of blobs deletes.
4. Concurrent requests for a conversation wait for one restore, also in several processes. A restore
   goes on when its requests have given up.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection
from contextlib import suppress
from contextvars import Context
from datetime import datetime, timedelta
from functools import partial
from time import perf_counter

from app.domain.common.errors import ServiceUnavailable
from app.domain.conversations.archive import (
    Archive,
    ArchiveCandidate,
    ArchiveReader,
    ArchiveSums,
    ArchiveWriter,
    DamagedArchive,
)
from app.services.common.observers import UNOBSERVED
from app.services.ports import ArchiveFile, ArchiveStore, Database, Observer

MAX_ARCHIVE_SECONDS = 600.0
"""After this time an archive is given up. The sweep deletes objects without a row after an hour."""
MAX_FAILURES = 3
"""Conversations in a row that cannot be archived, after which a run ends."""
MAX_RESTORES = 2
"""Restores of a process at the same time: each takes a connection and a few mebibytes."""
MAX_WAIT_SECONDS = 30.0
"""How long a request waits for a restore, which goes on after that."""
_BATCH = 500
_LOWEST_ID = "00000000-0000-0000-0000-000000000000"

_log = logging.getLogger("app.archive")


class _Changed(Exception):
    """The conversation is not the one that was archived; rolls the transaction back."""


class ArchiveService:
    """Archives conversations and restores them.

    Without `after`, the time without activity after which conversations are archived, none is.
    """

    def __init__(
        self,
        database: Database,
        store: ArchiveStore,
        new_id: Callable[[], str],
        now: Callable[[], datetime],
        after: timedelta | None = None,
        observer: Observer = UNOBSERVED,
    ) -> None:
        self._database = database
        self._store = store
        self._new_id = new_id
        self._now = now
        self._after = after
        self._observer = observer
        self._restores: dict[str, asyncio.Task[None]] = {}
        self._may_restore = asyncio.Semaphore(MAX_RESTORES)

    # --- archiving ------------------------------------------------------------------------

    async def archive_all(self) -> int:
        """Archive the conversations whose time has come, and return their number.

        One that cannot be archived now is tried again by the next run. A run ends after
        `MAX_FAILURES` in a row, because the store or the database is away.
        """
        if self._after is None:
            return 0
        archived, failures, last = 0, 0, _LOWEST_ID
        while True:
            idle_since = self._now() - self._after
            async with self._database.session() as session:
                page = await session.archives.candidates(last, idle_since, _BATCH)
            if not page:
                return archived
            last = page[-1].conversation_id
            # Workers that run at the same time rarely meet at one conversation.
            for candidate in random.sample(page, len(page)):
                if not candidate.is_archivable(idle_since):
                    continue
                outcome = await self._archive(candidate, idle_since)
                archived += outcome == "archived"
                failures = failures + 1 if outcome == "failed" else 0
                if failures == MAX_FAILURES:
                    return archived

    async def _archive(self, candidate: ArchiveCandidate, idle_since: datetime) -> str:
        """Archive a conversation; return `archived`, `changed` or `failed`."""
        outcome, started = "failed", perf_counter()
        try:
            async with asyncio.timeout(MAX_ARCHIVE_SECONDS):
                is_archived = await self._try_archive(candidate, idle_since)
            outcome = "archived" if is_archived else "changed"
        except (ServiceUnavailable, DamagedArchive, TimeoutError) as error:
            if _is_conflict(error):
                outcome = "changed"
            else:
                _log_failed(candidate.conversation_id, error)
        finally:
            self._observer.archived("archive", outcome, perf_counter() - started)
        return outcome

    async def _try_archive(self, candidate: ArchiveCandidate, idle_since: datetime) -> bool:
        content_id = self._new_id()
        tenant_id, conversation_id = candidate.tenant_id, candidate.conversation_id
        async with self._store.new_file() as file:
            async with self._database.transaction() as session:
                written = await session.archives.copy_out(
                    candidate, idle_since, ArchiveWriter(conversation_id), file.write
                )
            if written is None:
                return False
            object_bytes = await file.finish()
            object_key = await self._store.add(tenant_id, conversation_id, content_id, file)
        archive = Archive(tenant_id, conversation_id, content_id, object_key)
        is_loose = True
        try:
            async with self._store.opened(object_key) as stored:
                if await _checked(stored) != written:
                    raise DamagedArchive("the object is not what was written")
            is_loose = False  # a transaction whose answer is lost may be committed later
            async with self._database.transaction() as session:
                if not await session.archives.move_out(
                    candidate, idle_since, written, archive, object_bytes
                ):
                    raise _Changed
            return True
        except _Changed:
            is_loose = True
            return False
        finally:
            if is_loose:
                await self._remove(object_key)

    # --- restoring ------------------------------------------------------------------------

    async def restore(self, tenant_id: str, conversation_id: str) -> bool:
        """Restore a conversation; return whether a request that did not find it may be repeated.

        Raises ServiceUnavailable when the object cannot be read now, is damaged, or the restore
        takes longer than a request waits.
        """
        async with self._database.session() as session:
            archive = await session.archives.find(tenant_id, conversation_id)
        if archive is None:
            return False
        if archive.object_key is None:  # restored since the request has looked for it
            return True
        task = self._restores.get(conversation_id)
        if task is None:
            # An empty context: the task does not belong to the request that starts it.
            task = asyncio.create_task(
                self._restore(archive, archive.object_key), name="restore", context=Context()
            )
            self._restores[conversation_id] = task
            task.add_done_callback(partial(self._on_restored, conversation_id))
        done, _ = await asyncio.wait({task}, timeout=MAX_WAIT_SECONDS)
        if not done:
            raise ServiceUnavailable(
                "The conversation is being restored from the archive; try again",
                {"reason": "Restoring", "retry_after": 5},
            )
        await task
        return True

    async def restore_all(self, tenant_id: str, conversation_ids: Collection[str]) -> None:
        """Restore those of a tenant's conversations that are archived, one after the other."""
        if conversation_ids:
            async with self._database.session() as session:
                archived = await session.archives.among(tenant_id, conversation_ids)
            for conversation_id in archived:
                await self.restore(tenant_id, conversation_id)

    async def close(self) -> None:
        """Stop what is being restored; it stays archived."""
        running = list(self._restores.values())
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    async def _restore(self, archive: Archive, object_key: str) -> None:
        outcome, started = "failed", perf_counter()
        try:
            async with self._may_restore, self._store.opened(object_key) as file:
                written = await _checked(file)
                if written.conversation_id != archive.conversation_id:
                    raise DamagedArchive("it is that of another conversation")
                async with self._database.transaction() as session:
                    if await session.archives.lock(archive):
                        await session.archives.move_in(archive, file.texts())
            outcome = "restored"
        except DamagedArchive as error:
            outcome = "damaged"
            _log.error(
                "archive_damaged",
                extra={"data": {"conversation_id": archive.conversation_id, "reason": str(error)}},
            )
            raise ServiceUnavailable(
                f"The archive of the conversation is damaged: {error}",
                {"reason": "DamagedArchive", "retry_after": 3600},
            ) from error
        except ServiceUnavailable:
            # Another process may have restored it, and deleted the object.
            if await self._is_archive(archive):
                raise
            outcome = "restored"
        finally:
            self._observer.archived("restore", outcome, perf_counter() - started)
        await self._remove(object_key)

    def _on_restored(self, conversation_id: str, task: asyncio.Task[None]) -> None:
        del self._restores[conversation_id]
        if not task.cancelled():
            task.exception()  # logged already; its requests may have given up

    async def _is_archive(self, archive: Archive) -> bool:
        """Whether an object has the rows of a conversation; also if that cannot be found out."""
        try:
            async with self._database.session() as session:
                found = await session.archives.find(archive.tenant_id, archive.conversation_id)
        except ServiceUnavailable:
            return True
        return found is not None and found.object_key == archive.object_key

    async def _remove(self, object_key: str) -> None:
        """Delete an object that no row names; after a failure the sweep deletes it."""
        with suppress(ServiceUnavailable):
            await self._store.remove([object_key])


async def _checked(file: ArchiveFile) -> ArchiveSums:
    """Return what a file holds; raises DamagedArchive."""
    reader, last = ArchiveReader(), None
    async for text in file.texts():
        for part in reader.feed(text):
            last = part
    reader.finish()
    if not isinstance(last, ArchiveSums):
        raise DamagedArchive("it has no end")
    return last


def _is_conflict(error: Exception) -> bool:
    """Whether a transaction failed because another one has changed the same rows."""
    return isinstance(error, ServiceUnavailable) and error.facts.get("reason") in (
        "SerializationError",
        "DeadlockDetectedError",
        "LockNotAvailableError",
    )


def _log_failed(conversation_id: str, error: Exception) -> None:
    reason = error.facts.get("reason") if isinstance(error, ServiceUnavailable) else None
    data = {"conversation_id": conversation_id, "reason": reason or type(error).__name__}
    _log.warning("conversation_not_archived", extra={"data": data})
