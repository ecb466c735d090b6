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
5. An import is restored before there is a snapshot of it: into a new conversation for each of the
   file's, under the same id if that is free. One whose log has all the messages is not copied.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

from app.common import json_text
from app.common.answers import answer
from app.common.errors import Conflict, NotFound, ValidationError
from app.common.pages import BATCH_BYTES, Bound
from app.conversations.conversation import Conversation
from app.conversations.events import EventType
from app.conversations.lookup import find_key, get_conversation, lock_conversation
from app.conversations.messages.row import Append
from app.conversations.messages.service import LogService
from app.conversations.messages.stored_results import Content
from app.conversations.schemas import ConversationCreate
from app.conversations.service import ConversationService
from app.conversations.view import Span, count_in, minus, spans_of, spans_through
from app.conversations.windows.service import ActiveWindows
from app.database.sql import edges
from app.formats.message import FormatName
from app.repositories import Repositories
from app.snapshots.copies import (
    SourceMessage,
    copy_id,
    copy_of,
    pending_calls,
    renamed_calls,
    source_of,
    with_results_as_text,
)
from app.snapshots.reading import SnapshotReader
from app.snapshots.repository import CALLS_IN, SEQS_OF
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

    key: str
    public_id: str
    was_empty: bool
    used_calls: frozenset[str] = frozenset()
    added: set[str] = field(default_factory=set)
    restored: int = 0
    messages: int = 0


