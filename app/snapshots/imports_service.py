"""Imports of exported conversations: all of a log or nothing [exports.import].

1. The lines are checked and stored in batches as they arrive, in a conversation that no tenant
   sees. The last transaction computes its window and its view, and gives it to its tenant.
2. An import that fails removes what it stored. After a crash, a worker removes what has not
   continued for `STALE_SECONDS`, or a new import with the same id does.
3. No session is open while bytes come from the client.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from app.common import json_text
from app.common.errors import Conflict, ServiceUnavailable, ValidationError
from app.common.public_ids import keys_of
from app.conversations.configurable_resources import claim_idempotency_key
from app.conversations.conversation import Conversation
from app.conversations.keys import creation_deleted, find_key, free_key, id_taken, own_id_of
from app.conversations.ports import BlobStore
from app.conversations.settings_resolver import SettingsResolver
from app.conversations.windows.service import view_state_of, with_window
from app.prompt.resolved_settings import digest
from app.repositories import Database, Repositories
from app.snapshots.export_format import ExportReader, Line
from app.snapshots.import_lines import ImportChecker
from app.snapshots.import_writer import ImportWriter

STALE_SECONDS = 600
"""After this time without a line, an import may be removed."""
MAX_WAIT_SECONDS = 30.0
"""How long a repeated import waits for the first one."""
_POLL_SECONDS = 0.25
_DROP_TIMEOUT_SECONDS = 60
_STALE_BATCH = 50
_LINES_AT_ONCE = 100
_MAX_ATTEMPTS = 3
_RECORD_FACTOR = 2
"""Bytes of a record for each byte of a request body: the quotes of its JSON are escaped."""
_TIMES = ("cleared_at", "oldest_at", "newest_at")
_log = logging.getLogger("app.imports")

CheckSettings = Callable[[Mapping[str, Any]], None]
"""Raises ValidationError unless a conversation could be created with these settings."""


@dataclass(frozen=True, slots=True)
class NewImport:
    """An import; the id of the file's agent is replaced by `agent_id`, if it is set."""

    public_id: str | None = None
    agent_id: str | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class Imported:
    """What was imported."""

    conversation_id: str
    public_id: str
    messages: int
    blobs: int


