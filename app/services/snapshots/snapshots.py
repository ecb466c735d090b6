"""Snapshots: save, list, read, import, restore and delete.

A snapshot stores the active windows of one moment; its summary is generated afterwards, with no
session open. Conversations that are deleted meanwhile are left out, and then the summary too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from app.domain.common.errors import Conflict, NotFound, ValidationError
from app.domain.common.messages import sendable
from app.domain.common.pages import Bound, Page
from app.domain.conversations.active_window import marker_of
from app.domain.conversations.agent import Agent
from app.domain.conversations.conversation import Conversation
from app.domain.conversations.view import spans_through
from app.domain.snapshots.entries import models_of, parse_import
from app.domain.snapshots.snapshots import FORGOTTEN_SUMMARY, Snapshot, SnapshotModel, SnapshotPart
from app.services.common.read_permits import UNLIMITED, ReadPermit
from app.services.conversations.active_windows import ActiveWindows
from app.services.ports import Database
from app.services.prompt.settings_resolver import SettingsResolver
from app.services.snapshots.reading import complete, imported_entries, log_entries
from app.services.snapshots.restores import (
    RestoredConversation,
    RestoreService,
)
from app.services.snapshots.snapshot_summaries import SnapshotSummaries, SnapshotWindow
from app.services.tool_output.stored_results import Content, StoredResults

NO_MESSAGES = "Conversation has no messages"


@dataclass(frozen=True, slots=True)
class SnapshotImport:
    """An imported snapshot; `messages` are entries or bare messages."""

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
    """The result of a restore, in total and for each conversation."""

    session_id: str
    restored: int
    skipped: int
    conversations: list[RestoredConversation]


class SnapshotService:
    """Saves, reads, imports, restores and deletes snapshots."""

    def __init__(
        self,
        database: Database,
        resolver: SettingsResolver,
        summaries: SnapshotSummaries,
        restores: RestoreService,
        outputs: StoredResults,
        active: ActiveWindows,
        new_id: Callable[[], str],
    ) -> None:
        self._database = database
        self._resolver = resolver
        self._summaries = summaries
        self._restores = restores
        self._outputs = outputs
        self._active = active
        self._new_id = new_id

    # --- saving ---------------------------------------------------------------------------

    async def save_conversation(
        self, tenant_id: str, conversation_id: str, description: str | None = None
    ) -> Snapshot:
        """Save the active window of a conversation, without clearing it.

        Raises NotFound, or ValidationError when the window is empty.
        """
        current = await self._conversation(tenant_id, conversation_id)
        windows = await self._windows(tenant_id, [current])
        if not windows:
            raise ValidationError(NO_MESSAGES)
        conversation = windows[0].conversation
        seconds, cleared_at = conversation.rolling_window_seconds, conversation.state.cleared_at
        snapshot = await self._snapshot_of(
            tenant_id, windows, description, current.agent_id, cleared_at, seconds
        )
        policy = self._resolver.policy_of(conversation)
        model = conversation.model or self._resolver.default_model
        summary = await self._summaries.of(tenant_id, windows, policy.compaction.model, model)
        return await self._store(tenant_id, replace(snapshot, summary=summary), windows, None)

    async def save_agent(
        self, tenant_id: str, agent_id: str, description: str | None = None
    ) -> Snapshot:
        """Save the active windows of all conversations of an agent, without clearing them.

        Raises NotFound, or ValidationError when all of them are empty.
        """
        agent = await self._agent(tenant_id, agent_id)
        async with self._database.session() as session:
            ids = await session.conversations.ids_of_agent(tenant_id, agent_id)
            found = [
                await session.conversations.find(tenant_id, each, self._resolver.default_model)
                for each in ids
            ]
        conversations = sorted(
            filter(None, found), key=lambda item: (item.created_at, item.conversation_id)
        )
        windows = await self._windows(tenant_id, conversations)
        if not windows:
            raise ValidationError("No conversation of the agent has messages")
        snapshot = await self._snapshot_of(
            tenant_id,
            windows,
            description,
            agent_id,
            agent.last_cleared_at,
            agent.rolling_window_seconds,
        )
        policy = self._resolver.policy(agent.settings.policy)
        model = agent.settings.model or self._resolver.default_model
        summary = await self._summaries.of(tenant_id, windows, policy.compaction.model, model)
        return await self._store(tenant_id, replace(snapshot, summary=summary), windows, agent_id)

    async def _windows(
        self, tenant_id: str, conversations: Sequence[Conversation]
    ) -> list[SnapshotWindow]:
        """Return the windows that are not empty now."""
        windows = []
        for conversation in conversations:
            try:
                settled = await self._active.updated(tenant_id, conversation)
            except NotFound:
                continue  # deleted meanwhile
            spans = spans_through(settled.state.window.spans, settled.state.head_seq)
            if spans:
                part = SnapshotPart(settled.conversation_id, tuple(spans))
                windows.append(SnapshotWindow(settled, part))
        return windows

    async def _snapshot_of(
        self,
        tenant_id: str,
        windows: Sequence[SnapshotWindow],
        description: str | None,
        agent_id: str | None,
        cleared_at: datetime | None,
        seconds: int | None,
    ) -> Snapshot:
        now = self._active.now()
        start = marker_of(cleared_at, seconds, now)
        if start is None:
            first = windows[0].part
            async with self._database.session() as session:
                start = await session.snapshots.first_at(
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
            model = window.conversation.model or self._resolver.default_model
            if model is not None:
                yield SnapshotModel(window.part.conversation_id, model)

    async def _store(
        self,
        tenant_id: str,
        snapshot: Snapshot,
        windows: Sequence[SnapshotWindow],
        agent_id: str | None,
    ) -> Snapshot:
        """Store a snapshot without the conversations that were deleted meanwhile."""
        async with self._database.transaction() as session:
            # The lock orders this transaction and a deletion of the agent.
            if agent_id is not None and not await session.agents.find(
                tenant_id, agent_id, lock=True
            ):
                raise NotFound.agent(agent_id)
            existing = await session.snapshots.lock_conversations(
                tenant_id, snapshot.conversation_ids
            )
            parts = [window.part for window in windows if window.part.conversation_id in existing]
            if not parts:
                raise NotFound.conversation(snapshot.conversation_ids[0])
            if len(parts) < len(windows):
                snapshot = replace(
                    snapshot,
                    summary=FORGOTTEN_SUMMARY,
                    message_count=sum(part.message_count for part in parts),
                    conversation_ids=tuple(part.conversation_id for part in parts),
                    models=tuple(
                        item for item in snapshot.models if item.conversation_id in existing
                    ),
                )
            await session.snapshots.add(tenant_id, snapshot, parts)
        return snapshot

    async def add_import(self, tenant_id: str, new: SnapshotImport) -> Snapshot:
        """Store an imported snapshot.

        Raises ValidationError for messages that an append would refuse, Conflict for a used id.
        """
        count = len(new.messages)
        if new.message_count is not None and new.message_count != count:
            raise ValidationError.at("/message_count", f"There are {count} messages")
        session_id = new.session_id or self._new_id()
        # In a thread: the number of messages is bounded by the size of the body only.
        messages = await asyncio.to_thread(parse_import, new.messages, session_id)
        timestamp = new.timestamp or self._active.now()
        snapshot = Snapshot(
            session_id=session_id,
            timestamp=timestamp,
            description=sendable(new.description) if new.description is not None else None,
            summary=sendable(new.summary),
            message_count=count,
            window_start=new.window_start or timestamp,
            window_end=new.window_end or timestamp,
            agent_id=new.agent_id,
            conversation_ids=tuple(dict.fromkeys(message.source_id for message in messages)),
            imported=True,
            models=models_of(new.models, messages, session_id),
        )
        async with self._database.session() as session:
            if not await session.snapshots.add(tenant_id, snapshot, messages=messages):
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
        read: ReadPermit = UNLIMITED,
    ) -> Page[Snapshot]:
        """Return a page, newest first, after the time and id that ended the previous page."""
        async with self._database.session() as session:
            return await session.snapshots.page(
                tenant_id, agent_id, conversation_id, limit, before, Bound(read.max_bytes)
            )

    async def page_of_agent(
        self,
        tenant_id: str,
        agent_id: str,
        limit: int,
        before: tuple[datetime, str] | None,
        read: ReadPermit = UNLIMITED,
    ) -> Page[Snapshot]:
        """Return a page of the snapshots of an agent and its conversations; raises NotFound."""
        await self._agent(tenant_id, agent_id)
        return await self.page(tenant_id, limit, before, agent_id=agent_id, read=read)

    async def page_of_conversation(
        self,
        tenant_id: str,
        conversation_id: str,
        limit: int,
        before: tuple[datetime, str] | None,
        read: ReadPermit = UNLIMITED,
    ) -> Page[Snapshot]:
        """Return a page of the snapshots with messages of a conversation; raises NotFound."""
        await self._conversation(tenant_id, conversation_id)
        return await self.page(tenant_id, limit, before, conversation_id=conversation_id, read=read)

    async def read(
        self, tenant_id: str, session_id: str, content: Content, read: ReadPermit = UNLIMITED
    ) -> tuple[Snapshot, AsyncGenerator[list[bytes]]]:
        """Return a snapshot and the pages of its entries as JSON texts; raises NotFound.

        The pages end in ServiceUnavailable if entries are missing. The caller may remove entries
        from a page to free their memory.
        """
        snapshot, parts = await self._found(tenant_id, session_id)
        if snapshot.imported:
            pages = imported_entries(self._database, tenant_id, session_id, None, read)
        else:
            pages = log_entries(self._database, self._outputs, parts, content, read)
        return snapshot, complete(snapshot, pages)

    # --- restoring and deleting -----------------------------------------------------------

    async def restore(
        self, tenant_id: str, session_id: str, conversation_id: str | None = None
    ) -> Restored:
        """Restore the messages into their own conversations, or all into another one.

        Messages that are active there are skipped. Raises NotFound for an unknown snapshot or
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
        """Delete a snapshot and return the rows deleted by table; raises NotFound."""
        async with self._database.session() as session:
            deleted = await session.snapshots.remove(tenant_id, session_id)
        if not deleted["snapshots"]:
            raise _no_snapshot(session_id)
        return deleted

    async def _found(self, tenant_id: str, session_id: str) -> tuple[Snapshot, list[SnapshotPart]]:
        async with self._database.transaction() as session:
            snapshot = await session.snapshots.find(tenant_id, session_id)
            if snapshot is None:
                raise _no_snapshot(session_id)
            parts = await session.snapshots.parts(tenant_id, session_id)
        return snapshot, parts

    async def _conversation(self, tenant_id: str, conversation_id: str) -> Conversation:
        async with self._database.session() as session:
            found = await session.conversations.find(
                tenant_id, conversation_id, self._resolver.default_model
            )
        if found is None:
            raise NotFound.conversation(conversation_id)
        return found

    async def _agent(self, tenant_id: str, agent_id: str) -> Agent:
        async with self._database.session() as session:
            found = await session.agents.find(tenant_id, agent_id)
        if found is None:
            raise NotFound.agent(agent_id)
        return found


def _no_snapshot(session_id: str) -> NotFound:
    return NotFound(f"No snapshot {session_id}", {"session_id": session_id})
