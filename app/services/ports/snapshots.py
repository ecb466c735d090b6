"""Ports for snapshots and forks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from app.domain.common.pages import UNBOUNDED, Bound, Page
from app.domain.conversations.conversation import ConversationState
from app.domain.conversations.view import Span
from app.domain.snapshots.entries import ImportedMessage
from app.domain.snapshots.exports import RecordKind
from app.domain.snapshots.snapshots import Snapshot, SnapshotPart
from app.domain.tool_output.blobs import Blob


class SnapshotRepository(Protocol):
    """Snapshots, their parts and the messages of imports."""

    async def lock_conversations(
        self, tenant_id: str, conversation_ids: Sequence[str]
    ) -> Mapping[str, int]:
        """Lock conversations against deletion and redaction in this transaction.

        Returns those that exist, each with the view version of its last redaction.
        """
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

    async def lock_source(self, source_id: str) -> int | None:
        """Wait for redactions in the source and hold up new ones, without locking its rows.

        Returns the view version of the last one, None for a deleted source.
        """
        ...

    async def set_head(self, fork_id: str, state: ConversationState) -> None:
        """Set the head of a copied log, without its window and its view.

        Turns, tokens and the newest time are those of the last message of the log. Tools stay
        promoted if the log has the turn that promoted them.
        """
        ...


class ExportRepository(Protocol):
    """The rows of a conversation as the records of its export, and back."""

    async def settings(self, tenant_id: str, conversation_id: str) -> Mapping[str, Any] | None:
        """Return the fields of `settings` and `state`, the `own_id` and when it was created."""
        ...

    async def page(
        self,
        kind: RecordKind,
        conversation_id: str,
        head_seq: int,
        after: Mapping[str, Any] | None,
        bound: Bound,
    ) -> Page[Mapping[str, Any]]:
        """Return the records of a kind after one of them, those with a seq up to the head."""
        ...

    async def begin(self, conversation_id: str) -> bool:
        """Create a conversation that is imported, which no tenant sees; False for a used id."""
        ...

    async def renew(self, conversation_id: str) -> bool:
        """Note that an import continues, and lock it; False if it was removed."""
        ...

    async def add(
        self, kind: RecordKind, conversation_id: str, records: Sequence[Mapping[str, Any]]
    ) -> bool:
        """Store records of an import; False if a message id is used twice."""
        ...

    async def publish(
        self,
        tenant_id: str,
        conversation_id: str,
        own_id: str | None,
        settings: Mapping[str, Any],
        state: Mapping[str, Any],
    ) -> bool:
        """Give an imported conversation to its tenant; False if the import was removed."""
        ...

    async def stale(self, before: datetime, limit: int) -> list[str]:
        """Return imports that have not continued since a time."""
        ...

    async def lock_stale(self, conversation_id: str, before: datetime) -> bool:
        """Lock an import against continuing; False if it has continued since a time."""
        ...
