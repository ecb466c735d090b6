"""Restores of snapshots: spans that rejoin their active window, and copies in other conversations
[snapshots.restore-new-epoch].

1. A restore into the source conversation appends nothing: messages outside the window rejoin it
   [snapshots.restore-source]. Messages in the window are skipped, so that a second restore changes
   nothing.
2. Elsewhere a message is appended as a copy with an id derived from its source. A copy that the log
   has already rejoins the window or is skipped, so that an interrupted restore can be repeated.
3. Copies are appended in batches that keep calls and results together, unless one group is larger
   than a batch or has several formats.
4. The next build of a conversation with new copies starts an epoch [epochs.reasons] and replays no
   reasoning that was bound to the source's prefix [reasoning.unchanged-prefix].
5. The conversation of an import is created under its id if it does not exist. It gets the model of
   the import, unless its agent or the service has the same as default.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

from app.common import json_text
from app.common.answers import answer
from app.common.errors import Conflict, NotFound, ValidationError
from app.common.pages import BATCH_BYTES, Bound
from app.conversations.conversation import Conversation
from app.conversations.events.events import EventType
from app.conversations.keys import find_key
from app.conversations.lookup import get_conversation, lock_conversation
from app.conversations.messages.batch import Append
from app.conversations.messages.service import LogService
from app.conversations.messages.stored_results import Content, StoredResults
from app.conversations.schemas import ConversationCreate
from app.conversations.service import ConversationService
from app.conversations.view import Span, count_in, minus, spans_of, spans_through
from app.conversations.windows.service import ActiveWindows
from app.formats.message import FormatName
from app.repositories import Database
from app.snapshots.copies import (
    SourceMessage,
    copy_id,
    copy_of,
    pending_calls,
    renamed_calls,
    split_ids,
    with_results_as_text,
)
from app.snapshots.entries import source_of
from app.snapshots.reading import imported_entries, originals_of
from app.snapshots.snapshot import Snapshot, SnapshotPart

MAX_BATCH_BYTES = 16 * 2**20
"""The maximum of text in one append, unless one call group alone has more."""
_MAX_ATTEMPTS = 3


@answer()
@dataclass(frozen=True, slots=True)
class RestoredConversation:
    """The result for one conversation; both ids are public ids."""

    conversation_id: str
    """The conversation that the messages were restored into."""
    source_conversation_id: str
    """The conversation that the messages were saved from."""
    restored: int
    """Number of messages restored into the active window."""
    skipped: int
    """Number of messages that were active before."""


@dataclass(slots=True)
class _Target:
    """The conversation to restore into: call ids of its window, added copies, counts.

    `was_empty` says whether its log was: then a provider's compaction item stands for what is
    restored before it, and nothing else.
    """

    conversation_id: str
    public_id: str
    was_empty: bool = False
    used_calls: frozenset[str] = frozenset()
    added: set[str] = field(default_factory=set)
    restored: int = 0
    skipped: int = 0

    def count(self, restored: int, messages: int) -> None:
        self.restored += restored
        self.skipped += messages - restored


@dataclass(frozen=True, slots=True)
class _Copy:
    """A source, the id of its copy, and all ids that it may have in the target's log."""

    source: SourceMessage
    id: str
    possible_ids: tuple[str, ...]


