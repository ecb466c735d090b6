"""Appends to the log, and pages of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from app.blobs.preview import bounded_by_window
from app.common import json_text
from app.common.errors import Conflict, ContextError, ServiceUnavailable, ValidationError
from app.common.pages import UNBOUNDED, Bound, Page
from app.conversations.budget_status import OpenSession, read_budget, within
from app.conversations.conversation import Conversation
from app.conversations.due_compactions import announce_due_compaction, make_compaction_due
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
from app.conversations.messages.batch import BatchShape, batch_shape
from app.conversations.messages.batches import (
    Append,
    AppendSettings,
    Batch,
    Batches,
    attach_blobs,
    has_results,
)
from app.conversations.messages.draft import Draft
from app.conversations.messages.provider_compactions import ProviderCompactions
from app.conversations.messages.stored_message import StoredMessage
from app.conversations.messages.stored_results import StoredResults
from app.conversations.observers import UNOBSERVED
from app.conversations.own_settings import newest_version, sections_json, store_list
from app.conversations.ports import Observer
from app.conversations.settings import SettingsList
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

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation


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
        current = self._database.cached_conversation(tenant_id, conversation_id)
        with_results = any(has_results(raw, request.format) for raw in request.messages)
        if current is None and with_results:
            current = await self._find(tenant_id, conversation_id)
        for _ in range(_MAX_ATTEMPTS):
            settings = await self._settings(current)
            batch = await self._batches.prepare(
                tenant_id, conversation_id, request, settings, with_results
            )
            try:
                result = await self._stored(tenant_id, conversation_id, batch)
            except _SettingsChanged as stale:
                current = stale.conversation
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

    async def _settings(self, conversation: Conversation | None) -> AppendSettings:
        """Return the settings of an append, the defaults without a conversation."""
        if conversation is None:
            return AppendSettings()
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
        self, after: Conversation, before: Conversation | None, threshold: CompactionThreshold
    ) -> None:
        """Notify the workers when the batch made a compaction due.

        The append used the settings that this process had cached. Where they have changed, the
        compaction is made due here. Workers that are not notified find it when they poll.
        """
        try:
            is_overlooked = False
            if before is None or not after.has_settings_of(before):
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
        self, tenant_id: str, conversation_id: str, batch: Batch
    ) -> AppendResult | dict[str, Any]:
        newest = _newest_compaction(batch.request, batch.drafts)
        has_settings = any(draft.is_configuration for draft in batch.drafts)
        is_plain = newest is None and not (batch.attached_blob_ids or has_settings)
        shape = batch_shape(batch.drafts)
        if batch.request.idempotency_key is None and is_plain and shape is not None:
            async with self._database.session() as session:
                result = await self._append(
                    session,
                    tenant_id,
                    conversation_id,
                    batch,
                    shape,
                    if_unchanged=batch.has_results,
                )
            if result is not None:
                return result
        return await self._append_locked(tenant_id, conversation_id, batch)

    async def _append(
        self,
        session: Repositories,
        tenant_id: str,
        conversation_id: str,
        batch: Batch,
        shape: BatchShape,
        *,
        if_unchanged: bool,
    ) -> AppendResult | None:
        request, settings, drafts = batch.request, batch.settings, shape.drafts
        ids = [draft.id or self._new_id() for draft in drafts]
        if if_unchanged:
            cached = self._database.cached_conversation(tenant_id, conversation_id)
            if cached is None or (await self._settings(cached)).output != settings.output:
                return None  # the settings changed while the batch was prepared
        after = await session.log.append(
            tenant_id,
            conversation_id,
            request.format,
            ids,
            shape,
            counter=settings.counter,
            now=self._active.now(),
            expected_seq=request.expected_seq,
            default_model=self._resolver.default_model,
            due=settings.threshold,
            blobs=batch.blobs,
            if_unchanged=if_unchanged,
        )
        if after is None:
            return None
        positions = positions_of_drafts(after, shape, ids)
        placed = zip(drafts, positions, strict=True)
        if kept := [place.seq for draft, place in placed if draft.is_configuration]:
            await session.contexts.pin(after.conversation_id, kept)
        if (newest := _newest_compaction(request, drafts)) is not None:
            after = await self._provider_compactions.apply(
                session, after, drafts[newest], positions[newest].seq, request.format
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
            next_threshold=pressure.next_threshold if pressure else None,
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
            current = await lock_conversation(
                session, tenant_id, conversation_id, self._resolver.default_model
            )
            if key is not None:
                stored = await session.log.find_stored_answer(conversation_id, key)
                if stored is not None:
                    return _stored_answer(stored, request_hash)
            settings, prepared = await self._settings(current), batch.settings
            if settings.counter != prepared.counter or (
                batch.has_results and settings.output != prepared.output
            ):
                raise _SettingsChanged(current)
            name, leading = await self._store_system_section(session, tenant_id, current, batch)
            if leading:
                current = await lock_conversation(
                    session, tenant_id, conversation_id, self._resolver.default_model
                )
            batch = replace(batch, settings=settings, drafts=batch.drafts[leading:])
            result = await self._append_checked(session, tenant_id, current, batch)
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
        kind, key = SettingsList.SECTIONS, current.conversation_id
        new = newest_version(current, kind).replaced(kind, sections_json(sections), None)
        await store_list(session.conversations, tenant_id, key, current, kind, new)
        return SYSTEM_SECTION, len(texts)

    async def _append_checked(
        self, session: Repositories, tenant_id: str, current: Conversation, batch: Batch
    ) -> AppendResult:
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
            known = list(stored_before.values())
            return AppendResult(current, await self._answer(within(session), current, known))
        shape = batch_shape(new, current.state.calls, current.state.head_seq)
        assert shape is not None, "the calls are known"
        await attach_blobs(session, conversation_id, batch, new)
        batch = replace(batch, drafts=new)
        result = await self._append(
            session, tenant_id, conversation_id, batch, shape, if_unchanged=False
        )
        assert result is not None, "the head is locked and was checked"
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
