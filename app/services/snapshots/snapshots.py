"""Snapshots: saved, listed, read, imported, restored and deleted (I1-I4, S4).

1. A snapshot is taken of windows as they are at one moment; a recap of them takes its time, with
   no session open. What was deleted meanwhile is left out, and then the recap as well.
2. Messages are read a page at a time. A reading that cannot be finished ends in an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from app.domain.common import json_text
from app.domain.common.errors import Conflict, NotFound, ValidationError
from app.domain.common.messages import sendable
from app.domain.common.pages import Bound, Page
from app.domain.conversations.active_window import marker_of
from app.domain.conversations.agent import Agent
from app.domain.conversations.conversation import Conversation
from app.domain.conversations.view import spans_through
from app.domain.snapshots.snapshots import (
    FORGOTTEN_SUMMARY,
    Snapshot,
    SnapshotModel,
    SnapshotPart,
    entry_of,
    models_of,
    read_import,
)
from app.services.common.read_permits import UNLIMITED, Read
from app.services.conversations.active_windows import ActiveWindows
from app.services.ports import Database
from app.services.prompt.settings_resolver import SettingsResolver
from app.services.snapshots.restores import (
    PAGE_MESSAGES,
    RestoredConversation,
    RestoreService,
    changed_meanwhile,
    originals_of,
)
from app.services.snapshots.snapshot_summaries import SnapshotSummaries, SnapshotWindow
from app.services.tool_output.stored_results import Content, Original, StoredResults

NO_MESSAGES = "Conversation has no messages"


@dataclass(frozen=True, slots=True)
class SnapshotImport:
    """A snapshot that comes from elsewhere; `messages` are its entries, or bare messages."""

    messages: Sequence[Any]
    session_id: str | None = None
    timestamp: datetime | None = None
    description: str | None = None
    summary: str = ""
    message_count: int | None = None
    window_start: datetime | None = None
    window_end: datetime | None = None
    agent_id: str | None = None
    models: Sequence[tuple[str | None, str]] = ()


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did, in all and for each conversation."""

    session_id: str
    restored: int
    skipped: int
    conversations: list[RestoredConversation]