@dataclass(eq=False, repr=False)
class RestoreService:
    """Restores the messages of snapshots into active windows."""

    _reader: SnapshotReader
    _active: ActiveWindows
    _log: LogService
    _conversations: ConversationService
    _default_model: str | None
    _max_messages: int

    def __post_init__(self) -> None:
        self._database = self._reader.database

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
        target_key = await self._known_key(tenant_id, target) if target is not None else None
        if target_key is not None and len(snapshot.conversation_ids) > 1:
            detail = "The snapshot has several conversations, which cannot be restored into one"
            raise ValidationError.at("/conversation_id", detail)
        done = []
        for part in parts:
            key = target_key or part.conversation_id
            conversation = await self._find(tenant_id, key)
            filled = _Target(key, conversation.public_id, not conversation.state.head_seq)
            if key == part.conversation_id:
                filled.restored = count_in(await self._rejoin(tenant_id, key, part.spans))
                filled.messages = part.message_count
            else:
                state = (await self._active.updated(tenant_id, conversation)).state
                spans = spans_through(state.window.spans, state.head_seq)
                async with self._database.session() as session:
                    rows = await session.session.all(CALLS_IN, conversation_id=key, **edges(spans))
                filled.used_calls = frozenset(row["call_id"] for row in rows)
                await self._copy(tenant_id, snapshot, part, filled)
            skipped = filled.messages - filled.restored
            counts = {"restored": filled.restored, "skipped": skipped}
            event = json_text.dumps({"session_id": snapshot.session_id, **counts})
            async with self._database.session() as session:
                await session.events.add(key, EventType.RESTORED, event)
            done.append(RestoredConversation(filled.public_id, part.public_id, **counts))
        return done

    # --- targets ----------------------------------------------------------------------------

    async def _find(self, tenant_id: str, conversation_id: str) -> Conversation:
        async with self._database.session() as session:
            return await get_conversation(session, tenant_id, conversation_id, self._default_model)

    async def _known_key(self, tenant_id: str, public_id: str) -> str:
        async with self._database.session() as session:
            key = await find_key(session, tenant_id, public_id)
        if key is None:
            raise NotFound.conversation(public_id)
        return key

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

    # --- imports ----------------------------------------------------------------------------

    async def add_part(
        self,
        tenant_id: str,
        public_id: str,
        sources: Sequence[SourceMessage],
        new: ConversationCreate,
        created: list[str],
    ) -> SnapshotPart:
        """Return where messages of a file are in logs, after appending them if need be (rule 5).

        The key of a new conversation is added to `created` before anything is appended.
        """
        async with self._database.session() as session:
            known_key = await find_key(session, tenant_id, public_id)
            if known_key is not None:
                seqs = await self._seqs_of(session, known_key, [source.id for source in sources])
                if len(seqs) == len(sources):
                    return SnapshotPart(known_key, public_id, tuple(spans_of(seqs.values())))
                new = new.model_copy(update={"conversation_id": None})
        conversation = await self._conversations.create(tenant_id, new)
        key = conversation.conversation_id
        created.append(key)
        async for batch in in_batches(_each(sources), self._max_messages, MAX_BATCH_BYTES):
            messages = [(source.format, source.as_appended()) for source in batch]
            await self._append_runs(tenant_id, key, messages, applies_compactions=True)
        head_seq = (await self._find(tenant_id, key)).state.head_seq
        return SnapshotPart(key, conversation.public_id, (Span(1, head_seq + 1),))

    async def remove(self, tenant_id: str, created: Sequence[str]) -> None:
        """Delete the conversations that a failed import has created."""
        for key in created:
            with suppress(NotFound):  # deleted meanwhile
                await self._conversations.remove(tenant_id, key)

    # --- copying --------------------------------------------------------------------------

    async def _sources(self, part: SnapshotPart) -> AsyncIterator[SourceMessage]:
        async with aclosing(self._reader.entries(part, Content.FULL, Bound(BATCH_BYTES))) as pages:
            async for page in pages:
                for entry in page:
                    yield source_of(json_text.loads(entry), len(entry))

    async def _copy(
        self, tenant_id: str, snapshot: Snapshot, part: SnapshotPart, target: _Target
    ) -> None:
        """Copy messages into a conversation, except those that it has."""
        sources = with_results_as_text(self._sources(part))
        async for batch in in_batches(sources, self._max_messages, MAX_BATCH_BYTES):
            copies = {copy_id(target.public_id, source): source for source in batch}
            existing: Mapping[str, Sequence[int]] = {}
            for remaining_attempts in range(_MAX_ATTEMPTS)[::-1]:
                existing = await self._existing_seqs(target, copies)
                try:
                    await self._append(tenant_id, snapshot, target, copies, existing)
                    break
                except Conflict:  # a concurrent restore, or an open call was closed
                    if not remaining_attempts:
                        raise
            target.messages += len(copies)
            target.restored += len(target.added & copies.keys())
            older_copies = [seqs for copy, seqs in existing.items() if copy not in target.added]
            if older_copies:
                spans = spans_of(seq for seqs in older_copies for seq in seqs)
                outside = await self._rejoin(tenant_id, target.key, spans)
                target.restored += sum(
                    any(span.holds(seq) for span in outside for seq in seqs)
                    for seqs in older_copies
                )
        if target.added:
            # The next build starts an epoch (rule 4).
            async with self._database.transaction() as session:
                conversation = await lock_conversation(
                    session, tenant_id, target.key, self._default_model
                )
                version = conversation.state.view_version + 1
                state = replace(conversation.state, view_version=version, view_cause="restored")
                await session.windows.move(target.key, state)

    async def _existing_seqs(
        self, target: _Target, copies: Mapping[str, SourceMessage]
    ) -> dict[str, list[int]]:
        """Return the seqs of those copies that the target's log has (rule 2)."""
        names = {id: source.ids_in(target.public_id, id) for id, source in copies.items()}
        async with self._database.session() as session:
            seqs = await self._seqs_of(session, target.key, chain(*names.values()))
        found = {id: [seqs[name] for name in own if name in seqs] for id, own in names.items()}
        return {id: own for id, own in found.items() if own}

    async def _seqs_of(self, session: Repositories, key: str, ids: Iterable[str]) -> dict[str, int]:
        rows = await session.session.all(SEQS_OF, conversation_id=key, ids=list(ids))
        return {row["message_id"]: row["seq"] for row in rows}

    async def _append(
        self,
        tenant_id: str,
        snapshot: Snapshot,
        target: _Target,
        copies: Mapping[str, SourceMessage],
        existing: Mapping[str, Sequence[int]],
    ) -> None:
        """Append those copies that the log does not have, with clashing calls renamed."""
        renamed: dict[str, str] = {}
        calls: Mapping[str, str] | None = {}
        origin = ""
        new: list[tuple[FormatName, dict[str, Any]]] = []
        for id, source in copies.items():
            if not source.is_result:
                origin = id
                own = renamed_calls(source.own_calls, target.used_calls, origin)
                renamed |= {call: own.get(call, call) for call in source.own_calls}
                calls = renamed
            if id in existing:
                continue
            if source.is_result and origin in existing:
                open_calls = (await self._find(tenant_id, target.key)).state.open_calls
                calls = pending_calls(source.answers, open_calls, origin)
            if calls is not None:
                new.append((source.format, copy_of(source, id, snapshot.session_id, calls)))
        await self._append_runs(tenant_id, target.key, new, applies_compactions=target.was_empty)
        target.added.update(message["id"] for _, message in new)

    async def _append_runs(
        self,
        tenant_id: str,
        key: str,
        new: Iterable[tuple[FormatName, dict[str, Any]]],
        *,
        applies_compactions: bool,
    ) -> None:
        """Append messages, those of one format in a row together."""
        for format, run in groupby(new, key=itemgetter(0)):
            messages = [message for _, message in run]
            for start in range(0, len(messages), self._max_messages):
                batch = messages[start : start + self._max_messages]
                append = Append(batch, format, applies_compactions=applies_compactions)
                await self._log.append(tenant_id, key, append)


async def _each(sources: Iterable[SourceMessage]) -> AsyncIterator[SourceMessage]:
    for source in sources:
        yield source


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
