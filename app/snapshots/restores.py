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
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

from app.common import json_text
from app.common.answers import answer
from app.common.errors import Conflict, NotFound, ServiceUnavailable, ValidationError
from app.common.pages import BATCH_BYTES, Bound
from app.conversations.conversation import Conversation
from app.conversations.events import EventType
from app.conversations.lookup import find_key, get_conversation, lock_conversation
from app.conversations.messages.row import Append
from app.conversations.messages.service import LogService
from app.conversations.messages.stored_results import Content, Original, StoredResults
from app.conversations.view import Span, count_in, minus, spans_of, spans_through
from app.conversations.windows.service import ActiveWindows, store_window
from app.database.connections import Statement
from app.database.sql import edges
from app.formats.message import FormatName
from app.repositories import Database, Repositories
from app.snapshots.copies import (
    SourceMessage,
    copy_id,
    copy_of,
    entry_of,
    pending_calls,
    renamed_calls,
    source_of,
    with_results_as_text,
)
from app.snapshots.repository import SnapshotPart
from app.snapshots.schemas import Snapshot

MAX_BATCH_BYTES = 16 * 2**20
"""The maximum of text in one append, unless one call group alone has more."""
PAGE_MESSAGES = 200
_MAX_ATTEMPTS = 3
SEQS_OF = Statement(
    """
        SELECT message_id, seq FROM messages
        WHERE conversation_id = :conversation_id AND message_id = ANY (CAST(:ids AS text[]))
        """
)
CALLS_IN = Statement(
    """
        SELECT DISTINCT used.call_id
        FROM unnest(:starts, :ends) AS span (start, past)
        JOIN messages m ON m.conversation_id = :conversation_id
            AND m.seq >= span.start AND m.seq < span.past
            AND m.role = 'assistant' AND m.call_ids IS NOT NULL
        CROSS JOIN LATERAL json_array_elements_text(CAST(m.call_ids AS json)) AS used (call_id)
        """
)