class SnapshotService:
    """Takes snapshots of active windows, and brings them back."""

    def __init__(
        self,
        database: Database,
        resolver: SettingsResolver,
        recaps: SnapshotSummaries,
        restores: RestoreService,
        outputs: StoredResults,
        active: ActiveWindows,
        new_id: Callable[[], str],
    ) -> None:
        self._database = database
        self._frames = resolver
        self._recaps = recaps
        self._restores = restores
        self._outputs = outputs
        self._active = active
        self._new_id = new_id

    # --- saving ---------------------------------------------------------------------------

    async def save_conversation(
        self, tenant_id: str, conversation_id: str, description: str | None = None
    ) -> Snapshot:
        """Save the active window of a conversation; nothing is cleared (I1).

        Raises NotFound, or ValidationError when the window is empty.
        """
        found = await self._conversation(tenant_id, conversation_id)
        windows = await self._windows(tenant_id, [found])
        if not windows:
            raise ValidationError(NO_MESSAGES)
        conversation = windows[0].conversation
        seconds, cleared_at = conversation.rolling_window_seconds, conversation.state.cleared_at
        made = await self._made(
            tenant_id, windows, description, found.agent_id, cleared_at, seconds
        )
        policy = self._frames.policy_of(conversation)
        model = conversation.model or self._frames.default_model
        recap = await self._recaps.of(tenant_id, windows, policy.compaction.model, model)
        return await self._stored(tenant_id, replace(made, summary=recap), windows, None)

    async def save_agent(
        self, tenant_id: str, agent_id: str, description: str | None = None
    ) -> Snapshot:
        """Save the active windows of all conversations of an agent; nothing is cleared (I1).

        Raises NotFound, or ValidationError when all of them are empty.
        """
        agent = await self._agent(tenant_id, agent_id)
        async with self._database.session() as records:
            ids = await records.conversations.ids_of_agent(tenant_id, agent_id)
            found = [
                await records.conversations.find(tenant_id, given, self._frames.default_model)
                for given in ids
            ]
        there = sorted(
            filter(None, found), key=lambda item: (item.created_at, item.conversation_id)
        )
        windows = await self._windows(tenant_id, there)
        if not windows:
            raise ValidationError("No conversation of the agent has messages")
        made = await self._made(
            tenant_id,
            windows,
            description,
            agent_id,
            agent.last_cleared_at,
            agent.rolling_window_seconds,
        )
        policy = self._frames.policy(agent.settings.policy)
        model = agent.settings.model or self._frames.default_model
        recap = await self._recaps.of(tenant_id, windows, policy.compaction.model, model)
        return await self._stored(tenant_id, replace(made, summary=recap), windows, agent_id)

    async def _windows(
        self, tenant_id: str, conversations: Sequence[Conversation]
    ) -> list[SnapshotWindow]:
        """Return the windows that hold messages, as they are by now."""
        windows = []
        for conversation in conversations:
            try:
                settled = await self._active.settled(tenant_id, conversation)
            except NotFound:
                continue  # deleted meanwhile
            spans = spans_through(settled.state.window.spans, settled.state.head_seq)
            if spans:
                part = SnapshotPart(settled.conversation_id, tuple(spans))
                windows.append(SnapshotWindow(settled, part))
        return windows

    async def _made(
        self,
        tenant_id: str,
        windows: Sequence[SnapshotWindow],
        description: str | None,
        agent_id: str | None,
        cleared_at: datetime | None,
        seconds: int | None,
    ) -> Snapshot:
        """Return a snapshot of these windows, which has no summary yet."""
        now = self._active.now()
        start = marker_of(cleared_at, seconds, now)
        if start is None:
            first = windows[0].part
            async with self._database.session() as records:
                start = await records.snapshots.first_at(
                    first.conversation_id, first.spans[0].start
                )
        return Snapshot(
            session_id=self._new_id(),
            timestamp=now,
            description=sendable(description) if description is not None else None,
            summary="",
            message_count=sum(window.part.message_count for window in windows),
            window_start=start or now,
            window_end=now,
            agent_id=agent_id,
            conversation_ids=tuple(window.part.conversation_id for window in windows),
            models=tuple(self._models(windows)),
        )

    def _models(self, windows: Sequence[SnapshotWindow]) -> Iterator[SnapshotModel]:
        for window in windows:
            model = window.conversation.model or self._frames.default_model
            if model is not None:
                yield SnapshotModel(window.part.conversation_id, model)

    async def _stored(
        self,
        tenant_id: str,
        snapshot: Snapshot,
        windows: Sequence[SnapshotWindow],
        agent_id: str | None,
    ) -> Snapshot:
        """Store a snapshot without the conversations that were deleted meanwhile (rule 1)."""
        async with self._database.transaction() as records:
            # Locked, so that the agent's deletion sees the snapshot or this sees the deletion.
            if agent_id is not None and not await records.agents.find(
                tenant_id, agent_id, lock=True
            ):
                raise NotFound.agent(agent_id)
            there = await records.snapshots.hold(tenant_id, snapshot.conversation_ids)
            parts = [window.part for window in windows if window.part.conversation_id in there]
            if not parts:
                raise NotFound.conversation(snapshot.conversation_ids[0])
            if len(parts) < len(windows):
                snapshot = replace(
                    snapshot,
                    summary=FORGOTTEN_SUMMARY,
                    message_count=sum(part.message_count for part in parts),
                    conversation_ids=tuple(part.conversation_id for part in parts),
                    models=tuple(item for item in snapshot.models if item.conversation_id in there),
                )
            await records.snapshots.add(tenant_id, snapshot, parts)
        return snapshot

    async def add_import(self, tenant_id: str, given: SnapshotImport) -> Snapshot:
        """Store a snapshot that comes from elsewhere (I2).

        Raises ValidationError for messages that no log would take, Conflict when its id is taken.
        """
        count = len(given.messages)
        if given.message_count is not None and given.message_count != count:
            raise ValidationError.at("/message_count", f"There are {count} messages")
        session_id = given.session_id or self._new_id()
        # In a thread: a snapshot may have as many messages as fit a body.
        messages = await asyncio.to_thread(read_import, given.messages, session_id)
        timestamp = given.timestamp or self._active.now()
        snapshot = Snapshot(
            session_id=session_id,
            timestamp=timestamp,
            description=sendable(given.description) if given.description is not None else None,
            summary=sendable(given.summary),
            message_count=count,
            window_start=given.window_start or timestamp,
            window_end=given.window_end or timestamp,
            agent_id=given.agent_id,
            conversation_ids=tuple(dict.fromkeys(message.source_id for message in messages)),
            imported=True,
            models=models_of(given.models, messages, session_id),
        )
        async with self._database.session() as records:
            if not await records.snapshots.add(tenant_id, snapshot, messages=messages):
                raise Conflict(f"The id {session_id} is taken", {"session_id": session_id})
        return snapshot

    # --- reading --------------------------------------------------------------------------

    async def page(
        self,
        tenant_id: str,
        limit: int,
        before: tuple[datetime, str] | None,
        *,
        agent_id: str | None = None,
        conversation_id: str | None = None,
        read: Read = UNLIMITED,
    ) -> Page[Snapshot]:
        """Return a page, newest first, after the time and id of the page before (I3)."""
        async with self._database.session() as records:
            return await records.snapshots.page(
                tenant_id, agent_id, conversation_id, limit, before, Bound(read.max_bytes)
            )

    async def page_of_agent(
        self,
        tenant_id: str,
        agent_id: str,
        limit: int,
        before: tuple[datetime, str] | None,
        read: Read = UNLIMITED,
    ) -> Page[Snapshot]:
        """Return a page of an agent's snapshots, its conversations' too; raises NotFound."""
        await self._agent(tenant_id, agent_id)
        return await self.page(tenant_id, limit, before, agent_id=agent_id, read=read)

    async def page_of_conversation(
        self,
        tenant_id: str,
        conversation_id: str,
        limit: int,
        before: tuple[datetime, str] | None,
        read: Read = UNLIMITED,
    ) -> Page[Snapshot]:
        """Return a page of the snapshots with a part of a conversation; raises NotFound."""
        await self._conversation(tenant_id, conversation_id)
        return await self.page(tenant_id, limit, before, conversation_id=conversation_id, read=read)

    async def read(
        self, tenant_id: str, session_id: str, content: Content, read: Read = UNLIMITED
    ) -> tuple[Snapshot, AsyncGenerator[list[bytes]]]:
        """Return a snapshot, and its entries as JSON texts, page by page (I2); raises NotFound.

        Who takes entries out of a page when they are sent need not hold them all.

        The pages end in ServiceUnavailable where they would not be all of it (rule 2).
        """
        snapshot, parts = await self._found(tenant_id, session_id)
        if snapshot.imported:
            pages = self._brought(tenant_id, snapshot, read)
        else:
            pages = self._entries(parts, content, read)
        return snapshot, _all_of(snapshot, pages)

    async def _entries(
        self, parts: Sequence[SnapshotPart], content: Content, read: Read
    ) -> AsyncGenerator[list[bytes]]:
        for part in parts:
            async for page in originals_of(self._database, self._outputs, part, content, read):
                entries = [_entry(original, part.conversation_id) for original in page]
                page.clear()
                yield entries

    async def _brought(
        self, tenant_id: str, snapshot: Snapshot, read: Read
    ) -> AsyncGenerator[list[bytes]]:
        after, session_id = 0, snapshot.session_id

        async def ask(bound: Bound) -> Page[tuple[int, str]]:
            async with self._database.session() as records:
                return await records.snapshots.messages(
                    tenant_id, session_id, after, PAGE_MESSAGES, None, bound
                )

        while page := await read.page(ask):
            after = page[-1][0]
            entries = [body.encode() for _, body in page]
            page.clear()
            yield entries
            await read.let_go()

    # --- restoring and deleting -----------------------------------------------------------

    async def restore(
        self, tenant_id: str, session_id: str, conversation_id: str | None = None
    ) -> Restored:
        """Bring the messages back into the windows they came from, or into one other (I4).

        What is active there already is skipped. Raises NotFound for an unknown snapshot or
        conversation, ValidationError for several conversations that would go into one.
        """
        snapshot, parts = await self._found(tenant_id, session_id)
        done = await self._restores.restore(tenant_id, snapshot, parts, conversation_id)
        return Restored(
            session_id,
            sum(item.restored for item in done),
            sum(item.skipped for item in done),
            done,
        )

    async def remove(self, tenant_id: str, session_id: str) -> Mapping[str, int]:
        """Delete a snapshot; return rows by table. Raises NotFound."""
        async with self._database.session() as records:
            deleted = await records.snapshots.remove(tenant_id, session_id)
        if not deleted["snapshots"]:
            raise _no_snapshot(session_id)
        return deleted

    async def _found(self, tenant_id: str, session_id: str) -> tuple[Snapshot, list[SnapshotPart]]:
        async with self._database.transaction() as records:
            snapshot = await records.snapshots.find(tenant_id, session_id)
            if snapshot is None:
                raise _no_snapshot(session_id)
            parts = await records.snapshots.parts(tenant_id, session_id)
        return snapshot, parts

    async def _conversation(self, tenant_id: str, conversation_id: str) -> Conversation:
        async with self._database.session() as records:
            found = await records.conversations.find(
                tenant_id, conversation_id, self._frames.default_model
            )
        if found is None:
            raise NotFound.conversation(conversation_id)
        return found

    async def _agent(self, tenant_id: str, agent_id: str) -> Agent:
        async with self._database.session() as records:
            found = await records.agents.find(tenant_id, agent_id)
        if found is None:
            raise NotFound.agent(agent_id)
        return found


async def _all_of(
    snapshot: Snapshot, pages: AsyncGenerator[list[bytes]]
) -> AsyncGenerator[list[bytes]]:
    left = snapshot.message_count
    async for page in pages:
        left -= len(page)
        yield page
    if left:
        raise changed_meanwhile()


def _entry(original: Original, conversation_id: str) -> bytes:
    message, ref = original.message, original.message.output_ref
    own = {
        "id": message.id,
        "conversation_id": conversation_id,
        "seq": message.seq,
        "format": message.format,
        "created_at": message.created_at.isoformat(),
        "output_ref": asdict(ref) if ref is not None else None,
        "content_truncated": original.is_truncated,
        "content_collected": original.is_collected,
    }
    return json_text.dump_stored(entry_of(original.piece, own))


def _no_snapshot(session_id: str) -> NotFound:
    return NotFound(f"No snapshot {session_id}", {"session_id": session_id})
