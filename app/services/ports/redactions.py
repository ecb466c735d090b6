"""The port for redactions."""

from __future__ import annotations

from typing import Protocol

from app.domain.conversations.log.redaction import NewRedaction, Redaction
from app.domain.conversations.log.tombstones import Tombstone


class RedactionRepository(Protocol):
    """Deletes the content of messages, in a transaction that begins with `replace`."""

    async def copies(
        self, conversation_id: str, seq: int, message_id: str, limit: int
    ) -> list[str]:
        """Return conversations in which this message, or its copy by a fork, is not redacted."""
        ...

    async def find(self, conversation_id: str, seq: int) -> Redaction | None:
        """Return the record of a redaction, or None."""
        ...

    async def replace(self, conversation_id: str, seq: int, tombstone: Tombstone) -> bool:
        """Lock the conversation, and replace a message in its log and its search index.

        False for a message that is redacted already, and for a deleted conversation.
        """
        ...

    async def remove_blobs(self, conversation_id: str, seq: int) -> list[str]:
        """Delete the blobs that only this message refers to; return the keys of their objects."""
        ...

    async def drop_summaries(self, conversation_id: str, seq: int) -> bool:
        """Delete the summaries that used a message, and begin a new version of the view.

        Returns whether the shown summary was one of them: the whole window is shown then.
        """
        ...

    async def drop_epoch_texts(self, conversation_id: str) -> None:
        """Delete the summaries from the starts of all epochs."""
        ...

    async def record(self, conversation_id: str, new: NewRedaction) -> None:
        """Store the record of a redaction."""
        ...
