"""Appends to the log.

1. A batch is stored by one statement at once, or under the lock of the state where that decides
   what to store, or why nothing is stored.
2. The settings that a batch was prepared for are those that the process read last. If they have
   changed, nothing is stored, and the batch is prepared again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from app.blobs.chunks import ToolOutputRef
from app.blobs.offloading import is_same_result
from app.common import json_text
from app.common.answer_schemas import answer
from app.common.concurrency import THREAD_BYTES, in_thread_if
from app.common.errors import Conflict, ContextError, ServiceUnavailable, ValidationError
from app.common.pages import PAGE_BYTES, Bound
from app.conversations.conversation import Conversation, SettingsList
from app.conversations.from_rows import CachedSettings, versions_of
from app.conversations.messages.batches import Batch, Batches, attach_blobs
from app.conversations.messages.draft import Draft
from app.conversations.messages.repository import ADD_ANSWER
from app.conversations.messages.row import (
    BatchShape,
    LogRow,
    RawBatch,
    StoredMessage,
    batch_shape,
    row_of,
)
from app.conversations.messages.stored_results import StoredResults
from app.conversations.moving_window import ActiveWindows
from app.conversations.pressure import announce_due_compaction, read_budget
from app.conversations.receipt import UNOBSERVED, Observer
from app.conversations.settings_resolver import SettingsResolver
from app.conversations.stored_receipts import ProviderCompactions
from app.database.sql import fields_of
from app.formats import PROVIDERS
from app.formats.message import FormatName, Role, Text
from app.http.fields import Threshold
from app.models.budget import ContextBudget, Pressure
from app.prompt.resolved_settings import digest
from app.repositories import Database, Repositories


@answer()
@dataclass(frozen=True, slots=True)
class MessagePosition:
    """The position of a message in the log."""

    id: str
    """The caller's id, or one that the service created."""
    seq: int
    """Its position, from 1 without gaps."""
    turn: int
    """Number of user messages up to it."""
    role: Role
    """Role of the message."""
    token_count: int
    """Its tokens, including reasoning."""
    output_ref: ToolOutputRef | None
    """Reference to read a tool result by; null for other messages."""


@answer()
@dataclass(frozen=True, slots=True)
class AppendResult:
    """The stored batch, and the use of the context window."""

    messages: list[MessagePosition]
    """The messages of the batch, in order."""
    head_seq: int
    """Seq of the newest message."""
    pressure: Pressure | None = None
    """Null without a context window."""
    notice: bool | None = None
    """Whether `notice_at` is reached."""
    next_threshold: Threshold | None = None
    """The next threshold."""
    tokens_to_next: int | None = None
    """Tokens left until the next threshold."""
    budget: ContextBudget | None = None
    """The context window and its use."""
    warnings: tuple[str, ...] = ()
    """`tool_output_inline`: the blob store failed, so the whole results are in their messages."""
    system_section: str | None = None
    """The section that has the text of the system messages at the beginning of the batch; they
    are not stored as messages. Null where it had none, or the log keeps them."""


_MAX_ATTEMPTS = 4
SYSTEM_SECTION = "system"
"""The section of the system messages that begin a log."""


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """An append that is stored, with its answer; only that, if it was stored before.

    `conversation` ends with the `new` ones of its messages, whose `drafts` a build may use instead
    of reading them. `drafts` is empty where the append changed more than the log.
    """

    answer: AppendResult | dict[str, Any]
    conversation: Conversation | None = None
    new: Sequence[MessagePosition] = ()
    drafts: Sequence[Draft] = ()
    format: FormatName = FormatName.OPENAI_CHAT

    def rows(self, *, as_chat: bool) -> list[LogRow]:
        """Return the new messages as a build in the format openai_chat, or in another one, does."""
        placed = zip(self.drafts, self.new, strict=True)
        return [
            row_of(draft, each.id, each.seq, self.format, as_chat=as_chat) for draft, each in placed
        ]


class _SettingsChanged(Exception):
    """The settings changed after the batch was prepared."""


