"""Ports for snapshots and forks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from app.domain.common.pages import UNBOUNDED, Bound, Page
from app.domain.conversations.conversation import ConversationState
from app.domain.conversations.view import Span
from app.domain.snapshots.snapshots import Imported, Snapshot, SnapshotPart
from app.domain.tool_output.blobs import Blob


class SnapshotRepository(Protocol):
    """Sentences about snapshots (I)."""

    async def hold(self, tenant_id: str, conversation_ids: Sequence[str]) -> list[str]:
        """Keep conversations from being deleted until the transaction ends.

        Returns those of them that there are.
        """
        ...

    async def first_at(self, conversation_id: str, seq: int) -> datetime | None:
        """Return the time of a message as the active window sees it, None without such a one."""
        ...

    async def add(
        self,
        tenant_id: str,
        snapshot: Snapshot,
        parts: Sequence[SnapshotPart] = (),
        messages: Sequence[Imported] = (),
    ) -> bool:
        """Store a snapshot; False when its id is taken."""
        ...

    async def find(self, tenant_id: str, session_id: str) -> Snapshot | None:
        """Return a snapshot without its messages, or None."""
        ...

    async def page(
        self,
        tenant_id: str,
        agent_id: str | None,
        conversation_id: str | None,
        limit: int,
        before: tuple[datetime, str] | None,
        bound: Bound = UNBOUNDED,
    ) -> Page[Snapshot]:
        """Return a page, newest first; `before` is the time and id it starts after (I3)."""
        ...

    async def parts(self, tenant_id: str, session_id: str) -> list[SnapshotPart]:
        """Return what a snapshot holds of each conversation, the oldest conversation first."""
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
        """Return entries of an imported snapshot after a position, each with its own.

        With a `source_id` only those of that conversation.
        """
        ...

    async def remove(self, tenant_id: str, session_id: str) -> Mapping[str, int]:
        """Delete a snapshot; returns rows deleted by table."""
        ...

    async def seqs_of(self, conversation_id: str, ids: Sequence[str]) -> Mapping[str, int]:
        """Return the seqs of those of the messages that the log has, by id."""
        ...

    async def calls_in(self, conversation_id: str, spans: Sequence[Span]) -> frozenset[str]:
        """Return the ids of all calls in these spans."""
        ...


class ForkRepository(Protocol):
    """Sentences about copying a conversation into another one (I6)."""

    async def add(self, tenant_id: str, source_id: str, fork_id: str, metadata: str | None) -> bool:
        """Create a conversation with an empty log and all settings of another one.

        `metadata` replaces that of the source. False when the id is taken; raises NotFound when
        there is no such source.
        """
        ...

    async def refs(self, source_id: str, through_seq: int) -> list[str]:
        """Return the ids of the blobs that messages up to a seq refer to."""
        ...

    async def copy_blobs(self, source_id: str, fork_id: str, blobs: Sequence[Blob]) -> bool:
        """Copy blobs with their chunks; their object keys are those of the copies.

        False when one of them is not any more what it was.
        """
        ...

    async def size(self, source_id: str, through_seq: int) -> int:
        """Return the bytes of the messages up to a seq, and of the blobs that they refer to."""
        ...

    async def copy_marks(
        self, source_id: str, fork_id: str, through_seq: int, compaction_id: str | None
    ) -> None:
        """Copy the pins and the uses of blobs up to a seq, and a receipt with all before it."""
        ...

    async def copy_messages(
        self, source_id: str, fork_id: str, after_seq: int, through_seq: int
    ) -> int:
        """Copy the messages after one seq and up to another, and return how many there were."""
        ...

    async def set_head(self, fork_id: str, state: ConversationState) -> None:
        """Set the head of a log that was copied, but for its window and what is shown of it.

        Turns, tokens and the newest time are those of the log's last message. Tools stay promoted
        if the turn they were promoted in is not yet to come.
        """
        ...
