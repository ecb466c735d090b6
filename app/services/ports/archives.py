"""Ports for archived conversations."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Protocol

from app.domain.conversations.archive import (
    Archive,
    ArchiveCandidate,
    ArchivedOwner,
    ArchiveSums,
    ArchiveWriter,
)


class ArchiveRepository(Protocol):
    """Moves the rows of conversations out of the database and back.

    An archived conversation has no row in `heads`: whatever reads or changes conversations does not
    find it.
    """

    async def candidates(
        self, after: str, idle_since: datetime, limit: int
    ) -> list[ArchiveCandidate]:
        """Return conversations that are not archived, by id from the one after `after` on."""
        ...

    async def copy_out(
        self,
        candidate: ArchiveCandidate,
        idle_since: datetime,
        writer: ArchiveWriter,
        write: Callable[[bytes], Awaitable[None]],
    ) -> ArchiveSums | None:
        """Write the text of an archive, as of one moment.

        None if the conversation cannot be archived any more. Call it first in a transaction.
        """
        ...

    async def move_out(
        self,
        candidate: ArchiveCandidate,
        idle_since: datetime,
        sums: ArchiveSums,
        archive: Archive,
        object_bytes: int,
    ) -> bool:
        """Delete the rows that an archive holds; False if they are not those any more.

        Then the transaction must not be committed.
        """
        ...

    async def find(self, tenant_id: str, conversation_id: str) -> Archive | None:
        """Return what is known of a tenant's conversation; None if it never was archived."""
        ...

    async def among(self, tenant_id: str, conversation_ids: Collection[str]) -> list[str]:
        """Return those of a tenant's conversations that are archived."""
        ...

    async def lock(self, archive: Archive) -> bool:
        """Lock an archived conversation until the transaction ends; False if it is not any more."""
        ...

    async def move_in(self, archive: Archive, texts: AsyncIterator[bytes]) -> None:
        """Store the rows of an archive; the conversation is locked.

        Raises DamagedArchive unless they are the rows that were archived.
        """
        ...

    async def lock_to_remove(self, tenant_id: str, conversation_id: str) -> ArchivedOwner | None:
        """Lock an archived conversation until the transaction ends; None if it is not archived."""
        ...


class ArchiveFile(Protocol):
    """The text of an archive, compressed, in a temporary file."""

    async def write(self, text: bytes) -> None:
        """Add a piece of the text."""
        ...

    async def finish(self) -> int:
        """Complete the file, and return its size in bytes."""
        ...

    def texts(self) -> AsyncIterator[bytes]:
        """Yield the text in pieces; raises DamagedArchive."""
        ...


class ArchiveStore(Protocol):
    """Stores archives as objects; its methods raise ServiceUnavailable."""

    def new_file(self) -> AbstractAsyncContextManager[ArchiveFile]:
        """Open a file to write an archive to; it is deleted at the end of the block."""
        ...

    async def add(
        self, tenant_id: str, conversation_id: str, content_id: str, file: ArchiveFile
    ) -> str:
        """Store a complete file as an object, and return its key."""
        ...

    def opened(self, object_key: str) -> AbstractAsyncContextManager[ArchiveFile]:
        """Read an object into a file, which is deleted at the end of the block."""
        ...

    async def remove(self, object_keys: Sequence[str]) -> None:
        """Delete objects; missing ones are no error."""
        ...