@dataclass(eq=False, repr=False)
class ImportService:
    """Imports conversations."""

    _database: Database
    _resolver: SettingsResolver
    _store: BlobStore
    _new_id: Callable[[], str]
    _now: Callable[[], datetime]
    _check_settings: CheckSettings
    _max_body_bytes: int
    _max_blob_bytes: int

    def __post_init__(self) -> None:
        self._stale = StaleImports(self._database, self._now)

    async def add(self, tenant_id: str, pieces: AsyncIterator[bytes], new: NewImport) -> Imported:
        """Import an export; a repeated idempotency key returns the first import, and waits for it.

        Raises ValidationError or PayloadTooLarge with the number of the line, or Conflict when the
        id is taken. Then nothing is stored.
        """
        repeated = await self._repeated(tenant_id, pieces, new)
        if repeated is not None:
            return repeated
        public_id = new.public_id or self._new_id()
        conversation_id, waited = None, 0.0
        while conversation_id is None:
            try:
                conversation_id = await self._begin(tenant_id, public_id)
            except Conflict:
                is_running = await self._is_running(tenant_id, public_id)
                if (repeated := await self._repeated(tenant_id, pieces, new)) is not None:
                    return repeated
                if new.idempotency_key is None or not is_running or waited >= MAX_WAIT_SECONDS:
                    raise
                await asyncio.sleep(_POLL_SECONDS)
                waited += _POLL_SECONDS
        try:
            imported = await self._store_all(tenant_id, conversation_id, public_id, pieces, new)
        except BaseException:
            await self._drop(conversation_id)
            raise
        if imported.conversation_id != conversation_id:
            await self._drop(conversation_id)
        return imported

    async def _repeated(
        self, tenant_id: str, pieces: AsyncIterator[bytes], new: NewImport
    ) -> Imported | None:
        """Return the import of a repeated idempotency key; its body is read for its hash."""
        if new.idempotency_key is None:
            return None
        async with self._database.session() as session:
            creation = await session.tenants.find_creation(tenant_id, new.idempotency_key)
        if creation is None:
            return None
        body = hashlib.sha256()
        async for piece in pieces:
            body.update(piece)
        if creation[0] != digest(json_text.dumps(_request(new, body.hexdigest()))):
            raise Conflict("The Idempotency-Key was used with another body")
        async with self._database.session() as session:
            return await _imported_from(session, tenant_id, creation[1])

    async def _is_running(self, tenant_id: str, public_id: str) -> bool:
        """Return whether an import with this id runs: its key is used, and by no tenant."""
        keys = keys_of(tenant_id, public_id)
        async with self._database.session() as session:
            stored = await session.conversations.stored_keys(tenant_id, public_id, keys)
        return bool(stored) and not any(stored.values())

    async def _begin(self, tenant_id: str, public_id: str) -> str:
        """Create the conversation, which no tenant sees, and return its key; raises Conflict."""
        before = self._now() - timedelta(seconds=STALE_SECONDS)
        for key in keys_of(tenant_id, public_id):
            await self._stale.remove(key, before)
        for _ in range(_MAX_ATTEMPTS):
            async with self._database.session() as session:
                key = await free_key(session, tenant_id, public_id)
                if await session.exports.begin(key):
                    return key
        raise id_taken(public_id)

    async def _store_all(
        self,
        tenant_id: str,
        conversation_id: str,
        public_id: str,
        pieces: AsyncIterator[bytes],
        new: NewImport,
    ) -> Imported:
        reader = ExportReader(_RECORD_FACTOR * self._max_body_bytes)
        checker = ImportChecker(self._resolver.counter)
        body = hashlib.sha256()
        has_settings = False
        async with ImportWriter(
            self._database,
            self._store,
            self._new_id,
            self._now,
            tenant_id,
            conversation_id,
            self._max_blob_bytes,
        ) as writer:

            async def store(piece: bytes) -> None:
                nonlocal has_settings
                lines = iter(reader.feed(piece))
                # Parsing and checking take most of the time of an import.
                while batch := await asyncio.to_thread(_checked_lines, lines, checker):
                    if checker.settings and not has_settings:
                        await self._check_own_settings(tenant_id, checker.settings, new)
                        has_settings = True
                    for line, fields in batch:
                        await writer.add(line, fields)

            async for piece in pieces:
                body.update(piece)
                await store(piece)
            reader.finish()
            await writer.flush()
        imported = Imported(conversation_id, public_id, checker.head_seq, checker.blobs)
        async with self._database.transaction() as session:
            if new.idempotency_key is not None:
                request = _request(new, body.hexdigest())
                created = await claim_idempotency_key(
                    session, tenant_id, new.idempotency_key, request, _as_resource_id(imported)
                )
                if created is not None:
                    return await _imported_from(session, tenant_id, created)
            if new.public_id is not None:
                await session.conversations.lock_id(tenant_id, public_id)
                if await find_key(session, tenant_id, public_id) is not None:
                    raise id_taken(public_id)
            await self._publish(session, tenant_id, imported, checker, new)
        return imported

    async def _check_own_settings(
        self, tenant_id: str, settings: Mapping[str, Any], new: NewImport
    ) -> None:
        """Check the settings as those of a new conversation of the agent."""
        agent_id = new.agent_id or settings["agent_id"]
        agent_policy = "{}"
        if agent_id is not None:
            async with self._database.session() as session:
                agent = await session.agents.find(tenant_id, agent_id)
            if agent is None:
                raise _no_agent(agent_id)
            agent_policy = agent.settings.policy
        names = ("policy", "sections", "tools", "metadata")
        parsed = {name: json_text.loads(settings[name]) for name in names}
        model = {} if settings["model"] is None else {"model": settings["model"]}
        self._check_settings(parsed | model)
        self._resolver.policy(agent_policy, settings["policy"])

    async def _publish(
        self,
        session: Repositories,
        tenant_id: str,
        imported: Imported,
        checker: ImportChecker,
        new: NewImport,
    ) -> None:
        conversation_id = imported.conversation_id
        agent_id = new.agent_id or checker.settings["agent_id"]
        # The lock orders the import and a deletion of the agent.
        if agent_id is not None and (
            await session.agents.find(tenant_id, agent_id, lock=True) is None
        ):
            raise _no_agent(agent_id)
        state = {**checker.state, "turns": checker.turns, "tokens": checker.tokens}
        state |= {"counter": checker.settings["counter"], **checker.call_state}
        state |= {name: _time(state[name]) for name in _TIMES}
        expires_at = _time(checker.settings["expires_at"])
        if expires_at is not None and expires_at <= self._now():
            expires_at = None  # the import of an old export would be deleted at once
        settings = {**checker.settings, "agent_id": agent_id, "expires_at": expires_at}
        own_id = own_id_of(conversation_id, imported.public_id)
        if not await session.exports.publish(tenant_id, conversation_id, own_id, settings, state):
            raise _removed(conversation_id)
        conversation = await self._resolver.find_conversation(session, tenant_id, conversation_id)
        own_state = await with_window(session, conversation_id, conversation.state, checker.window)
        own_state = replace(
            own_state,
            oldest_at=state["oldest_at"],
            mentions=tuple(state["mentions"]),
            hidden_tokens=own_state.outside_tokens,
            hidden_messages=own_state.outside_messages,
        )
        await session.windows.move(conversation_id, own_state)
        if state["compaction_id"] is not None:
            await self._show(session, replace(conversation, state=own_state), state)

    async def _show(
        self, session: Repositories, conversation: Conversation, exported: Mapping[str, Any]
    ) -> None:
        """Show the view of the export's active compaction."""
        conversation_id, state = conversation.conversation_id, conversation.state
        receipt = await session.contexts.find_compaction(conversation_id, exported["compaction_id"])
        if receipt is None:
            raise ValidationError.at(
                "/compaction_id", "The active compaction of the export is not in it"
            )
        with_kept = replace(conversation, state=replace(state, kept_seqs=tuple(exported["kept"])))
        visible = await view_state_of(session, self._resolver, with_kept, receipt)
        if visible.compaction_id is None:
            return
        await session.contexts.show(
            conversation_id,
            visible,
            view_version=state.view_version,
            cause="compaction",
            resume_at_tokens=exported["resume_at"],
        )

    async def _drop(self, conversation_id: str) -> None:
        """Remove what an import stored; if that fails, a worker removes it later."""
        try:
            async with asyncio.timeout(_DROP_TIMEOUT_SECONDS):
                await self._stale.remove(conversation_id, self._now() + timedelta(days=1))
        except (ServiceUnavailable, TimeoutError):
            _log.warning("import_not_removed")


