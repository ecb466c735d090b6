"""Restoring snapshots: ranges that rejoin their window, and copies that go elsewhere (I4).

1. Into its own conversation nothing is appended: what is outside the window rejoins it (decision
   31). What is in the window is skipped, so that restoring twice restores nothing again.
2. Elsewhere a message is appended as a copy whose id follows from what it is a copy of. One that
   the log has already rejoins the window or is skipped, as above; so a restore that was broken off
   can be asked for again.
3. Copies go in batches that never part a call from its results, but where a group alone is larger
   than a batch, or comes in several formats. Each batch is an append like any other.
4. A window that was added to shows something else from then on: its next build starts an epoch
   (decision 16), and replays no reasoning that was bound to the prefix it had elsewhere (K3).
5. An import's conversation that does not exist here is made, under its own id if that is free. It
   gets the model that it was built for, unless it has that from its agent or the service anyway.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

from app.domain.common import json_text
from app.domain.common.errors import Conflict, NotFound, ServiceUnavailable, ValidationError
from app.domain.common.messages import FormatName
from app.domain.common.pages import Bound, Page
from app.domain.conversations.conversation import Conversation
from app.domain.conversations.events import EventType
from app.domain.conversations.stored_message import StoredMessage
from app.domain.conversations.view import Span, count_in, minus, spans_of, spans_through
from app.domain.snapshots.snapshots import (
    Snapshot,
    SnapshotPart,
    Source,
    copied,
    copy_id,
    fresh_calls,
    late_calls,
    piece_ids,
    source_of,
    stand_in,
)
from app.services.common.read_permits import BATCH_BYTES, Read
from app.services.conversations.active_windows import ActiveWindows
from app.services.ports import Database
from app.services.tool_output.stored_results import Content, Original, StoredResults

PAGE_MESSAGES = 200
MAX_BATCH_BYTES = 16 * 2**20
"""Text of copies appended at once, unless one call group alone has more."""
_MAX_ROUNDS = 3

AppendCopies = Callable[[str, str, Sequence[Mapping[str, Any]], FormatName], Awaitable[None]]
"""Appends messages of one format to a tenant's conversation, as any client's are appended."""
MakeConversation = Callable[[str, str, str | None, str | None], Awaitable[None]]
"""Makes a tenant's conversation with this id, of this agent, with a model of its own or none.

Raises Conflict when the id is taken.
"""


@dataclass(frozen=True, slots=True)
class RestoredConversation:
    """How many messages a conversation got back, and how many it had in its window already."""

    conversation_id: str
    source_conversation_id: str
    restored: int
    skipped: int


@dataclass(slots=True)
class _Target:
    """Where messages go: the ids of calls in its window, the copies added, and their counts."""

    conversation_id: str
    used_calls: frozenset[str] = frozenset()
    added: set[str] = field(default_factory=set)
    restored: int = 0
    skipped: int = 0

    def count(self, restored: int, messages: int) -> None:
        """Count so many of the messages as restored, and the others as skipped."""
        self.restored += restored
        self.skipped += messages - restored


@dataclass(frozen=True, slots=True)
class _Copy:
    """A source with its id as a copy, and all ids by which its target's log may have it."""

    source: Source
    id: str
    known_as: tuple[str, ...]


