"""Redaction: the content of a message is replaced by a tombstone, for good.

1. The message and all that was made of its content change in one transaction: log, search index,
   blobs, summaries, starts of epochs, snapshots. The view has a new version then, so that every
   process renders the next payload anew.
2. Copies of the message in forks are redacted afterwards, each conversation in a transaction of its
   own. A repeated request continues where an interrupted one has stopped.
3. Objects are deleted after the rows that name them; after a failure the sweep deletes them.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.common import json_text
from app.common.errors import NotFound
from app.conversations.compactions import make_compaction_due
from app.conversations.events.events import EventType
from app.conversations.messages.redaction import NewRedaction, Redaction
from app.conversations.messages.stored_results import StoredResults
from app.conversations.messages.tombstones import Tombstone, tombstone_of
from app.conversations.settings_resolver import SettingsResolver
from app.conversations.view import Span
from app.repositories import Database

_COPIES_PER_READ = 100


@dataclass(frozen=True, slots=True)
class RedactionResult:
    """The record of a redaction, and how many conversations this request redacted it in."""

    redaction: Redaction
    conversations: int


@dataclass(eq=False, repr=False)
class RedactionService:
    """Redacts messages."""

    _database: Database
    _resolver: SettingsResolver
    _outputs: StoredResults

    async def redact(
        self,
        tenant_id: str,
        conversation_id: str,
        message_id: str,
        reason: str | None,
        key_id: str | None,
    ) -> RedactionResult:
        """Redact a message and its copies in forks; raises NotFound.

        A message that is redacted already keeps its record.
        """
        async with self._database.session() as session:
            await self._resolver.find_conversation(session, tenant_id, conversation_id)
            messages = await session.log.by_ids(conversation_id, [message_id])
            if not messages:
                raise NotFound.message(message_id)
            seq = messages[0].seq
            (row,) = await session.contexts.rows(
                conversation_id, [Span(seq, seq + 1)], as_chat=False
            )
        new, tombstone = NewRedaction(seq, message_id, reason, key_id), tombstone_of(row)
        count = int(await self._redact_one(tenant_id, conversation_id, new, tombstone))
        while copies := await self._copies(conversation_id, new):
            for copy_id in copies:
                count += await self._redact_one(tenant_id, copy_id, new, tombstone)
        async with self._database.session() as session:
            redaction = await session.redactions.find(conversation_id, seq)
        if redaction is None:  # the conversation was deleted meanwhile
            raise NotFound.conversation(conversation_id)
        return RedactionResult(redaction, count)

    async def _copies(self, conversation_id: str, new: NewRedaction) -> list[str]:
        async with self._database.session() as session:
            return await session.redactions.copies(
                conversation_id, new.seq, new.message_id, _COPIES_PER_READ
            )

    async def _redact_one(
        self, tenant_id: str, conversation_id: str, new: NewRedaction, tombstone: Tombstone
    ) -> bool:
        """Redact the message in one conversation; False if it was redacted or is gone."""
        async with self._database.transaction() as session:
            redactions = session.redactions
            if not await redactions.replace(conversation_id, new.seq, tombstone):
                return False
            object_keys = await redactions.remove_blobs(conversation_id, new.seq)
            loses_summary = await redactions.drop_summaries(conversation_id, new.seq)
            await redactions.drop_epoch_texts(conversation_id)
            await redactions.record(conversation_id, new)
            event = {
                "message_id": new.message_id,
                "seq": new.seq,
                "reason": new.reason,
                "key_id": new.key_id,
            }
            await session.events.add(conversation_id, EventType.REDACTED, json_text.dumps(event))
            if loses_summary:
                await make_compaction_due(session, conversation_id)
        await self._outputs.delete_objects(*object_keys)
        return True
