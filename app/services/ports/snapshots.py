"""Ports for snapshots and forks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from app.domain.common.pages import UNBOUNDED, Bound, Page
from app.domain.conversations.conversation import ConversationState
from app.domain.conversations.view import Span
from app.domain.snapshots.entries import ImportedMessage
from app.domain.snapshots.snapshots import Snapshot, SnapshotPart
from app.domain.tool_output.blobs import Blob


class SnapshotRepository(Protocol):
    """Snapshots, their parts and the messages of imports."""

    async def lock_conversations(
        self, tenant_id: str, conversation_ids: Sequence[str]
    ) -> list[str]:
        """Lock conversations against deletion in this transaction; return those that exist."""
        ...

    async def first_at(self, conversation_id: str, seq: int) -> datetime | None:
        """Return the time of a message in the active window, None if there is no such message."""
        ...

    async def add(
        self,
        tenant_id: str,
        snapshot: Snapshot,
        parts: Sequence[SnapshotPart] = (),
        messages: Sequence[ImportedMessage] = (),
    ) -> bool:
        """Store a snapshot; return False for a used id."""
        ...

    async def find(self, tenant_id: str, session_id: str) -> Snapshot | None:
        """Return a snapshot without its messages, or None."""
        ...

    async def page(
        self,
        tenant_id: str,
        agent_id: str | None,
        conversation_id: str | None,
        public_id: str | None,
        limit: int,
        before: tuple[datetime, str] | None,
        bound: Bound = UNBOUNDED,
    ) -> Page[Snapshot]:
        """Return a page, newest first, after the time and id in `before`.

        Logs have the messages of a conversation by its key, imports by its public id.
        """
        ...

    async def parts(self, tenant_id: str, session_id: str) -> list[SnapshotPart]:
        """Return the parts of a snapshot, the oldest conversation first."""
        ...

    async def messages(
        self,
        tenant_id: str,
        session_id: str,
        after: int,
        limit: int,
        source_id: str | None = None,
        bound: Bound = UNBOUNDED,
    ) -> Page[tuple[int, str]]:
        """Return positions and entries of an import after a position.

        A `source_id` selects the entries of one source conversation.
        """
        ...

    async def remove(self, tenant_id: str, session_id: str) -> Mapping[str, int]:
        """Delete a snapshot; return the rows deleted by table."""
        ...

    async def seqs_of(self, conversation_id: str, ids: Sequence[str]) -> Mapping[str, int]:
        """Return the seqs of those messages that the log has, by id."""
        ...

    async def calls_in(self, conversation_id: str, spans: Sequence[Span]) -> frozenset[str]:
        """Return the ids of all calls in spans of a log."""
        ...


class ForkRepository(Protocol):
    """Copies of the rows of a conversation."""

    async def add(
        self,
        tenant_id: str,
        source_id: str,
        fork_id: str,
        metadata: str | None,
        own_id: str | None = None,
    ) -> bool:
        """Create a conversation with an empty log and the settings of the source.

        `metadata` replaces the metadata of the source. Returns False for a used key; raises
        NotFound for an unknown source.
        """
        ...

    async def refs(self, source_id: str, through_seq: int) -> list[str]:
        """Return the ids of the blobs that messages up to a seq refer to."""
        ...

    async def copy_blobs(self, source_id: str, fork_id: str, blobs: Sequence[Blob]) -> bool:
        """Copy blobs with their chunks, under the object keys of the copies.

        Returns False if one of them has changed.
        """
        ...

    async def size(self, source_id: str, through_seq: int) -> int:
        """Return the bytes of the messages up to a seq, and of the blobs that they refer to."""
        ...

    async def copy_pins_and_compactions(
        self, source_id: str, fork_id: str, through_seq: int, compaction_id: str | None
    ) -> None:
        """Copy pins and uses of blobs up to a seq, and a compaction with those before it."""
        ...

    async def copy_messages(
        self, source_id: str, fork_id: str, after_seq: int, through_seq: int
    ) -> int:
        """Copy the messages after one seq and up to another; return their number."""
        ...

    async def set_head(self, fork_id: str, state: ConversationState) -> None:
        """Set the head of a copied log, without its window and its view.

        Turns, tokens and the newest time are those of the last message of the log. Tools stay
        promoted if the log has the turn that promoted them.
        """
        ...