class RestoreService:
    """Brings a snapshot's messages back into windows."""

    def __init__(
        self,
        database: Database,
        outputs: StoredResults,
        active: ActiveWindows,
        append: AppendCopies,
        make: MakeConversation,
        default_model: str | None,
        most_messages: int,
    ) -> None:
        self._database = database
        self._outputs = outputs
        self._active = active
        self._append = append
        self._make = make
        self._default_model = default_model
        self._most_messages = most_messages

    async def restore(
        self,
        tenant_id: str,
        snapshot: Snapshot,
        parts: Sequence[SnapshotPart],
        target_id: str | None,
    ) -> list[RestoredConversation]:
        """Restore all conversations of a snapshot, or its only one into the target.

        Raises NotFound for an unknown target, ValidationError for one that several conversations
        would go into, Conflict when others write to a target too fast.
        """
        if target_id is not None:
            await self._find(tenant_id, target_id)
            if len(snapshot.conversation_ids) > 1:
                detail = "The snapshot is of several conversations, which cannot become one"
                raise ValidationError.at("/conversation_id", detail)
        if snapshot.imported:
            return [
                await self._restore_import(tenant_id, snapshot, source_id, target_id)
                for source_id in snapshot.conversation_ids
            ]
        return [await self._restore_part(tenant_id, snapshot, part, target_id) for part in parts]

    async def _restore_part(
        self, tenant_id: str, snapshot: Snapshot, part: SnapshotPart, target_id: str | None
    ) -> RestoredConversation:
        source_id = part.conversation_id
        if target_id in (None, source_id):
            target = _Target(source_id)
            outside = await self._rejoin(tenant_id, source_id, part.spans)
            target.count(count_in(outside), part.message_count)
        else:
            assert target_id is not None
            target = await self._target(tenant_id, target_id)
            await self._copy(tenant_id, snapshot, self._stored(part), target)
        return await self._done(snapshot, source_id, target)

    async def _restore_import(
        self, tenant_id: str, snapshot: Snapshot, source_id: str, target_id: str | None
    ) -> RestoredConversation:
        known_id = target_id or await self._home(tenant_id, snapshot, source_id)
        target = await self._target(tenant_id, known_id)
        brought = self._brought(tenant_id, snapshot.session_id, source_id)
        await self._copy(tenant_id, snapshot, brought, target)
        return await self._done(snapshot, source_id, target)

    async def _done(
        self, snapshot: Snapshot, source_id: str, target: _Target
    ) -> RestoredConversation:
        """Tell of a conversation that was restored."""
        told = {
            "session_id": snapshot.session_id,
            "restored": target.restored,
            "skipped": target.skipped,
        }
        async with self._database.session() as records:
            await records.events.add(
                target.conversation_id, EventType.RESTORED, json_text.dumps(told)
            )
        return RestoredConversation(
            target.conversation_id, source_id, target.restored, target.skipped
        )

    # --- where messages go ----------------------------------------------------------------

    async def _find(self, tenant_id: str, conversation_id: str) -> Conversation:
        async with self._database.session() as records:
            found = await records.conversations.find(
                tenant_id, conversation_id, self._default_model
            )
        if found is None:
            raise NotFound.conversation(conversation_id)
        return found

    async def _target(self, tenant_id: str, conversation_id: str) -> _Target:
        found = await self._active.settled(tenant_id, await self._find(tenant_id, conversation_id))
        spans = spans_through(found.state.window.spans, found.state.head_seq)
        async with self._database.session() as records:
            used = await records.snapshots.calls_in(conversation_id, spans)
        return _Target(conversation_id, used)

    async def _home(self, tenant_id: str, snapshot: Snapshot, source_id: str) -> str:
        """Return the conversation that an import's messages belong to, made if need be (rule 5)."""
        homes = (source_id, stand_in(tenant_id, source_id))
        for known_id in homes:
            if await self._exists(tenant_id, known_id):
                return known_id
        agent_id, model = await self._inherited(tenant_id, snapshot.agent_id)
        own = snapshot.model_of(source_id)
        for known_id in homes:
            try:
                await self._make(tenant_id, known_id, agent_id, own if own != model else None)
            except Conflict:  # another tenant's, or made this moment by an equal restore
                if not await self._exists(tenant_id, known_id):
                    continue
            return known_id
        raise Conflict(f"The id {source_id} is taken", {"conversation_id": source_id})

    async def _inherited(
        self, tenant_id: str, agent_id: str | None
    ) -> tuple[str | None, str | None]:
        """Return the agent if there is such a one, and the model that its conversations have."""
        if agent_id is None:
            return None, self._default_model
        async with self._database.session() as records:
            agent = await records.agents.find(tenant_id, agent_id)
        if agent is None:
            return None, self._default_model
        return agent_id, agent.settings.model or self._default_model

    async def _exists(self, tenant_id: str, conversation_id: str) -> bool:
        async with self._database.session() as records:
            found = await records.conversations.find(
                tenant_id, conversation_id, self._default_model
            )
        return found is not None

    async def _rejoin(
        self, tenant_id: str, conversation_id: str, spans: Sequence[Span]
    ) -> tuple[Span, ...]:
        """Put ranges of the log back into the window, and return what of them was outside."""
        async with self._database.transaction() as records:
            found = await records.log.lock(tenant_id, conversation_id, self._default_model)
            if found is None:
                raise NotFound.conversation(conversation_id)
            found = await self._active.settle(records, found)
            outside = minus(spans, found.state.window.spans)
            if outside:
                await self._active.rejoin(records, found, outside)
        return outside

    # --- what is restored -----------------------------------------------------------------

    async def _stored(self, part: SnapshotPart) -> AsyncIterator[Source]:
        read = Read(BATCH_BYTES, MAX_BATCH_BYTES)
        async for page in originals_of(self._database, self._outputs, part, Content.FULL, read):
            for original in page:
                message, output = original.message, original.message.output
                yield Source(
                    part.conversation_id,
                    message.id,
                    FormatName(message.format),
                    original.piece,
                    max(len(message.body), output.byte_size if output is not None else 0),
                )

    async def _brought(
        self, tenant_id: str, session_id: str, source_id: str
    ) -> AsyncIterator[Source]:
        after = 0
        while True:
            async with self._database.session() as records:
                page = await records.snapshots.messages(
                    tenant_id, session_id, after, PAGE_MESSAGES, source_id, Bound(BATCH_BYTES)
                )
            for position, body in page:
                after = position
                yield source_of(body)
            if not page.has_more:
                return

    # --- copying --------------------------------------------------------------------------

    async def _copy(
        self,
        tenant_id: str,
        snapshot: Snapshot,
        sources: AsyncIterator[Source],
        target: _Target,
    ) -> None:
        async for batch in in_batches(sources, self._most_messages, MAX_BATCH_BYTES):
            copies = [_copy_of(target.conversation_id, source) for source in batch]
            found: Mapping[str, Sequence[int]] = {}
            for last in range(_MAX_ROUNDS)[::-1]:
                found = await self._found(target, copies)
                try:
                    await self._add(tenant_id, snapshot, target, copies, found)
                    break
                except Conflict:  # somebody else restores the same, or closed an open call
                    if not last:
                        raise
            known = [seqs for copy, seqs in found.items() if copy not in target.added]
            back = 0
            if known:
                spans = spans_of(seq for seqs in known for seq in seqs)
                outside = await self._rejoin(tenant_id, target.conversation_id, spans)
                back = sum(
                    any(span.holds(seq) for span in outside for seq in seqs) for seqs in known
                )
            added = sum(copy.id in target.added for copy in copies)
            target.count(back + added, len(copies))
        if target.added:
            await self._show_anew(tenant_id, target.conversation_id)

    async def _show_anew(self, tenant_id: str, conversation_id: str) -> None:
        """Have the next build of a conversation start an epoch (rule 4)."""
        async with self._database.transaction() as records:
            found = await records.log.lock(tenant_id, conversation_id, self._default_model)
            if found is None:
                raise NotFound.conversation(conversation_id)
            version = found.state.view_version + 1
            state = replace(found.state, view_version=version, view_cause="restored")
            await records.windows.move(conversation_id, state)

    async def _found(self, target: _Target, copies: Sequence[_Copy]) -> dict[str, list[int]]:
        """Return the seqs of those copies that the target's log has already (rule 2)."""
        ids = [message_id for copy in copies for message_id in copy.known_as]
        async with self._database.session() as records:
            seqs = await records.snapshots.seqs_of(target.conversation_id, ids)
        there = {copy.id: [seqs[name] for name in copy.known_as if name in seqs] for copy in copies}
        return {copy: found for copy, found in there.items() if found}

    async def _add(
        self,
        tenant_id: str,
        snapshot: Snapshot,
        target: _Target,
        copies: Sequence[_Copy],
        found: Mapping[str, Sequence[int]],
    ) -> None:
        """Append those copies that the log does not have, their calls renamed where they clash."""
        calls: Mapping[str, str] | None = {}
        asking = ""
        new: list[tuple[FormatName, dict[str, Any]]] = []
        for copy in copies:
            source = copy.source
            if not source.is_result:
                asking = copy.id
                calls = fresh_calls(source.own_calls, target.used_calls, asking)
            if copy.id in found:
                continue
            if source.is_result and asking in found:
                open_calls = (await self._find(tenant_id, target.conversation_id)).state.open_calls
                calls = late_calls(source.answers, open_calls, asking)
            if calls is not None:
                new.append((source.format, copied(source, copy.id, snapshot.session_id, calls)))
        for format, run in groupby(new, key=itemgetter(0)):
            messages = [message for _, message in run]
            for start in range(0, len(messages), self._most_messages):
                some = messages[start : start + self._most_messages]
                await self._append(tenant_id, target.conversation_id, some, format)
                target.added.update(message["id"] for message in some)


