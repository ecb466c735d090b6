"""Restores of snapshots: spans that rejoin their active window, and copies in other conversations
[snapshots.restore-new-epoch].

1. A restore into the source conversation appends nothing: messages outside the active window rejoin
   it [snapshots.restore-source]. Messages in it are skipped, so that a second restore changes
   nothing.
2. Elsewhere a message is appended as a copy with an id derived from its source. A copy that the log
   has already rejoins the window or is skipped, so that an interrupted restore can be repeated.
3. Copies are appended in batches that keep calls and results together, unless one group is larger
   than a batch or has several formats.
4. The next build of a conversation with new copies starts an epoch [epochs.reasons] and replays no
   reasoning that was bound to the source's prefix [reasoning.unchanged-prefix].
5. An import appends the messages of a file to new conversations [snapshots.import].
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

from tenacity import retry, retry_if_exception_type, stop_after_attempt

from app.blobs.offloading import OffloadRules
from app.common import json_text
from app.common.answer_schemas import answer
from app.common.errors import (
    Conflict,
    NotFound,
    ServiceUnavailable,
    UnpairedToolResult,
    ValidationError,
)
from app.common.pages import BATCH_BYTES, Bound
from app.conversations.conversation import Conversation
from app.conversations.events import EventType
from app.conversations.messages.draft import make_drafts
from app.conversations.messages.row import NO_CALLS, Calls, RawBatch, batch_shape
from app.conversations.messages.service import LogService
from app.conversations.messages.stored_results import Content, Original, StoredResults
from app.conversations.moving_window import ActiveWindows, store_window
from app.conversations.schemas import ConversationCreate
from app.conversations.service import ConversationService
from app.conversations.view import Span, count_in, minus, overlap, spans_of, spans_through
from app.database.connections import Statement
from app.database.sql import edges
from app.formats.message import FormatName
from app.policy.policy import ToolOutputPolicy
from app.repositories import Database, Repositories
from app.snapshots.restored_messages import (
    SnapshotPart,
    SourceMessage,
    copy_id,
    new_copies,
    saved_of,
    source_of,
    with_results_as_text,
)
from app.snapshots.schemas import Snapshot, SnapshotFile, SnapshotModel
from app.snapshots.service import FIND, lock_conversations, store_snapshot

MAX_BATCH_BYTES = 16 * 2**20
"""The maximum of text in one append, unless one call group alone has more."""
PAGE_MESSAGES = 200
_NO_OFFLOADING = OffloadRules(ToolOutputPolicy(enabled=False))
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


@dataclass(eq=False, repr=False)
class RestoreService:
    """Reads the messages of snapshots, restores them into active windows, and imports files."""

    _database: Database
    _outputs: StoredResults
    _active: ActiveWindows
    _log: LogService
    _conversations: ConversationService
    _max_messages: int

    async def saved(
        self, snapshot: Snapshot, parts: Sequence[SnapshotPart], content: Content
    ) -> AsyncGenerator[bytes]:
        """Yield the messages of a snapshot as JSON, a page at a time, with commas between them.

        Raises ServiceUnavailable if a message was deleted.
        """
        missing = snapshot.message_count
        for part in parts:
            async for page in self._originals(part, content):
                saved = [_saved(original, part.public_id) for original in page]
                missing -= len(page)
                page.clear()
                yield b",".join(saved)
        if missing:
            raise changed_meanwhile()

    async def _originals(
        self, part: SnapshotPart, content: Content
    ) -> AsyncGenerator[list[Original]]:
        """Yield the messages of a part, a page at a time.

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
                    yield batch

    async def restore(
        self,
        tenant_id: str,
        snapshot_id: str,
        parts: Sequence[SnapshotPart],
        target: str | None = None,
    ) -> RestoredSnapshot:
        """Restore all conversations of a snapshot, or its only one into the one with this id.

        Messages that are active there are skipped. Raises NotFound for an unknown target,
        ValidationError for several conversations and one target, Conflict for too many concurrent
        writes to a target.
        """
        target_key = None
        if target is not None:
            async with self._database.session() as session:
                target_key = await session.conversations.find_key(tenant_id, target)
            if target_key is None:
                raise NotFound.conversation(target)
            if len(parts) > 1:
                detail = "The snapshot has several conversations, which cannot be restored into one"
                raise ValidationError.at("/conversation_id", detail)
        total: Counter[str] = Counter()
        for part in parts:
            key = target_key or part.conversation_id
            if key == part.conversation_id:
                restored = count_in(await self._rejoin(tenant_id, key, part.spans))
            else:
                restored = await self._copy(tenant_id, key, snapshot_id, part)
            counts = {"restored": restored, "skipped": part.message_count - restored}
            event = {"snapshot_id": snapshot_id, **counts}
            async with self._database.session() as session:
                await session.events.add(key, EventType.RESTORED, **event)
            total.update(counts)
        return RestoredSnapshot(snapshot_id, total["restored"], total["skipped"])

    async def _rejoin(
        self, tenant_id: str, conversation_id: str, spans: Sequence[Span]
    ) -> tuple[Span, ...]:
        """Restore spans of the log into the window, and return those that were outside."""
        async with self._database.transaction() as session:
            conversation = await session.conversations.get(tenant_id, conversation_id, lock=True)
            conversation = await self._active.update_locked(session, conversation)
            outside = minus(spans, conversation.state.window.spans)
            if outside:
                await self._active.restore(session, conversation, outside)
        return outside

    # --- copying --------------------------------------------------------------------------

    async def _copy(self, tenant_id: str, key: str, snapshot_id: str, part: SnapshotPart) -> int:
        """Copy the messages that a conversation does not have; return how many were restored."""
        async with self._database.session() as session:
            found = await session.conversations.get(tenant_id, key)
        target = await self._active.updated(tenant_id, found)
        spans = edges(spans_through(target.state.window.spans, target.state.head_seq))
        async with self._database.session() as session:
            rows = await session.session.all(CALLS_IN, conversation_id=key, **spans)
        used = frozenset(row["call_id"] for row in rows)
        added = restored = 0
        sources = with_results_as_text(self._sources(part))
        async for batch in in_batches(sources, self._max_messages, MAX_BATCH_BYTES):
            new, existing = await self._append_copies(tenant_id, target, snapshot_id, used, batch)
            added += new
            if existing:
                outside = await self._rejoin(tenant_id, key, existing)
                restored += count_in(overlap(existing, outside))
        if added:
            # The next build starts an epoch (rule 4).
            async with self._database.transaction() as session:
                conversation = await session.conversations.get(tenant_id, key, lock=True)
                version = conversation.state.view_version + 1
                state = replace(conversation.state, view_version=version, view_cause="restored")
                await store_window(session, key, state)
        return restored + added

    @retry(retry=retry_if_exception_type(Conflict), stop=stop_after_attempt(3), reraise=True)
    async def _append_copies(
        self,
        tenant_id: str,
        target: Conversation,
        snapshot_id: str,
        used: Collection[str],
        batch: Sequence[SourceMessage],
    ) -> tuple[int, tuple[Span, ...]]:
        """Append those copies that a log does not have; return their number, and where others are.

        It is tried again after a concurrent restore, and when an open call was closed.
        """
        key = target.conversation_id
        copies = {copy_id(target.public_id, source): source for source in batch}
        async with self._database.session() as session:
            existing = await seqs_of(session, key, copies)
            open_calls = await session.log.open_calls(key)
        new = [
            (source.format, source.copied(id, snapshot_id, calls))
            for id, source, calls in new_copies(copies, existing, used, open_calls)
        ]
        # In an empty log a provider's item stands for what is restored before it.
        await self._append(tenant_id, key, new, applies_compactions=not target.state.head_seq)
        return len(new), spans_of(existing.values())

    async def _sources(self, part: SnapshotPart) -> AsyncIterator[SourceMessage]:
        async with aclosing(self._originals(part, Content.FULL)) as pages:
            async for page in pages:
                for original in page:
                    message = original.message
                    names = part.public_id, message.id, message.created_at.isoformat()
                    form = FormatName(message.format)
                    yield SourceMessage(*names, form, original.raw_message, original.size)

    async def _append(
        self,
        tenant_id: str,
        key: str,
        new: Iterable[tuple[FormatName, dict[str, Any]]],
        applies_compactions: bool,
    ) -> None:
        """Append messages, those of one format in a row together."""
        for format, run in groupby(new, key=itemgetter(0)):
            messages = [message for _, message in run]
            for start in range(0, len(messages), self._max_messages):
                batch = messages[start : start + self._max_messages]
                append = RawBatch(batch, format, applies_compactions=applies_compactions)
                await self._log.append(tenant_id, key, append)

    # --- importing ------------------------------------------------------------------------

    async def add_import(self, tenant_id: str, file: SnapshotFile) -> Snapshot:
        """Store a downloaded snapshot: its messages in new conversations, and the snapshot of them.

        A conversation that has all its messages already is taken as it is. Raises ValidationError
        for messages that an append would refuse, Conflict for a used id.
        """
        snapshot_id = file.snapshot_id.lower()
        taken = Conflict(f"The id {snapshot_id} is taken", {"snapshot_id": snapshot_id})
        if file.message_count != len(file.messages):
            raise ValidationError.at("/message_count", f"There are {len(file.messages)} messages")
        # In a thread: the number of messages is bounded by the size of the body only.
        sources = await asyncio.to_thread(parse_import, file.messages)
        models = {item.conversation_id: item.model for item in file.models}
        async with self._database.session() as session:
            own = {"tenant_id": tenant_id, "snapshot_id": snapshot_id}
            if await session.session.first(FIND, **own) is not None:
                raise taken
            agent = None
            if file.agent_id is not None:
                agent = await session.agents.find(tenant_id, file.agent_id)
        whose: dict[str, Any] = {"agent_id": agent.agent_id if agent is not None else None}
        parts: dict[str, SnapshotPart] = {}
        created: list[str] = []
        try:
            for id, messages in sources.items():
                new = ConversationCreate(conversation_id=id, model=models.get(id), **whose)
                parts[id] = await self._add_part(tenant_id, messages, new, created)
            named = {parts[id].public_id: models[id] for id in parts if id in models}
            given = {name: getattr(file, name) for name in Snapshot.__slots__}
            changed = {
                "snapshot_id": snapshot_id,
                "message_count": sum(part.message_count for part in parts.values()),
                "conversation_ids": tuple(part.public_id for part in parts.values()),
                "models": tuple(SnapshotModel(*item) for item in named.items()),
            }
            snapshot = Snapshot(**given | changed)
            async with self._database.transaction() as session:
                keys = [part.conversation_id for part in parts.values()]
                if len(await lock_conversations(session.session, tenant_id, keys)) < len(keys):
                    raise Conflict("A conversation of the snapshot was deleted meanwhile")
                if not await store_snapshot(session.session, tenant_id, snapshot, parts.values()):
                    raise taken
            return snapshot
        except BaseException:
            for key in created:
                with suppress(NotFound):  # deleted meanwhile
                    await self._conversations.remove(tenant_id, key)
            raise

    async def _add_part(
        self,
        tenant_id: str,
        sources: Sequence[SourceMessage],
        new: ConversationCreate,
        created: list[str],
    ) -> SnapshotPart:
        """Return where messages of a file are in logs, after appending them if need be.

        The key of a new conversation is added to `created` before anything is appended.
        """
        public_id = new.conversation_id or ""
        async with self._database.session() as session:
            if (known := await session.conversations.find_key(tenant_id, public_id)) is not None:
                seqs = await seqs_of(session, known, [source.id for source in sources])
                if len(seqs) == len(sources):
                    return SnapshotPart(known, public_id, spans_of(seqs.values()))
                new = new.model_copy(update={"conversation_id": None})
        conversation = await self._conversations.create(tenant_id, new)
        key = conversation.conversation_id
        created.append(key)
        async for batch in in_batches(_each(sources), self._max_messages, MAX_BATCH_BYTES):
            messages = [(source.format, source.imported()) for source in batch]
            await self._append(tenant_id, key, messages, applies_compactions=True)
        async with self._database.session() as session:
            stored = await session.conversations.get(tenant_id, key)
        return SnapshotPart(key, stored.public_id, (Span(1, stored.state.head_seq + 1),))


