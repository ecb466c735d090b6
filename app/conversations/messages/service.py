"""Appends to the log, and pages of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Any

from app.blobs.offloading import is_same_result
from app.blobs.preview import bounded_by_window
from app.common import json_text
from app.common.errors import Conflict, ContextError, ServiceUnavailable, ValidationError
from app.common.pages import PAGE_BYTES, UNBOUNDED, Bound, Page
from app.conversations.budget_status import read_budget, within
from app.conversations.compactions import announce_due_compaction
from app.conversations.conversation import Conversation, SettingsList, list_json
from app.conversations.lookup import lock_conversation
from app.conversations.messages.batch import Append, BatchShape, batch_shape
from app.conversations.messages.batches import AppendSettings, Batch, Batches, attach_blobs
from app.conversations.messages.draft import Draft
from app.conversations.messages.provider_compactions import ProviderCompactions
from app.conversations.messages.row import StoredMessage
from app.conversations.messages.schemas import AppendAnswer, AppendedMessage
from app.conversations.messages.stored_results import StoredResults
from app.conversations.observers import UNOBSERVED, Observer
from app.conversations.rows import CachedSettings
from app.conversations.settings_resolver import SettingsResolver
from app.conversations.thresholds import compaction_threshold
from app.conversations.windows.service import ActiveWindows
from app.formats import PROVIDERS
from app.formats.message import FormatName, Role, Text
from app.prompt.resolved_settings import digest
from app.repositories import Database, Repositories

_MAX_ATTEMPTS = 4
SYSTEM_SECTION = "system"
"""The section of the system messages that begin a log."""


_Stored = tuple[Conversation, AppendAnswer, Sequence[AppendedMessage]]
"""A finished append: the conversation after it, its answer, and the new ones of its messages."""


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
        for _ in range(_MAX_ATTEMPTS):
            known = await self._known(tenant_id, conversation_id)
            if known.conversation.is_outdated(self._active.now()):
                # Nothing joins a call group that is too old by now.
                await self._active.updated(tenant_id, known.conversation)
                known = await self._known(tenant_id, conversation_id)
            settings = await self._settings(known.conversation)
            batch = await self._batches.prepare(tenant_id, conversation_id, request, settings)
            try:
                stored = await self._stored(tenant_id, known, batch)
            except _SettingsChanged:
                continue
            if isinstance(stored, dict):
                return stored
            return await self._finished(tenant_id, *stored)
        raise Conflict("The conversation's settings change too fast; try again")

    async def _finished(
        self,
        tenant_id: str,
        conversation: Conversation,
        answer: AppendAnswer,
        new: Sequence[AppendedMessage],
    ) -> AppendAnswer:
        """Tell of a stored batch. What fails now is made good by a later read or poll."""
        if new:
            self._observer.appended(len(new), sum(message.token_count for message in new))
        with suppress(ServiceUnavailable):
            if conversation.is_outdated(self._active.now()):  # old messages end its window
                conversation = await self._active.updated(tenant_id, conversation)
                async with self._database.session() as session:
                    current = await self._answer(session, conversation, answer.messages)
                answer = replace(
                    current,
                    head_seq=answer.head_seq,
                    warnings=answer.warnings,
                    system_section=answer.system_section,
                )
            if conversation.state.became_due:
                async with self._database.session() as session:
                    await announce_due_compaction(session, conversation.conversation_id)
        return answer

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

    async def _stored(
        self, tenant_id: str, known: CachedSettings, batch: Batch
    ) -> _Stored | dict[str, Any]:
        """Append at once, or under the lock of the state where that decides what to store."""
        shape = batch_shape(batch.drafts)
        needs_lock = (
            batch.request.idempotency_key is not None
            or _newest_compaction(batch.request, batch.drafts) is not None
            or any(draft.is_configuration or draft.attached_blob_id for draft in batch.drafts)
        )
        if shape is not None and not needs_lock:
            opened = self._database.transaction if batch.blobs else self._database.session
            async with opened() as session:
                stored = await self._append(session, tenant_id, known, batch, shape)
            if stored is not None:
                return stored
        return await self._append_locked(tenant_id, known.conversation.conversation_id, batch)

    async def _append(
        self,
        session: Repositories,
        tenant_id: str,
        known: CachedSettings,
        batch: Batch,
        shape: BatchShape,
    ) -> _Stored | None:
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
        new = []
        turns_before = after.state.turns - shape.turns[-1]
        first = after.state.head_seq - len(ids) + 1
        placed = zip(shape.drafts, ids, shape.turns, strict=True)
        for seq, (draft, message_id, turn) in enumerate(placed, start=first):
            tokens = draft.tokens + draft.reasoning_tokens
            ref = draft.output.ref_in(message_id, seq) if draft.output is not None else None
            new.append(
                AppendedMessage(message_id, seq, turns_before + turn, draft.role, tokens, ref)
            )
        drafts = list(enumerate(shape.drafts, start=first))
        if uses := [(ref, seq) for seq, draft in drafts for ref in draft.blob_ids]:
            await session.blobs.add_to_messages(after.conversation_id, batch.blobs, uses)
        if kept := [seq for seq, draft in drafts if draft.is_configuration]:
            await session.contexts.pin(after.conversation_id, kept)
        if (newest := _newest_compaction(request, shape.drafts)) is not None:
            seq, draft = drafts[newest]
            after = await self._provider_compactions.apply(
                session, after, draft, seq, request.format
            )
        answer = await self._answer(session, after, new)
        return after, replace(answer, warnings=batch.warnings) if batch.warnings else answer, new

    async def _answer(
        self, session: Repositories, conversation: Conversation, messages: list[AppendedMessage]
    ) -> AppendAnswer:
        status = await read_budget(self._resolver, within(session), conversation)
        pressure = status.pressure if status else None
        return AppendAnswer(
            messages=messages,
            head_seq=conversation.state.head_seq,
            pressure=pressure.pressure if pressure else None,
            notice=pressure.notice if pressure else None,
            next_threshold=pressure.next_threshold if pressure else None,  # type: ignore[arg-type]
            tokens_to_next=pressure.tokens_to_next if pressure else None,
            budget=status.budget if status else None,
        )

    async def _append_locked(
        self, tenant_id: str, conversation_id: str, batch: Batch
    ) -> _Stored | dict[str, Any]:
        """Append under the lock of the conversation's state, which determines the error."""
        request = batch.request
        key, request_hash = request.idempotency_key, ""
        if key is not None:
            content = [request.format, request.expected_seq, list(request.messages)]
            request_hash = await asyncio.to_thread(lambda: digest(json_text.dumps(content)))
        async with self._database.transaction() as session:
            known = await self._lock(session, tenant_id, conversation_id)
            if key is not None:
                used = await session.log.find_stored_answer(conversation_id, key)
                if used is not None and used[0] != request_hash:
                    raise Conflict("The Idempotency-Key was used with another body")
                if used is not None:
                    replayed: dict[str, Any] = json_text.loads(used[1])
                    return replayed
            settings, prepared = await self._settings(known.conversation), batch.settings
            if (settings.counter, settings.output) != (prepared.counter, prepared.output):
                raise _SettingsChanged
            name, leading = await self._store_system_section(
                session, tenant_id, known.conversation, batch
            )
            if leading:
                known = await self._lock(session, tenant_id, conversation_id)
            batch = replace(batch, settings=settings, drafts=batch.drafts[leading:])
            after, answer, new = await self._append_checked(session, tenant_id, known, batch)
            answer = replace(answer, system_section=name)
            if key is not None:
                text = json_text.dumps(answer)
                await session.log.store_answer(conversation_id, key, request_hash, text)
        return after, answer, new

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
    ) -> _Stored:
        current, request = known.conversation, batch.request
        conversation_id, head_seq = current.conversation_id, current.state.head_seq
        drafts = {draft.id: draft for draft in batch.drafts if draft.id is not None}
        before: dict[str, AppendedMessage] = {}
        after_seq, has_more = 0, bool(drafts)
        while has_more:  # only one page of them is in memory
            page = await session.log.by_ids(
                conversation_id, list(drafts), after_seq, Bound(PAGE_BYTES)
            )
            for stored in page:
                after_seq = stored.seq
                if not await _is_same(stored, drafts[stored.id], request.format):
                    raise Conflict(
                        f"Message id {stored.id!r} is taken by another message", {"id": stored.id}
                    )
                before[stored.id] = AppendedMessage(
                    stored.id,
                    stored.seq,
                    stored.turn,
                    Role(stored.role),
                    stored.token_count,
                    stored.output_ref,
                )
            has_more = page.has_more
        left = [draft for draft in batch.drafts if draft.id is None or draft.id not in before]
        if (left or not before) and request.expected_seq not in (None, head_seq):
            raise Conflict(
                f"The log's head is {head_seq}, not {request.expected_seq}",
                {"head_seq": head_seq, "expected_seq": request.expected_seq},
            )
        if not left:
            return current, await self._answer(session, current, list(before.values())), ()
        shape = batch_shape(left, current.state.calls, head_seq)
        assert shape is not None, "the calls are known"
        await attach_blobs(session, conversation_id, batch, left)
        result = await self._append(session, tenant_id, known, batch, shape)
        if result is None:  # its agent or model changed: the lock holds neither
            raise _SettingsChanged
        after, answer, new = result
        messages = sorted([*before.values(), *new], key=lambda message: message.seq)
        return after, replace(answer, messages=messages), new


async def _is_same(stored: StoredMessage, draft: Draft, format: FormatName) -> bool:
    """Whether a stored message is equal to a new one, even if they are offloaded differently."""
    if stored.format != format or stored.role != draft.role:
        return False
    output, new_output, body = stored.output, draft.stored_output, stored.body
    is_offloaded_alike = (output and output.ref) == (new_output and new_output.ref)
    if is_offloaded_alike and body.encode() == draft.body:
        return True
    raw_message = draft.raw_message
    if output is not None and output.ref is not None:
        return await asyncio.to_thread(is_same_result, body, output, raw_message, format)
    sent = await asyncio.to_thread(json_text.dump_stored, raw_message)
    return bool(await asyncio.to_thread(json_text.loads, body) == json_text.loads(sent))


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
