"""Appending to the log and reading it back (A1, A2, A3, A6)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.domain import jsontext
from app.domain.budget import ContextBudget
from app.domain.compaction import NEVER_DUE, DueLine, due_line
from app.domain.errors import (
    Conflict,
    ContextError,
    NotFound,
    ServiceUnavailable,
    ValidationError,
)
from app.domain.events import EventType
from app.domain.frames import digest
from app.domain.log import BatchShape, Draft, draft, fold_batch, unpaired
from app.domain.messages import FormatName, Role
from app.domain.policy import CounterName
from app.domain.records import Conversation, StoredMessage
from app.services.frames import Frames
from app.services.ports import Database, JobQueue, Records
from app.services.readings import read_budget

_log = logging.getLogger("app.log")

_INLINE_CHARS = 24_000
"""Text counted on the event loop, in about a millisecond, before others have their turn."""
_THREAD_CHARS = 64_000
"""Text of a message from which it is counted in a thread."""


@dataclass(frozen=True, slots=True)
class Append:
    """An append request; `messages` are JSON objects in `format`."""

    messages: Sequence[Mapping[str, Any]]
    format: FormatName = FormatName.OPENAI_CHAT
    expected_seq: int | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class AppendedMessage:
    """Where a message stands in the log; `token_count` includes its reasoning."""

    id: str
    seq: int
    turn: int
    role: str
    token_count: int


@dataclass(frozen=True, slots=True)
class Appended:
    """The answer to an append; pressure and budget are None while no window is known."""

    messages: list[AppendedMessage]
    head_seq: int
    pressure: str | None
    notice: bool | None
    next_threshold: str | None
    tokens_to_next: int | None
    budget: ContextBudget | None


@dataclass(frozen=True, slots=True)
class _Done:
    """An append that was made: the conversation after it, and what its caller is told."""

    conversation: Conversation
    appended: Appended


class LogService:
    """Appends batches and pages through transcripts."""

    def __init__(
        self,
        database: Database,
        frames: Frames,
        queue: JobQueue,
        new_id: Callable[[], str],
        most_messages: int,
    ) -> None:
        self._database = database
        self._queue = queue
        self._frames = frames
        self._new_id = new_id
        self._most_messages = most_messages

    async def append(
        self, tenant_id: str, conversation_id: str, request: Append
    ) -> Appended | dict[str, Any]:
        """Append a batch, all of it or nothing (A2).

        Returns a kept answer, as it was, when the idempotency key was used before. Raises
        NotFound, Conflict, UnpairedToolResult or ValidationError, with nothing stored.
        """
        self._check_size(request)
        held = self._database.held(conversation_id)
        counter = held.counter if held is not None else CounterName.TOKENIZER
        line = await self._line(held)
        drafts = await self._drafts(request, counter)
        if request.idempotency_key is None:
            async with self._database.session() as records:
                done = await self._append(
                    records, tenant_id, conversation_id, request, drafts, counter, line
                )
            if done is not None:
                return await self._told(tenant_id, done, line)
        return await self._append_locked(tenant_id, conversation_id, request, drafts, counter, line)

    async def page(
        self,
        tenant_id: str,
        conversation_id: str,
        *,
        after_seq: int,
        before_seq: int,
        order: str,
        limit: int,
    ) -> tuple[Conversation, list[StoredMessage]]:
        """Return messages between two seqs, both exclusive, with their conversation (A6)."""
        async with self._database.session() as records:
            found = await records.conversations.find(
                tenant_id, conversation_id, self._frames.default_model
            )
            if found is None:
                raise NotFound.conversation(conversation_id)
            page = await records.log.page(conversation_id, after_seq, before_seq, order, limit)
        return found, page

    async def _line(self, conversation: Conversation | None) -> DueLine:
        """Return where a compaction of the conversation is due, nowhere while that is unknown."""
        if conversation is None:
            return NEVER_DUE
        try:
            return due_line(await self._frames.of(conversation))
        except ContextError:
            return NEVER_DUE

    async def _told(self, tenant_id: str, done: _Done, line: DueLine) -> Appended:
        """Wake a worker when the batch made a compaction due, and return the answer.

        The append went by the settings this process had in hand; should they have been others,
        the mark is set here. A worker that cannot be woken finds the mark by itself.
        """
        after = done.conversation
        try:
            is_due = after.head.became_due
            now = await self._line(after)
            if now != line and not after.head.is_due and now.reached(after.head):
                async with self._database.session() as records:
                    is_due = await records.jobs.mark_due(after.conversation_id)
            if is_due and await self._queue.enqueue(tenant_id, after.conversation_id):
                async with self._database.session() as records:
                    await records.events.add(after.conversation_id, EventType.DUE, "{}")
        except ServiceUnavailable:
            _log.warning("worker_not_woken")
        return done.appended

    def _check_size(self, request: Append) -> None:
        count = len(request.messages)
        if not 1 <= count <= self._most_messages:
            raise ValidationError.at(
                "/messages", f"A batch holds 1 to {self._most_messages} messages, not {count}"
            )

    async def _drafts(self, request: Append, counter: str) -> list[Draft]:
        """Check and count the batch, without holding up the event loop.

        Large messages are counted in a thread. Small ones are not: threads that take turns at
        them spend more on the turns than on the counting.
        """
        count = self._frames.counter(counter)
        drafts: list[Draft] = []
        seen: dict[str, int] = {}
        done = 0
        for index, message in enumerate(request.messages):
            pointer = f"/messages/{index}"
            size = _weight(message)
            if size > _THREAD_CHARS:
                made = await asyncio.to_thread(draft, message, request.format, count, pointer)
            else:
                made = draft(message, request.format, count, pointer)
                done += size
            for entry in made:
                if entry.id is not None and seen.setdefault(entry.id, index) != index:
                    raise ValidationError.at(f"{pointer}/id", "The id is used twice in the batch")
            drafts.extend(made)
            if done > _INLINE_CHARS:
                done = 0
                await asyncio.sleep(0)
        return drafts

    async def _append(
        self,
        records: Records,
        tenant_id: str,
        conversation_id: str,
        request: Append,
        drafts: Sequence[Draft],
        counter: str,
        line: DueLine,
    ) -> _Done | None:
        shape = fold_batch(drafts)
        ids = [entry.id or self._new_id() for entry in drafts]
        after = await records.log.append(
            tenant_id,
            conversation_id,
            request.format,
            drafts,
            ids,
            shape,
            counter=counter,
            expected_seq=request.expected_seq,
            default_model=self._frames.default_model,
            due=line,
        )
        if after is None:
            return None
        return _Done(after, await self._answer(records, after, _placed(after, drafts, ids)))

    async def _answer(
        self, records: Records, conversation: Conversation, messages: list[AppendedMessage]
    ) -> Appended:
        reading = await read_budget(self._frames, records, conversation)
        pressure = reading.pressure if reading else None
        return Appended(
            messages=messages,
            head_seq=conversation.head.head_seq,
            pressure=pressure.pressure if pressure else None,
            notice=pressure.notice if pressure else None,
            next_threshold=pressure.next_threshold if pressure else None,
            tokens_to_next=pressure.tokens_to_next if pressure else None,
            budget=reading.budget if reading else None,
        )

    async def _append_locked(
        self,
        tenant_id: str,
        conversation_id: str,
        request: Append,
        drafts: list[Draft],
        counter: str,
        line: DueLine,
    ) -> Appended | dict[str, Any]:
        """Append under the head's lock, where the reason for a refusal can be told."""
        key, request_hash = request.idempotency_key, ""
        if key is not None:
            request_hash = await asyncio.to_thread(_request_hash, request)
        async with self._database.transaction() as records:
            current = await records.log.lock(tenant_id, conversation_id, self._frames.default_model)
            if current is None:
                raise NotFound.conversation(conversation_id)
            if key is not None:
                kept = await records.log.kept_answer(conversation_id, key)
                if kept is not None:
                    return _replayed(kept, request_hash)
            if current.counter != counter:
                drafts = await self._drafts(request, current.counter)
            line = await self._line(current)
            done = await self._append_checked(records, tenant_id, current, request, drafts, line)
            if key is not None:
                text = jsontext.dumps(done.appended)
                await records.log.keep_answer(conversation_id, key, request_hash, text)
        return await self._told(tenant_id, done, line)

    async def _append_checked(
        self,
        records: Records,
        tenant_id: str,
        current: Conversation,
        request: Append,
        drafts: Sequence[Draft],
        line: DueLine,
    ) -> _Done:
        conversation_id = current.conversation_id
        given = [entry.id for entry in drafts if entry.id is not None]
        known = {
            message.id: message
            for message in (await records.log.by_ids(conversation_id, given) if given else [])
        }
        new = []
        for entry in drafts:
            stored = known.get(entry.id) if entry.id is not None else None
            if stored is None:
                new.append(entry)
            elif not _same(stored, entry, request.format):
                raise Conflict(
                    f"Message id {entry.id!r} is taken by another message", {"id": entry.id}
                )
        if known and len(known) == len(drafts):
            placed = [_as_appended(message) for message in known.values()]
            return _Done(current, await self._answer(records, current, placed))
        _check_head(current, request, fold_batch(new))
        done = await self._append(
            records, tenant_id, conversation_id, request, new, current.counter, line
        )
        assert done is not None, "the head is locked and was checked"
        if known:
            stored_before = [_as_appended(message) for message in known.values()]
            both = [*stored_before, *done.appended.messages]
            merged = sorted(both, key=lambda message: message.seq)
            return replace(done, appended=replace(done.appended, messages=merged))
        return done