def parse_import(saved: Sequence[Any]) -> dict[str, list[SourceMessage]]:
    """Return the messages of a file by their conversations [snapshots.import].

    They are checked like an append. Raises ValidationError with a pointer, also for a tool result
    without its call.
    """
    sources: dict[str, list[SourceMessage]] = {}
    calls: dict[str, tuple[Calls, int]] = {}
    ids: set[tuple[str, str]] = set()
    for index, message in enumerate(saved):
        pointer, source = f"/messages/{index}", source_of(message)
        if (source.conversation_id, source.id) in ids:
            raise ValidationError.at(f"{pointer}/id", "The id is used twice in its conversation")
        ids.add((source.conversation_id, source.id))
        sources.setdefault(source.conversation_id, []).append(source)
        before, seq = calls.get(source.conversation_id, (NO_CALLS, 0))
        for draft in make_drafts(source.bare(), source.format, len, pointer, _NO_OFFLOADING):
            try:
                shape = batch_shape([draft], before, seq)
            except UnpairedToolResult as error:
                raise ValidationError.at(pointer, error.detail) from error
            assert shape is not None, "the calls are known"
            before, seq = shape.after(before, seq), seq + 1
        calls[source.conversation_id] = before, seq
    return sources


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


def _saved(original: Original, public_id: str) -> bytes:
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
    return json_text.dump_stored(saved_of(original.raw_message, own))


def changed_meanwhile() -> ServiceUnavailable:
    """Return the error of a read that misses messages."""
    return ServiceUnavailable("The snapshot changed while it was read", {"reason": "changed"})