@dataclass(eq=False, repr=False)
class RestoreService:
    """Restores the messages of snapshots into active windows."""

    _database: Database
    _outputs: StoredResults
    _active: ActiveWindows
    _log: LogService
    _conversations: ConversationService
    _default_model: str | None
    _max_messages: int

    async def restore(
        self,
        tenant_id: str,
        snapshot: Snapshot,
        parts: Sequence[SnapshotPart],
        target: str | None,
    ) -> list[RestoredConversation]:
        """Restore all conversations of a snapshot, or its only one into the one with this id.

        Raises NotFound for an unknown target, ValidationError for several conversations and one
        target, Conflict for too many concurrent writes to a target.
        """
        target_id = await self._known_key(tenant_id, target) if target is not None else None
        if target_id is not None and len(snapshot.conversation_ids) > 1:
            detail = "The snapshot has several conversations, which cannot be restored into one"
            raise ValidationError.at("/conversation_id", detail)
        if not snapshot.imported:
            return [
                await self._restore_part(tenant_id, snapshot, part, target_id) for part in parts
            ]
        restored = []
        for source_id in snapshot.conversation_ids:
            known_id = target_id or await self._own_conversation(tenant_id, snapshot, source_id)
            messages = self._imported_messages(tenant_id, snapshot.session_id, source_id)
            filled = await self._copy(tenant_id, snapshot, messages, known_id)
            restored.append(await self._record(snapshot, source_id, filled))
        return restored

    async def _restore_part(
        self, tenant_id: str, snapshot: Snapshot, part: SnapshotPart, target_id: str | None
    ) -> RestoredConversation:
        if target_id is None or target_id == part.conversation_id:
            target = _Target(part.conversation_id, part.public_id)
            outside = await self._rejoin(tenant_id, part.conversation_id, part.spans)
            target.count(count_in(outside), part.message_count)
        else:
            target = await self._copy(tenant_id, snapshot, self._log_messages(part), target_id)
        return await self._record(snapshot, part.public_id, target)

    async def _record(
        self, snapshot: Snapshot, source_id: str, target: _Target
    ) -> RestoredConversation:
        """Record the event of a restored conversation."""
        event = {
            "session_id": snapshot.session_id,
            "restored": target.restored,
            "skipped": target.skipped,
        }
        async with self._database.session() as session:
            await session.events.add(
                target.conversation_id, EventType.RESTORED, json_text.dumps(event)
            )
        return RestoredConversation(target.public_id, source_id, target.restored, target.skipped)

    # --- targets ----------------------------------------------------------------------------

    async def _find(self, tenant_id: str, conversation_id: str) -> Conversation:
        async with self._database.session() as session:
            return await get_conversation(session, tenant_id, conversation_id, self._default_model)

    async def _target(self, tenant_id: str, conversation_id: str) -> _Target:
        conversation = await self._find(tenant_id, conversation_id)
        state = (await self._active.updated(tenant_id, conversation)).state
        spans = spans_through(state.window.spans, state.head_seq)
        async with self._database.session() as session:
            used = await session.snapshots.calls_in(conversation_id, spans)
        return _Target(conversation_id, conversation.public_id, not state.head_seq, used)

    async def _own_conversation(self, tenant_id: str, snapshot: Snapshot, source_id: str) -> str:
        """Return the key of the conversation of an import, created if missing (rule 5)."""
        known_id = await self._find_key(tenant_id, source_id)
        if known_id is not None:
            return known_id
        agent, model = None, snapshot.model_of(source_id)
        if snapshot.agent_id is not None:
            async with self._database.session() as session:
                agent = await session.agents.find(tenant_id, snapshot.agent_id)
        inherited = (agent.model if agent is not None else None) or self._default_model
        new = ConversationCreate(
            conversation_id=source_id,
            agent_id=agent.agent_id if agent else None,
            model=model if model != inherited else None,
        )
        try:
            created = await self._conversations.create(tenant_id, new)
        except Conflict:  # a concurrent restore has created it
            return await self._known_key(tenant_id, source_id)
        return created.resource.conversation_id

    async def _known_key(self, tenant_id: str, public_id: str) -> str:
        key = await self._find_key(tenant_id, public_id)
        if key is None:
            raise NotFound.conversation(public_id)
        return key

    async def _find_key(self, tenant_id: str, public_id: str) -> str | None:
        async with self._database.session() as session:
            return await find_key(session, tenant_id, public_id)

    async def _rejoin(
        self, tenant_id: str, conversation_id: str, spans: Sequence[Span]
    ) -> tuple[Span, ...]:
        """Restore spans of the log into the window, and return those that were outside."""
        async with self._database.transaction() as session:
            conversation = await lock_conversation(
                session, tenant_id, conversation_id, self._default_model
            )
            conversation = await self._active.update_locked(session, conversation)
            outside = minus(spans, conversation.state.window.spans)
            if outside:
                await self._active.restore(session, conversation, outside)
        return outside

    # --- sources ----------------------------------------------------------------------------

    async def _log_messages(self, part: SnapshotPart) -> AsyncIterator[SourceMessage]:
        bound = Bound(BATCH_BYTES)
        async for page in originals_of(self._database, self._outputs, part, Content.FULL, bound):
            for original in page:
                message, output = original.message, original.message.output
                yield SourceMessage(
                    part.public_id,
                    message.id,
                    FormatName(message.format),
                    original.raw_message,
                    max(len(message.body), output.byte_size if output is not None else 0),
                )

    async def _imported_messages(
        self, tenant_id: str, session_id: str, source_id: str
    ) -> AsyncIterator[SourceMessage]:
        bound = Bound(BATCH_BYTES)
        pages = imported_entries(self._database, tenant_id, session_id, source_id, bound)
        async for page in pages:
            for body in page:
                yield source_of(body.decode())

    # --- copying --------------------------------------------------------------------------

    async def _copy(
        self,
        tenant_id: str,
        snapshot: Snapshot,
        sources: AsyncIterator[SourceMessage],
        target_id: str,
    ) -> _Target:
        """Copy messages into a conversation, except those that it has."""
        target = await self._target(tenant_id, target_id)
        whole = with_results_as_text(sources)
        async for batch in in_batches(whole, self._max_messages, MAX_BATCH_BYTES):
            copies = [_copy_of(target.public_id, source) for source in batch]
            existing: Mapping[str, Sequence[int]] = {}
            for remaining_attempts in range(_MAX_ATTEMPTS)[::-1]:
                existing = await self._existing_seqs(target, copies)
                try:
                    await self._append(tenant_id, snapshot, target, copies, existing)
                    break
                except Conflict:  # a concurrent restore, or an open call was closed
                    if not remaining_attempts:
                        raise
            older_copies = [seqs for copy, seqs in existing.items() if copy not in target.added]
            rejoined = 0
            if older_copies:
                spans = spans_of(seq for seqs in older_copies for seq in seqs)
                outside = await self._rejoin(tenant_id, target.conversation_id, spans)
                rejoined = sum(
                    any(span.holds(seq) for span in outside for seq in seqs)
                    for seqs in older_copies
                )
            added = sum(copy.id in target.added for copy in copies)
            target.count(rejoined + added, len(copies))
        if target.added:
            await self._start_epoch(tenant_id, target.conversation_id)
        return target

    async def _start_epoch(self, tenant_id: str, conversation_id: str) -> None:
        """Make the next build of a conversation start an epoch (rule 4)."""
        async with self._database.transaction() as session:
            conversation = await lock_conversation(
                session, tenant_id, conversation_id, self._default_model
            )
            version = conversation.state.view_version + 1
            state = replace(conversation.state, view_version=version, view_cause="restored")
            await session.windows.move(conversation_id, state)

    async def _existing_seqs(
        self, target: _Target, copies: Sequence[_Copy]
    ) -> dict[str, list[int]]:
        """Return the seqs of those copies that the target's log has (rule 2)."""
        ids = [message_id for copy in copies for message_id in copy.possible_ids]
        async with self._database.session() as session:
            seqs = await session.snapshots.seqs_of(target.conversation_id, ids)
        by_copy = {
            copy.id: [seqs[name] for name in copy.possible_ids if name in seqs] for copy in copies
        }
        return {copy: copy_seqs for copy, copy_seqs in by_copy.items() if copy_seqs}

    async def _append(
        self,
        tenant_id: str,
        snapshot: Snapshot,
        target: _Target,
        copies: Sequence[_Copy],
        existing: Mapping[str, Sequence[int]],
    ) -> None:
        """Append those copies that the log does not have, with clashing calls renamed."""
        renamed: dict[str, str] = {}
        calls: Mapping[str, str] | None = {}
        origin = ""
        new: list[tuple[FormatName, dict[str, Any]]] = []
        for copy in copies:
            source = copy.source
            if not source.is_result:
                origin = copy.id
                own = renamed_calls(source.own_calls, target.used_calls, origin)
                renamed |= {call: own.get(call, call) for call in source.own_calls}
                calls = renamed
            if copy.id in existing:
                continue
            if source.is_result and origin in existing:
                open_calls = (await self._find(tenant_id, target.conversation_id)).state.open_calls
                calls = pending_calls(source.answers, open_calls, origin)
            if calls is not None:
                new.append((source.format, copy_of(source, copy.id, snapshot.session_id, calls)))
        for format, run in groupby(new, key=itemgetter(0)):
            messages = [message for _, message in run]
            for start in range(0, len(messages), self._max_messages):
                batch = messages[start : start + self._max_messages]
                append = Append(batch, format, applies_compactions=target.was_empty)
                await self._log.append(tenant_id, target.conversation_id, append)
                target.added.update(message["id"] for message in batch)


async def in_batches(
    sources: AsyncIterator[SourceMessage], max_messages: int, max_bytes: int
) -> AsyncIterator[list[SourceMessage]]:
    """Yield messages in batches that start and end between call groups (rule 3)."""
    batch: list[SourceMessage] = []
    group: list[SourceMessage] = []
    size = 0
    async for source in sources:
        if not source.is_result:
            batch, group = batch + group, []
        size += source.size_bytes
        if batch and (size > max_bytes or len(batch) + len(group) >= max_messages):
            yield batch
            batch, size = [], sum(item.size_bytes for item in (*group, source))
        group.append(source)
    if batch or group:
        yield batch + group


def _copy_of(target_id: str, source: SourceMessage) -> _Copy:
    own_id, count = copy_id(target_id, source), source.split_count
    possible_ids = split_ids(own_id, count)
    if source.conversation_id == target_id:
        possible_ids += split_ids(source.id, count)
    return _Copy(source, own_id, possible_ids)