async def originals_of(
    database: Database,
    outputs: StoredResults,
    part: SnapshotPart,
    content: Content,
    read: Read,
) -> AsyncIterator[list[Original]]:
    """Yield the messages of a part as they came, a batch at a time; no session is open meanwhile.

    Raises ServiceUnavailable where messages are missing, since their conversation is deleted.
    """
    for span in part.spans:
        at = span.start
        while at < span.end:
            page = await read.page(_asking(database, part.conversation_id, at, span.end))
            seqs = [message.seq for message in page]
            if not seqs or seqs != list(range(at, at + len(seqs))):
                raise changed_meanwhile()
            at += len(seqs)
            while page:
                shown = await outputs.originals(part.conversation_id, page, content, read)
                del page[: len(shown)]
                yield shown
                shown.clear()  # or the next batch would be read while this one is held
                await read.let_go()


def _asking(
    database: Database, conversation_id: str, start: int, end: int
) -> Callable[[Bound], Awaitable[Page[StoredMessage]]]:
    async def ask(bound: Bound) -> Page[StoredMessage]:
        async with database.session() as records:
            return await records.log.page(
                conversation_id, start - 1, end, "asc", PAGE_MESSAGES, bound
            )

    return ask


def changed_meanwhile() -> ServiceUnavailable:
    """Return the error for a snapshot that lost messages while it was read."""
    return ServiceUnavailable("The snapshot changed while it was read", {"reason": "changed"})


async def in_batches(
    sources: AsyncIterator[Source], most_messages: int, most_bytes: int
) -> AsyncIterator[list[Source]]:
    """Yield messages in batches that begin and end between call groups (rule 3)."""
    batch: list[Source] = []
    group: list[Source] = []
    size = 0
    async for source in sources:
        if not source.is_result:
            batch, group = batch + group, []
        size += source.size_bytes
        if batch and (size > most_bytes or len(batch) + len(group) >= most_messages):
            yield batch
            batch, size = [], sum(item.size_bytes for item in (*group, source))
        group.append(source)
    if batch or group:
        yield batch + group


def _copy_of(target_id: str, source: Source) -> _Copy:
    own_id, pieces = copy_id(target_id, source), source.pieces
    known_as = piece_ids(own_id, pieces)
    if source.conversation_id == target_id:
        known_as += piece_ids(source.id, pieces)
    return _Copy(source, own_id, known_as)