def _check_head(current: Conversation, request: Append, shape: BatchShape) -> None:
    head = current.head
    if request.expected_seq is not None and request.expected_seq != head.head_seq:
        raise Conflict(
            f"The log's head is {head.head_seq}, not {request.expected_seq}",
            {"head_seq": head.head_seq, "expected_seq": request.expected_seq},
        )
    for call_id in shape.needs:
        if call_id not in head.open_calls:
            raise unpaired(call_id, "answers no open call")


def _placed(
    after: Conversation, drafts: Sequence[Draft], ids: Sequence[str]
) -> list[AppendedMessage]:
    first = after.head.head_seq - len(drafts) + 1
    turn = after.head.turns - sum(entry.role is Role.USER for entry in drafts)
    placed = []
    for offset, (entry, message_id) in enumerate(zip(drafts, ids, strict=True)):
        turn += entry.role is Role.USER
        tokens = entry.tokens + entry.reasoning_tokens
        placed.append(AppendedMessage(message_id, first + offset, turn, entry.role, tokens))
    return placed


def _as_appended(message: StoredMessage) -> AppendedMessage:
    return AppendedMessage(message.id, message.seq, message.turn, message.role, message.token_count)


def _same(stored: StoredMessage, entry: Draft, format: FormatName) -> bool:
    if stored.format != format:
        return False
    return stored.body.encode() == entry.body or bool(
        jsontext.loads(stored.body) == jsontext.loads(entry.body)
    )


def _request_hash(request: Append) -> str:
    content = [request.format, request.expected_seq, list(request.messages)]
    return digest(jsontext.dumps(content))


def _replayed(kept: tuple[str, str], request_hash: str) -> dict[str, Any]:
    kept_hash, answer = kept
    if kept_hash != request_hash:
        raise Conflict("The Idempotency-Key was used with another body")
    replay: dict[str, Any] = jsontext.loads(answer)
    return replay


def _weight(message: Any) -> int:
    """Return roughly how much text a message holds, without walking all of it."""
    if not isinstance(message, Mapping):
        return 0
    total = 0
    for value in message.values():
        if isinstance(value, str):
            total += len(value)
        elif isinstance(value, list):
            total += sum(_weight(item) if isinstance(item, Mapping) else 0 for item in value)
        elif isinstance(value, Mapping):
            total += _weight(value)
    return total
