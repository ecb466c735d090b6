"""Appends to the log, and pages of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Any

from app.blobs.preview import bounded_by_window
from app.common import json_text
from app.common.errors import Conflict, ContextError, ServiceUnavailable, ValidationError
from app.common.pages import UNBOUNDED, Bound, Page
from app.conversations.budget_status import OpenSession, read_budget, within
from app.conversations.compactions import announce_due_compaction, make_compaction_due
from app.conversations.conversation import Conversation
from app.conversations.lookup import lock_conversation
from app.conversations.messages.appended_messages import (
    AppendAnswer,
    AppendedMessage,
    check_position,
    is_same_message,
    position_of,
    positions_of_drafts,
    stored_with_ids,
)
from app.conversations.messages.batch import Append, BatchShape, batch_shape
from app.conversations.messages.batches import (
    AppendSettings,
    Batch,
    Batches,
    attach_blobs,
    has_results,
)
from app.conversations.messages.draft import Draft
from app.conversations.messages.provider_compactions import ProviderCompactions
from app.conversations.messages.row import StoredMessage
from app.conversations.messages.stored_results import StoredResults
from app.conversations.observers import UNOBSERVED
from app.conversations.ports import Observer
from app.conversations.rows import CachedSettings
from app.conversations.settings import SettingsList, list_json
from app.conversations.settings_resolver import SettingsResolver
from app.conversations.thresholds import CompactionThreshold, compaction_threshold
from app.conversations.windows.service import ActiveWindows
from app.formats import PROVIDERS
from app.formats.message import Role, Text
from app.prompt.resolved_settings import digest
from app.repositories import Database, Repositories

_log = logging.getLogger("app.log")
_MAX_ATTEMPTS = 4
SYSTEM_SECTION = "system"
"""The section of the system messages that begin a log."""


@dataclass(frozen=True, slots=True)
class AppendResult:
    """A finished append: the conversation after it, and its answer.

    `stored` are the new messages. The answer also has those that were stored before.
    """

    conversation: Conversation
    answer: AppendAnswer
    stored: Sequence[AppendedMessage] = ()


class _SettingsChanged(Exception):
    """The settings changed after the batch was prepared."""


@dataclass(eq=False, repr=False)
class LogService:
    """Appends batches and reads pages of messages."""

    _database: Database
    _resolver: SettingsResolver
    _outputs: StoredResults
    _active: ActiveWindows
    _new_id: Callable[[], str]
    _max_messages: int
    _observer: Observer = UNOBSERVED

    def __post_init__(self) -> None:
        self._batches = Batches(self._database, self._resolver, self._outputs)
        self._provider_compactions = ProviderCompactions(self._resolver, self._active, self._new_id)

    async def append(
        self, tenant_id: str, conversation_id: str, request: Append
    ) -> AppendAnswer | dict[str, Any]:
        """Append all messages of a batch or none, large tool results with their blobs.

        Returns the stored answer when the idempotency key was used before. When it raises
        NotFound, Conflict, UnpairedToolResult or ValidationError, nothing is stored.
        """
        if not 1 <= len(request.messages) <= self._max_messages:
            raise ValidationError.at(
                "/messages",
                f"A batch holds 1 to {self._max_messages} messages, not {len(request.messages)}",
            )
        with_results = any(has_results(raw, request.format) for raw in request.messages)
        for _ in range(_MAX_ATTEMPTS):
            known = await self._known(tenant_id, conversation_id)
            if known.conversation.is_outdated(self._active.now()):
                # Nothing joins a call group that is too old by now.
                await self._active.updated(tenant_id, known.conversation)
                known = await self._known(tenant_id, conversation_id)
            current = known.conversation
            settings = await self._settings(current)
            batch = await self._batches.prepare(
                tenant_id, conversation_id, request, settings, with_results
            )
            try:
                result = await self._stored(tenant_id, known, batch)
            except _SettingsChanged:
                continue
            if isinstance(result, dict):
                return result
            if result.stored:
                tokens = sum(message.token_count for message in result.stored)
                self._observer.appended(len(result.stored), tokens)
            result = await self._with_current_window(tenant_id, result)
            await self._notify(result.conversation, current, settings.threshold)
            return result.answer
        raise Conflict("The conversation's settings change too fast; try again")

    async def page(
        self,
        tenant_id: str,
        conversation_id: str,
        *,
        after_seq: int,
        before_seq: int,
        order: str,
        limit: int,
        bound: Bound = UNBOUNDED,
    ) -> tuple[Conversation, Page[StoredMessage]]:
        """Return messages between two seqs, both exclusive, with their conversation."""
        conversation = await self._find(tenant_id, conversation_id)
        async with self._database.session() as session:
            page = await session.log.page(
                conversation_id, after_seq, before_seq, order, limit, bound
            )
        return conversation, page

    async def _find(self, tenant_id: str, conversation_id: str) -> Conversation:
        async with self._database.session() as session:
            return await self._resolver.find_conversation(session, tenant_id, conversation_id)

    async def _known(self, tenant_id: str, conversation_id: str) -> CachedSettings:
        """Return the settings as this process last read them, or reads them now."""
        known = self._database.cached_settings(tenant_id, conversation_id)
        if known is None:
            await self._find(tenant_id, conversation_id)
            known = self._database.cached_settings(tenant_id, conversation_id)
        assert known is not None
        return known

    async def _lock(
        self, session: Repositories, tenant_id: str, conversation_id: str
    ) -> CachedSettings:
        """Lock the state until the transaction ends, and return the settings as they are then."""
        lock = partial(
            lock_conversation, session, tenant_id, conversation_id, self._resolver.default_model
        )
        current = await lock()
        if await self._active.update_locked(session, current) is not current:
            await lock()
        return await self._known(tenant_id, conversation_id)

    async def _settings(self, conversation: Conversation) -> AppendSettings:
        """Return the settings of an append."""
        try:
            resolved = await self._resolver.of(conversation)
        except ContextError:
            return AppendSettings(conversation.counter)
        return AppendSettings(
            conversation.counter,
            bounded_by_window(resolved.policy.tool_output, resolved.policy_limits),
            compaction_threshold(resolved),
        )

    async def _with_current_window(self, tenant_id: str, result: AppendResult) -> AppendResult:
        """Recompute the answer if the active window has to move.

        The batch is stored already. If the window cannot be moved now, a later read moves it.
        """
        if not result.conversation.is_outdated(self._active.now()):
            return result
        stored = result.answer
        try:
            conversation = await self._active.updated(tenant_id, result.conversation)
            answer = await self._answer(
                self._database.session, conversation, stored.messages, stored.warnings
            )
        except ServiceUnavailable:
            return result
        return AppendResult(conversation, replace(answer, head_seq=stored.head_seq))

    async def _notify(
        self, after: Conversation, before: Conversation, threshold: CompactionThreshold
    ) -> None:
        """Notify the workers when the batch made a compaction due.

        The append used the settings that this process had cached. Where they have changed, the
        compaction is made due here. Workers that are not notified find it when they poll.
        """
        try:
            is_overlooked = False
            if not after.has_settings_of(before):
                current = (await self._settings(after)).threshold
                is_overlooked = (
                    current != threshold and not after.state.is_due and current.reached(after.state)
                )
            if after.state.became_due or is_overlooked:
                notify = make_compaction_due if is_overlooked else announce_due_compaction
                async with self._database.session() as session:
                    await notify(session, after.conversation_id)
        except ServiceUnavailable:
            _log.warning("workers_not_notified")

    async def _stored(
        self, tenant_id: str, known: CachedSettings, batch: Batch
    ) -> AppendResult | dict[str, Any]:
        """Append at once, or under the lock of the state where that decides what to store."""
        shape = batch_shape(batch.drafts)
        needs_lock = (
            batch.request.idempotency_key is not None
            or bool(batch.attached_blob_ids)
            or _newest_compaction(batch.request, batch.drafts) is not None
            or any(draft.is_configuration for draft in batch.drafts)
        )
        if shape is not None and not needs_lock:
            opened = self._database.transaction if batch.blobs else self._database.session
            async with opened() as session:
                result = await self._append(session, tenant_id, known, batch, shape)
            if result is not None:
                return result
        return await self._append_locked(tenant_id, known.conversation.conversation_id, batch)

    async def _append(
        self,
        session: Repositories,
        tenant_id: str,
        known: CachedSettings,
        batch: Batch,
        shape: BatchShape,
    ) -> AppendResult | None:
        request = batch.request
        ids = [draft.id or self._new_id() for draft in shape.drafts]
        after = await session.log.append(
            tenant_id,
            known,
            request,
            shape,
            ids,
            due=batch.settings.threshold,
            default_model=self._resolver.default_model,
            now=self._active.now(),
        )
        if after is None:
            return None
        positions = positions_of_drafts(after, shape, ids)
        placed = list(zip(shape.drafts, positions, strict=True))
        if uses := [(ref, place.seq) for draft, place in placed for ref in draft.blob_ids]:
            await session.blobs.add_to_messages(after.conversation_id, batch.blobs, uses)
        if kept := [place.seq for draft, place in placed if draft.is_configuration]:
            await session.contexts.pin(after.conversation_id, kept)
        if (newest := _newest_compaction(request, shape.drafts)) is not None:
            draft, place = placed[newest]
            after = await self._provider_compactions.apply(
                session, after, draft, place.seq, request.format
            )
        answer = await self._answer(within(session), after, positions, batch.warnings)
        return AppendResult(after, answer, positions)

    async def _answer(
        self,
        open_session: OpenSession,
        conversation: Conversation,
        messages: list[AppendedMessage],
        warnings: tuple[str, ...] = (),
    ) -> AppendAnswer:
        status = await read_budget(self._resolver, open_session, conversation)
        pressure = status.pressure if status else None
        return AppendAnswer(
            messages=messages,
            head_seq=conversation.state.head_seq,
            pressure=pressure.pressure if pressure else None,
            notice=pressure.notice if pressure else None,
            next_threshold=pressure.next_threshold if pressure else None,  # type: ignore[arg-type]
            tokens_to_next=pressure.tokens_to_next if pressure else None,
            budget=status.budget if status else None,
            warnings=warnings,
        )

    async def _append_locked(
        self, tenant_id: str, conversation_id: str, batch: Batch
    ) -> AppendResult | dict[str, Any]:
        """Append under the lock of the conversation's state, which determines the error."""
        key, request_hash = batch.request.idempotency_key, ""
        if key is not None:
            request_hash = await asyncio.to_thread(_request_hash, batch.request)
        async with self._database.transaction() as session:
            known = await self._lock(session, tenant_id, conversation_id)
            if key is not None:
                stored = await session.log.find_stored_answer(conversation_id, key)
                if stored is not None:
                    return _stored_answer(stored, request_hash)
            settings, prepared = await self._settings(known.conversation), batch.settings
            if settings.counter != prepared.counter or (
                batch.has_results and settings.output != prepared.output
            ):
                raise _SettingsChanged
            name, leading = await self._store_system_section(
                session, tenant_id, known.conversation, batch
            )
            if leading:
                known = await self._lock(session, tenant_id, conversation_id)
            batch = replace(batch, settings=settings, drafts=batch.drafts[leading:])
            result = await self._append_checked(session, tenant_id, known, batch)
            if leading:
                result = replace(result, answer=replace(result.answer, system_section=name))
            if key is not None:
                text = json_text.dumps(result.answer)
                await session.log.store_answer(conversation_id, key, request_hash, text)
        return result

    async def _store_system_section(
        self, session: Repositories, tenant_id: str, current: Conversation, batch: Batch
    ) -> tuple[str | None, int]:
        """Make the system messages that begin a log a section.

        Returns its name and how many messages of the batch are in it. Where a section has their
        text already, nothing is stored: a caller may send them with each batch. A section `system`
        of the caller keeps its own text before theirs.
        """
        texts = list(_leading_system_texts(batch))
        text = "\n\n".join(filter(str.strip, texts))
        sections = json_text.loads(current.settings.sections)
        known = (each["name"] for each in sections if _has_paragraphs(each["content"], text))
        name = next(known, None) if text else None
        if name is not None:
            return name, len(texts)
        if current.state.head_seq or not text:
            return None, 0 if current.state.head_seq else len(texts)
        own = next((each for each in sections if each["name"] == SYSTEM_SECTION), None)
        if own is None:
            sections.insert(0, {"name": SYSTEM_SECTION, "content": text})
        else:
            own["content"] = "\n\n".join(filter(str.strip, (own["content"], text)))
        kind = SettingsList.SECTIONS
        body = list_json(kind, sections)
        await session.conversations.replace_list(tenant_id, current, kind, body)
        return SYSTEM_SECTION, len(texts)

    async def _append_checked(
        self, session: Repositories, tenant_id: str, known: CachedSettings, batch: Batch
    ) -> AppendResult:
        current = known.conversation
        conversation_id = current.conversation_id
        drafts = {draft.id: draft for draft in batch.drafts if draft.id is not None}
        stored_before: dict[str, AppendedMessage] = {}
        async for stored in stored_with_ids(session, conversation_id, list(drafts)):
            if not await is_same_message(stored, drafts[stored.id], batch.request.format):
                raise Conflict(
                    f"Message id {stored.id!r} is taken by another message", {"id": stored.id}
                )
            stored_before[stored.id] = position_of(stored)
        new = [draft for draft in batch.drafts if draft.id is None or draft.id not in stored_before]
        if new or not stored_before:
            check_position(current, batch.request)
        if not new:
            messages = list(stored_before.values())
            return AppendResult(current, await self._answer(within(session), current, messages))
        shape = batch_shape(new, current.state.calls, current.state.head_seq)
        assert shape is not None, "the calls are known"
        await attach_blobs(session, conversation_id, batch, new)
        result = await self._append(session, tenant_id, known, batch, shape)
        if result is None:  # its agent or model changed: the lock holds neither
            raise _SettingsChanged
        messages = sorted(
            [*stored_before.values(), *result.answer.messages], key=lambda message: message.seq
        )
        return replace(result, answer=replace(result.answer, messages=messages))