@answer()
@dataclass(frozen=True, slots=True)
class RestoredSnapshot:
    """The result of a restore."""

    snapshot_id: str
    """Id of the snapshot."""
    restored: int
    """Number of messages restored into active windows."""
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
    """Reads the messages of snapshots, and restores them into active windows."""

    _database: Database
    _outputs: StoredResults
    _active: ActiveWindows
    _log: LogService
    _default_model: str | None
    _max_messages: int

    async def entries(self, part: SnapshotPart, content: Content) -> AsyncGenerator[list[bytes]]:
        """Yield the messages of a part as JSON, a page at a time.

        No session is open between pages. Raises ServiceUnavailable if a message was deleted.
        """
        bound = Bound(BATCH_BYTES)
        for span in part.spans:
            next_seq = span.start
            while next_seq < span.end:
                async with self._database.session() as session:
                    page = await session.log.page(
                        part.conversation_id, next_seq - 1, span.end, "asc", PAGE_MESSAGES, bound
                    )
                seqs = [message.seq for message in page]
                if not seqs or seqs != list(range(next_seq, next_seq + len(seqs))):
                    raise changed_meanwhile()
                next_seq += len(seqs)
                while page:
                    batch = await self._outputs.originals(
                        part.conversation_id, page, content, bound
                    )
                    del page[: len(batch)]
                    entries = [_entry(original, part.public_id) for original in batch]
                    batch.clear()
                    yield entries

    async def restore(
        self,
        tenant_id: str,
        snapshot: Snapshot,
        parts: Sequence[SnapshotPart],
        target: str | None,
    ) -> RestoredSnapshot:
        """Restore all conversations of a snapshot, or its only one into the one with this id.

        Messages that are active there are skipped. Raises NotFound for an unknown target,
        ValidationError for several conversations and one target, Conflict for too many concurrent
        writes to a target.
        """
        target_key = None
        if target is not None:
            async with self._database.session() as session:
                target_key = await find_key(session, tenant_id, target)
            if target_key is None:
                raise NotFound.conversation(target)
            if len(snapshot.conversation_ids) > 1:
                detail = "The snapshot has several conversations, which cannot be restored into one"
                raise ValidationError.at("/conversation_id", detail)
        total: Counter[str] = Counter()
        for part in parts:
            key = target_key or part.conversation_id
            conversation = await self._find(tenant_id, key)
            filled = _Target(key, conversation.public_id, not conversation.state.head_seq)
            if key == part.conversation_id:
                filled.restored = count_in(await self._rejoin(tenant_id, key, part.spans))
                filled.messages = part.message_count
            else:
                state = (await self._active.updated(tenant_id, conversation)).state
                spans = edges(spans_through(state.window.spans, state.head_seq))
                async with self._database.session() as session:
                    rows = await session.session.all(CALLS_IN, conversation_id=key, **spans)
                filled.used_calls = frozenset(row["call_id"] for row in rows)
                await self._copy(tenant_id, snapshot, part, filled)
            counts = {
                "restored": filled.restored,
                "skipped": filled.messages - filled.restored,
            }
            event = json_text.dumps({"snapshot_id": snapshot.snapshot_id, **counts})
            async with self._database.session() as session:
                await session.events.add(key, EventType.RESTORED, event)
            total.update(counts)
        return RestoredSnapshot(snapshot.snapshot_id, total["restored"], total["skipped"])

    # --- targets ----------------------------------------------------------------------------

    async def _find(self, tenant_id: str, conversation_id: str) -> Conversation:
        async with self._database.session() as session:
            return await get_conversation(session, tenant_id, conversation_id, self._default_model)

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

    # --- copying --------------------------------------------------------------------------

    async def append(self, tenant_id: str, key: str, sources: Sequence[SourceMessage]) -> None:
        """Append the messages of an import to its new conversation."""
        async for batch in in_batches(_each(sources), self._max_messages, MAX_BATCH_BYTES):
            messages = [(source.format, source.as_appended()) for source in batch]
            await self._append_runs(tenant_id, key, messages, applies_compactions=True)

    async def _sources(self, part: SnapshotPart) -> AsyncIterator[SourceMessage]:
        async with aclosing(self.entries(part, Content.FULL)) as pages:
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
                await store_window(session, target.key, state)

    async def _existing_seqs(
        self, target: _Target, copies: Mapping[str, SourceMessage]
    ) -> dict[str, list[int]]:
        """Return the seqs of those copies that the target's log has (rule 2)."""
        names = {id: source.ids_in(target.public_id, id) for id, source in copies.items()}
        async with self._database.session() as session:
            seqs = await seqs_of(session, target.key, chain(*names.values()))
        found = {id: [seqs[name] for name in own if name in seqs] for id, own in names.items()}
        return {id: own for id, own in found.items() if own}

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
                new.append((source.format, copy_of(source, id, snapshot.snapshot_id, calls)))
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


async def seqs_of(session: Repositories, key: str, ids: Iterable[str]) -> dict[str, int]:
    """Return the seqs of those of these messages that a log has, by their ids."""
    rows = await session.session.all(SEQS_OF, conversation_id=key, ids=list(ids))
    return {row["message_id"]: row["seq"] for row in rows}


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


def _entry(original: Original, public_id: str) -> bytes:
    message, ref = original.message, original.message.output_ref
    own = {
        "id": message.id,
        "conversation_id": public_id,
        "seq": message.seq,
        "format": message.format,
        "created_at": message.created_at.isoformat(),
        "output_ref": asdict(ref) if ref is not None else None,
        "content_truncated": original.is_truncated,
        "content_collected": original.is_collected,
    }
    return json_text.dump_stored(entry_of(original.raw_message, own))


def changed_meanwhile() -> ServiceUnavailable:
    """Return the error of a read that misses messages."""
    return ServiceUnavailable("The snapshot changed while it was read", {"reason": "changed"})