class StaleImports:
    """Removes imports that do not continue."""

    def __init__(self, database: Database, now: Callable[[], datetime]) -> None:
        self._database = database
        self._now = now

    async def remove_all(self) -> int:
        """Remove the imports that a crash has left; return their number (rule 2)."""
        before = self._now() - timedelta(seconds=STALE_SECONDS)
        removed, batch = 0, _STALE_BATCH
        while batch == _STALE_BATCH:
            async with self._database.session() as session:
                stale = await session.exports.stale(before, _STALE_BATCH)
            batch = sum([await self.remove(conversation_id, before) for conversation_id in stale])
            removed += batch
        return removed

    async def remove(self, conversation_id: str, before: datetime) -> bool:
        """Remove an import that has not continued since a time.

        The sweep of orphans deletes its objects.
        """
        async with self._database.transaction() as session:
            if not await session.exports.lock_stale(conversation_id, before):
                return False
            await session.conversations.remove(conversation_id)
        return True


def _checked_lines(
    lines: Iterator[Line], checker: ImportChecker
) -> list[tuple[Line, dict[str, Any]]]:
    batch = []
    for line in lines:
        batch.append((line, checker.check(line)))
        if len(batch) == _LINES_AT_ONCE:
            break
    return batch


def _request(new: NewImport, body_sha256: str) -> list[Any]:
    return ["import", new.public_id, new.agent_id, body_sha256]


def _as_resource_id(imported: Imported) -> str:
    return f"{imported.public_id} {imported.messages} {imported.blobs}"


async def _imported_from(session: Repositories, tenant_id: str, resource_id: str) -> Imported:
    """Return the import that an idempotency key created; raises Conflict if it was deleted."""
    public_id, messages, blobs = resource_id.rsplit(maxsplit=2)
    key = await find_key(session, tenant_id, public_id)
    if key is None:
        raise creation_deleted(public_id)
    return Imported(key, public_id, int(messages), int(blobs))


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text is not None else None


def _no_agent(agent_id: str) -> ValidationError:
    return ValidationError.at(
        "/query/agent_id",
        f"There is no agent {agent_id!r}: create it first, or name another one in `agent_id`",
    )


def _removed(conversation_id: str) -> Conflict:
    detail = "The import took too long between two lines and was removed"
    return Conflict(detail, {"conversation_id": conversation_id})