def _leading_system_texts(batch: Batch) -> Iterator[str]:
    """Yield the texts of the system messages that begin a batch, up to one with media."""
    parse = PROVIDERS[batch.request.format].parse
    for draft in takewhile(lambda draft: draft.role is Role.SYSTEM, batch.drafts):
        (message,) = parse(draft.raw_message, "")
        if not all(isinstance(part, Text) for part in message.parts):
            return
        yield message.text


def _has_paragraphs(content: str, text: str) -> bool:
    return f"\n\n{text}\n\n" in f"\n\n{content}\n\n"


def _newest_compaction(request: Append, drafts: Sequence[Draft]) -> int | None:
    """Return the index of the last draft with a compaction item that counts."""
    indexes = (index for index, draft in enumerate(drafts) if draft.compaction is not None)
    return max(indexes, default=None) if request.applies_compactions else None


def _request_hash(request: Append) -> str:
    content = [request.format, request.expected_seq, list(request.messages)]
    return digest(json_text.dumps(content))


def _stored_answer(stored: tuple[str, str], request_hash: str) -> dict[str, Any]:
    """Return the answer of a used idempotency key; raises Conflict for another request."""
    stored_hash, answer_json = stored
    if stored_hash != request_hash:
        raise Conflict("The Idempotency-Key was used with another body")
    answer: dict[str, Any] = json_text.loads(answer_json)
    return answer