@dataclass(eq=False, repr=False)
class LogService:
    """Appends batches of messages."""

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

    async def append(self, tenant_id: str, conversation_id: str, request: RawBatch) -> StoredBatch:
        """Append all messages of a batch or none, large tool results with their blobs.

        The answer is the stored one when the idempotency key was used before. When it raises
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
            batch = await self._batches.prepare(tenant_id, known.conversation, request)
            stored: StoredBatch | None = None
            refused: ContextError | None = None
            try:
                stored = await self._append_batch(tenant_id, known, batch)
            except ServiceUnavailable:
                raise  # it may be stored; if not, a worker deletes its objects
            except ContextError as error:
                refused = error
            except _SettingsChanged:
                pass
            await self._outputs.delete_unused(known.conversation.conversation_id, batch.blobs)
            if refused is not None:
                raise refused
            if stored is not None:
                await self._tell(stored)
                return stored
        raise Conflict("The conversation's settings change too fast; try again")

    async def _append_batch(
        self, tenant_id: str, known: CachedSettings, batch: Batch
    ) -> StoredBatch:
        shape = batch_shape(batch.drafts)
        if shape is not None and not _needs_lock(batch):
            opened = self._database.transaction if batch.blobs else self._database.session
            async with opened() as session:
                if after := await self._append(session, tenant_id, known, batch, shape):
                    return await self._stored(session, batch, *after)
        return await self._append_locked(tenant_id, known, batch)

    async def _tell(self, stored: StoredBatch) -> None:
        """Tell of a stored batch; where that fails, a later read or poll finds it."""
        new, conversation = stored.new, stored.conversation
        if new:
            self._observer.appended(len(new), sum(message.token_count for message in new))
        if conversation is not None and conversation.state.became_due:
            with suppress(ServiceUnavailable):
                async with self._database.session() as session:
                    await announce_due_compaction(session, conversation.conversation_id)

    async def _known(self, tenant_id: str, conversation_id: str) -> CachedSettings:
        """Return the settings as this process last read them, or reads them now."""
        known = self._database.cached_settings(tenant_id, conversation_id)
        if known is None:
            async with self._database.session() as session:
                await session.conversations.get(tenant_id, conversation_id)
            known = self._database.cached_settings(tenant_id, conversation_id)
        assert known is not None
        return known

    async def _lock(
        self, session: Repositories, tenant_id: str, conversation_id: str
    ) -> CachedSettings:
        """Lock the state until the transaction ends, and return the settings as they are then."""
        current = await session.conversations.get(tenant_id, conversation_id, lock=True)
        if await self._active.update_locked(session, current) is not current:
            await session.conversations.get(tenant_id, conversation_id, lock=True)
        return await self._known(tenant_id, conversation_id)

    async def _append(
        self,
        session: Repositories,
        tenant_id: str,
        known: CachedSettings,
        batch: Batch,
        shape: BatchShape,
    ) -> tuple[Conversation, list[MessagePosition], Sequence[Draft]] | None:
        """Store the messages of a shape, and what they change beside the log.

        Returns the parts of a `StoredBatch`; None where log or settings do not allow it.
        """
        ids = [draft.id or self._new_id() for draft in shape.drafts]
        after = await session.log.append(
            tenant_id, known, batch.request, shape, ids, due=batch.threshold, now=self._active.now()
        )
        if after is None:
            return None
        first = after.state.head_seq - len(ids) + 1
        turn = after.state.turns - shape.turns[-1]
        drafts = list(enumerate(shape.drafts, start=first))
        new = []
        for (seq, draft), message_id in zip(drafts, ids, strict=True):
            turn += draft.starts_turn
            tokens = draft.tokens + draft.reasoning_tokens
            ref = draft.output.ref_in(message_id, seq) if draft.output is not None else None
            new.append(MessagePosition(message_id, seq, turn, draft.role, tokens, ref))
        if uses := [(ref, seq) for seq, draft in drafts for ref in draft.blob_ids]:
            await session.blobs.add_to_messages(after.conversation_id, batch.blobs, uses)
        if kept := [seq for seq, draft in drafts if draft.is_configuration]:
            await session.log.pin(after.conversation_id, kept)
        items = [each for each in drafts if each[1].compaction is not None]
        if items and batch.request.applies_compactions:
            seq, draft = items[-1]
            after = await self._provider_compactions.apply(
                session, after, draft, seq, batch.request.format
            )
        return after, new, () if kept else shape.drafts

    async def _stored(
        self,
        session: Repositories,
        batch: Batch,
        conversation: Conversation,
        new: Sequence[MessagePosition] = (),
        drafts: Sequence[Draft] = (),
        before: Iterable[MessagePosition] = (),
    ) -> StoredBatch:
        """Return a finished append; its answer has the use of the context window."""
        status = await read_budget(session, self._resolver, conversation)
        use = {} if status is None else {"budget": status.budget, **fields_of(status.pressure)}
        messages = sorted([*before, *new], key=lambda message: message.seq)
        answer = AppendResult(messages, conversation.state.head_seq, warnings=batch.warnings, **use)
        return StoredBatch(answer, conversation, new, drafts, batch.request.format)

    async def _append_locked(
        self, tenant_id: str, prepared: CachedSettings, batch: Batch
    ) -> StoredBatch:
        """Append under the lock of the conversation's state, which determines the error."""
        conversation_id, request = prepared.conversation.conversation_id, batch.request
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
                    return StoredBatch(replayed)
            if versions_of(known) != versions_of(prepared):
                raise _SettingsChanged
            name, leading = await self._store_system_section(
                session, tenant_id, known.conversation, batch
            )
            if leading:
                known = await self._lock(session, tenant_id, conversation_id)
            batch = replace(batch, drafts=batch.drafts[leading:])
            stored = await self._append_checked(session, tenant_id, known, batch)
            assert isinstance(stored.answer, AppendResult)
            stored = replace(stored, answer=replace(stored.answer, system_section=name))
            if key is not None:
                await session.session.run(
                    ADD_ANSWER,
                    conversation_id=conversation_id,
                    key=key,
                    request_hash=request_hash,
                    answer=json_text.dumps(stored.answer),
                )
        return stored

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
        for section in sections if text else ():
            if f"\n\n{text}\n\n" in f"\n\n{section['content']}\n\n":
                return section["name"], len(texts)
        if current.state.head_seq or not text:
            return None, 0 if current.state.head_seq else len(texts)
        own = next((each for each in sections if each["name"] == SYSTEM_SECTION), None)
        if own is None:
            sections.insert(0, {"name": SYSTEM_SECTION, "content": text})
        else:
            own["content"] = "\n\n".join(filter(str.strip, (own["content"], text)))
        settings = current.settings.with_list(SettingsList.SECTIONS, sections)
        changed = replace(current, settings=settings)
        await session.conversations.change(tenant_id, current, changed)
        return SYSTEM_SECTION, len(texts)

    async def _append_checked(
        self, session: Repositories, tenant_id: str, known: CachedSettings, batch: Batch
    ) -> StoredBatch:
        """Append those messages of a batch that are not stored already, or raise the error."""
        current, request = known.conversation, batch.request
        conversation_id, head_seq = current.conversation_id, current.state.head_seq
        drafts = {draft.id: draft for draft in batch.drafts if draft.id is not None}
        before: dict[str, MessagePosition] = {}
        after_seq, has_more = 0, bool(drafts)
        while has_more:  # only one page of them is in memory
            page = await session.log.by_ids(
                conversation_id, list(drafts), after_seq, Bound(PAGE_BYTES)
            )
            for stored in page:
                after_seq, draft = stored.seq, drafts[stored.id]
                is_long = stored.byte_size > THREAD_BYTES
                if not await in_thread_if(is_long, _is_same, stored, draft, request.format):
                    raise Conflict(
                        f"Message id {stored.id!r} is taken by another message", {"id": stored.id}
                    )
                place = (stored.id, stored.seq, stored.turn, draft.role, stored.token_count)
                before[stored.id] = MessagePosition(*place, stored.output_ref)
            has_more = page.has_more
        left = [draft for draft in batch.drafts if draft.id is None or draft.id not in before]
        if (left or not before) and request.expected_seq not in (None, head_seq):
            raise Conflict(
                f"The log's head is {head_seq}, not {request.expected_seq}",
                {"head_seq": head_seq, "expected_seq": request.expected_seq},
            )
        if not left:
            return await self._stored(session, batch, current, before=before.values())
        shape = batch_shape(left, current.state.calls, head_seq)
        assert shape is not None, "the calls are known"
        await attach_blobs(session, conversation_id, batch, left)
        after = await self._append(session, tenant_id, known, batch, shape)
        if after is None:  # its agent or model changed: the lock holds neither
            raise _SettingsChanged
        return await self._stored(session, batch, *after, before=before.values())


def _needs_lock(batch: Batch) -> bool:
    """Whether more than the log and its state decides what is stored."""
    return batch.request.idempotency_key is not None or any(
        draft.is_configuration
        or draft.attached_blob_id is not None
        or (draft.compaction is not None and batch.request.applies_compactions)
        for draft in batch.drafts
    )


def _is_same(stored: StoredMessage, draft: Draft, format: FormatName) -> bool:
    """Whether a stored message is equal to a new one, even if they are offloaded differently."""
    output = stored.output
    if (stored.format, stored.role) != (format, draft.role):
        return False
    if output is not None and output.ref is not None:
        return is_same_result(stored.body, output, draft.raw_message, format)
    sent = json_text.loads(json_text.dump_stored(draft.raw_message))
    return bool(json_text.loads(stored.body) == sent)


def _leading_system_texts(batch: Batch) -> Iterator[str]:
    """Yield the texts of the system messages that begin a batch, up to one with media."""
    parse = PROVIDERS[batch.request.format].parse
    for draft in takewhile(lambda draft: draft.role is Role.SYSTEM, batch.drafts):
        (message,) = parse(draft.raw_message, "")
        if not all(isinstance(part, Text) for part in message.parts):
            return
        yield message.text
