"""Snapshots: save, list, read, import, restore and delete.

A snapshot stores the active windows of one moment; its summary is generated afterwards, with no
session open. Conversations that are deleted meanwhile are left out, and then the summary too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from app.blobs.offloading import OffloadRules
from app.common.errors import Conflict, NotFound, UnpairedToolResult, ValidationError
from app.common.ids import keys_of
from app.common.pages import UNBOUNDED, Bound, Page
from app.common.texts import sendable
from app.conversations.conversation import Agent, Conversation
from app.conversations.lookup import find_key, get_agent
from app.conversations.messages.draft import make_drafts
from app.conversations.messages.redactions import REDACTED_SUMMARY
from app.conversations.messages.row import NO_CALLS, Calls, batch_shape
from app.conversations.messages.stored_results import Content
from app.conversations.schemas import ConversationCreate
from app.conversations.service import ConversationService
from app.conversations.settings_resolver import SettingsResolver
from app.conversations.snapshot_removal import REMOVED_SUMMARY
from app.conversations.view import Span, spans_of, spans_through
from app.conversations.windows.active_window import marker_of
from app.conversations.windows.service import ActiveWindows
from app.policy.policy import ToolOutputPolicy
from app.repositories import Database
from app.snapshots.copies import SourceMessage, source_of, without_ref
from app.snapshots.repository import (
    REMOVE,
    SnapshotPart,
    add_snapshot,
    find_snapshot,
    lock_conversations,
    page_of_snapshots,
    parts_of,
)
from app.snapshots.restores import RestoredSnapshot, RestoreService, changed_meanwhile, seqs_of
from app.snapshots.schemas import Snapshot, SnapshotFile, SnapshotModel
from app.snapshots.summaries import SnapshotSummaries, SnapshotWindow

_NO_OFFLOADING = OffloadRules(ToolOutputPolicy(enabled=False))


@dataclass(eq=False, repr=False)
class SnapshotService:
    """Saves, reads, imports, restores and deletes snapshots."""

    _database: Database
    _resolver: SettingsResolver
    _summaries: SnapshotSummaries
    _restores: RestoreService
    _conversations: ConversationService
    _active: ActiveWindows
    _new_id: Callable[[], str]

    # --- saving ---------------------------------------------------------------------------

    async def save_conversation(
        self, tenant_id: str, conversation_id: str, description: str | None = None
    ) -> Snapshot:
        """Save the active window of a conversation, without clearing it.

        Raises NotFound, or ValidationError when the window is empty.
        """
        async with self._database.session() as session:
            found = await self._resolver.find_conversation(session, tenant_id, conversation_id)
        windows = await self._windows(tenant_id, [found])
        return await self._save(tenant_id, windows, description, None)

    async def save_agent(
        self, tenant_id: str, agent_id: str, description: str | None = None
    ) -> Snapshot:
        """Save the active windows of all conversations of an agent, without clearing them.

        Raises NotFound, or ValidationError when all of them are empty.
        """
        async with self._database.session() as session:
            agent = await get_agent(session, tenant_id, agent_id)
            ids = await session.conversations.ids_of_agent(tenant_id, agent_id)
            stored = [
                await session.conversations.find(tenant_id, each, self._resolver.default_model)
                for each in ids
            ]
        conversations = sorted(
            filter(None, stored), key=lambda item: (item.created_at, item.conversation_id)
        )
        windows = await self._windows(tenant_id, conversations)
        return await self._save(tenant_id, windows, description, agent)

    async def _windows(
        self, tenant_id: str, conversations: Sequence[Conversation]
    ) -> list[SnapshotWindow]:
        """Return the windows that are not empty now; raises ValidationError if all are."""
        windows = []
        for conversation in conversations:
            try:
                updated = await self._active.updated(tenant_id, conversation)
            except NotFound:
                continue  # deleted meanwhile
            spans = spans_through(updated.state.window.spans, updated.state.head_seq)
            if spans:
                part = SnapshotPart(updated.conversation_id, updated.public_id, tuple(spans))
                windows.append(SnapshotWindow(updated, part))
        if not windows:
            raise ValidationError("There are no messages to save")
        return windows

    async def _save(
        self,
        tenant_id: str,
        windows: Sequence[SnapshotWindow],
        description: str | None,
        agent: Agent | None,
    ) -> Snapshot:
        """Store a snapshot of the windows of an agent, or of one conversation.

        Conversations that are deleted meanwhile are left out.
        """
        now, default_model = self._active.now(), self._resolver.default_model
        first, part = windows[0].conversation, windows[0].part
        owner = agent or first
        cleared_at, policy = first.state.cleared_at, self._resolver.policy_of(first)
        if agent is not None:
            cleared_at, policy = agent.last_cleared_at, self._resolver.policy(agent.settings.policy)
        start = marker_of(cleared_at, owner.rolling_window_seconds, now)
        summary = await self._summaries.of(
            tenant_id, windows, policy.compaction.model, owner.model or default_model
        )
        async with self._database.transaction() as session:
            if agent is not None:  # the lock orders this transaction and a deletion of the agent
                await get_agent(session, tenant_id, agent.agent_id, lock=True)
            ids = [window.part.conversation_id for window in windows]
            existing = await lock_conversations(session.session, tenant_id, ids)
            saved = [window for window in windows if window.part.conversation_id in existing]
            if not saved:
                raise NotFound.conversation(part.public_id)
            versions = [window.conversation.state.redacted_version for window in saved]
            if len(saved) < len(windows):
                summary = REMOVED_SUMMARY
            elif versions != [existing[window.part.conversation_id] for window in saved]:
                summary = REDACTED_SUMMARY
            models = [
                (item.part.public_id, item.conversation.model or default_model) for item in saved
            ]
            snapshot = Snapshot(
                snapshot_id=self._new_id(),
                created_at=now,
                description=_sendable(description),
                summary=summary,
                message_count=sum(window.part.message_count for window in saved),
                window_start=start or first.state.oldest_at or now,
                window_end=now,
                agent_id=owner.agent_id,
                conversation_ids=tuple(public_id for public_id, _ in models),
                models=tuple(SnapshotModel(each, model) for each, model in models if model),
            )
            parts = [item.part for item in saved]
            await add_snapshot(session.session, tenant_id, snapshot, parts)
        return snapshot

    async def add_import(self, tenant_id: str, file: SnapshotFile) -> Snapshot:
        """Store a downloaded snapshot: its messages in new conversations, and the snapshot of them.

        A conversation that has all its messages already is taken as it is. Raises ValidationError
        for messages that an append would refuse, Conflict for a used id.
        """
        snapshot_id = file.snapshot_id.lower()
        if file.message_count != len(file.messages):
            raise ValidationError.at("/message_count", f"There are {len(file.messages)} messages")
        # In a thread: the number of messages is bounded by the size of the body only.
        sources = await asyncio.to_thread(parse_import, file.messages)
        models = {item.conversation_id: item.model for item in file.models}
        async with self._database.session() as session:
            if await find_snapshot(session.session, tenant_id, snapshot_id) is not None:
                raise _id_taken(snapshot_id)
            agent = None
            if file.agent_id is not None:
                agent = await session.agents.find(tenant_id, file.agent_id)
        inherited = (agent.model if agent is not None else None) or self._resolver.default_model
        parts: dict[str, SnapshotPart] = {}
        created: list[str] = []
        try:
            for source_id, messages in sources.items():
                model = models.get(source_id)
                new = ConversationCreate(
                    conversation_id=source_id,
                    agent_id=agent.agent_id if agent is not None else None,
                    model=model if model != inherited else None,
                )
                parts[source_id] = await self._add_part(tenant_id, messages, new, created)
            given = {name: getattr(file, name) for name in Snapshot.__slots__}
            own = {
                "snapshot_id": snapshot_id,
                "description": _sendable(file.description),
                "summary": sendable(file.summary),
                "message_count": sum(part.message_count for part in parts.values()),
                "conversation_ids": tuple(part.public_id for part in parts.values()),
                "models": tuple(
                    SnapshotModel(parts[id].public_id, models[id]) for id in parts if id in models
                ),
            }
            snapshot = Snapshot(**given | own)
            async with self._database.transaction() as session:
                keys = [part.conversation_id for part in parts.values()]
                if len(await lock_conversations(session.session, tenant_id, keys)) < len(keys):
                    raise Conflict("A conversation of the snapshot was deleted meanwhile")
                if not await add_snapshot(session.session, tenant_id, snapshot, [*parts.values()]):
                    raise _id_taken(snapshot_id)
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
            known_key = await find_key(session, tenant_id, public_id)
            if known_key is not None:
                seqs = await seqs_of(session, known_key, [source.id for source in sources])
                if len(seqs) == len(sources):
                    return SnapshotPart(known_key, public_id, tuple(spans_of(seqs.values())))
                new = new.model_copy(update={"conversation_id": None})
        conversation = await self._conversations.create(tenant_id, new)
        key = conversation.conversation_id
        created.append(key)
        await self._restores.append(tenant_id, key, sources)
        stored = await self._conversations.get(tenant_id, key)
        end = stored.state.head_seq + 1
        return SnapshotPart(key, conversation.public_id, (Span(1, end),))

    # --- reading --------------------------------------------------------------------------

    async def page(
        self,
        tenant_id: str,
        limit: int,
        before: tuple[datetime, str] | None,
        *,
        agent_id: str | None = None,
        public_id: str | None = None,
        bound: Bound = UNBOUNDED,
    ) -> Page[Snapshot]:
        """Return a page, newest first, after the time and id that ended the previous page.

        An agent selects its snapshots and those of its conversations, a conversation those with its
        messages.
        """
        async with self._database.session() as session:
            key = None
            if public_id is not None:
                key = await find_key(session, tenant_id, public_id)
                key = key or keys_of(tenant_id, public_id)[0]
            filters = {"agent_id": agent_id, "conversation_id": key}
            return await page_of_snapshots(
                session.session, tenant_id, limit, before, bound, **filters
            )

    async def read(
        self, tenant_id: str, snapshot_id: str, content: Content
    ) -> tuple[Snapshot, AsyncGenerator[list[bytes]]]:
        """Return a snapshot and the pages of its entries as JSON texts; raises NotFound.

        The pages end in ServiceUnavailable if entries are missing. The caller may remove entries
        from a page to free their memory.
        """
        snapshot, parts = await self._get(tenant_id, snapshot_id)
        return snapshot, self._pages(snapshot, parts, content)

    async def _pages(
        self,
        snapshot: Snapshot,
        parts: Sequence[SnapshotPart],
        content: Content,
    ) -> AsyncGenerator[list[bytes]]:
        missing = snapshot.message_count
        for part in parts:
            async for page in self._restores.entries(part, content):
                missing -= len(page)
                yield page
        if missing:
            raise changed_meanwhile()

    # --- restoring and deleting -----------------------------------------------------------

    async def restore(
        self, tenant_id: str, snapshot_id: str, public_id: str | None = None
    ) -> RestoredSnapshot:
        """Restore the messages into their own conversations, or all into the one with this id.

        Raises NotFound for an unknown snapshot, and as `RestoreService.restore` does.
        """
        snapshot, parts = await self._get(tenant_id, snapshot_id)
        return await self._restores.restore(tenant_id, snapshot, parts, public_id)

    async def remove(self, tenant_id: str, snapshot_id: str) -> Mapping[str, int]:
        """Delete a snapshot and return the rows deleted by table; raises NotFound."""
        async with self._database.transaction() as session:
            deleted = await session.session.first(
                REMOVE, tenant_id=tenant_id, snapshot_id=snapshot_id
            )
            if deleted is None or not deleted["snapshots"]:
                raise _no_snapshot(snapshot_id)
        return dict(deleted)

    async def _get(self, tenant_id: str, snapshot_id: str) -> tuple[Snapshot, list[SnapshotPart]]:
        async with self._database.transaction() as session:
            snapshot = await find_snapshot(session.session, tenant_id, snapshot_id)
            if snapshot is None:
                raise _no_snapshot(snapshot_id)
            parts = await parts_of(session.session, tenant_id, snapshot_id)
        return snapshot, parts


def _sendable(description: str | None) -> str | None:
    return sendable(description) if description is not None else None


def _no_snapshot(snapshot_id: str) -> NotFound:
    return NotFound(f"No snapshot {snapshot_id}", {"snapshot_id": snapshot_id})


def _id_taken(snapshot_id: str) -> Conflict:
    return Conflict(f"The id {snapshot_id} is taken", {"snapshot_id": snapshot_id})


def parse_import(entries: Sequence[Any]) -> dict[str, list[SourceMessage]]:
    """Return the messages of a file by their conversations [snapshots.import].

    They are checked like an append. Raises ValidationError with a pointer, also for a tool result
    without its call.
    """
    sources: dict[str, list[SourceMessage]] = {}
    calls: dict[str, tuple[Calls, int]] = {}
    ids: set[tuple[str, str]] = set()
    for index, entry in enumerate(entries):
        pointer, source = f"/messages/{index}", source_of(entry)
        if (source.conversation_id, source.id) in ids:
            raise ValidationError.at(f"{pointer}/id", "The id is used twice in its conversation")
        ids.add((source.conversation_id, source.id))
        sources.setdefault(source.conversation_id, []).append(source)
        message = without_ref(source.message, source.format)
        before, seq = calls.get(source.conversation_id, (NO_CALLS, 0))
        for draft in make_drafts(message, source.format, len, pointer, _NO_OFFLOADING):
            try:
                shape = batch_shape([draft], before, seq)
            except UnpairedToolResult as error:
                raise ValidationError.at(pointer, error.detail) from error
            assert shape is not None, "the calls are known"
            before, seq = shape.after(before, seq), seq + 1
        calls[source.conversation_id] = before, seq
    return sources
