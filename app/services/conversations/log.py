"""Appending to the log and reading it back (A1, A2, A3, A6)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.domain.common import json_text
from app.domain.common.errors import (
    Conflict,
    ContextError,
    NotFound,
    ServiceUnavailable,
    ValidationError,
)
from app.domain.common.messages import FormatName, Role, is_sendable
from app.domain.common.pages import Bound, Page
from app.domain.common.policy import CounterName, ToolOutputPolicy
from app.domain.compaction.planning import NO_THRESHOLD, CompactionThreshold, compaction_threshold
from app.domain.conversations.conversation import Conversation
from app.domain.conversations.events import EventType
from app.domain.conversations.log.batch import BatchShape, batch_shape, unpaired
from app.domain.conversations.log.draft import NO_TERMS, Draft, draft
from app.domain.conversations.stored_message import StoredMessage
from app.domain.formats import FORMATS, as_given, gather
from app.domain.models.budget import ContextBudget
from app.domain.prompt.resolved_settings import digest
from app.domain.tool_output.blobs import Blob, StoredChunk, ToolOutputRef
from app.domain.tool_output.offloading import Attached, Terms, is_same_result
from app.domain.tool_output.preview import has_long_line, should_offload
from app.services.common.observers import UNOBSERVED
from app.services.common.read_permits import PAGE_BYTES, UNLIMITED, Read
from app.services.conversations.active_windows import ActiveWindows
from app.services.ports import Database, Observer, Repositories
from app.services.prompt.budget_status import read_budget
from app.services.prompt.settings_resolver import SettingsResolver
from app.services.tool_output.stored_results import Content, Original, StoredResults

_log = logging.getLogger("app.log")

INLINE = "tool_output_inline"
"""The warning that results were kept in their messages, because their store failed (F8)."""
_MAX_ROUNDS = 4
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
    """Where a message stands in the log; `token_count` includes its reasoning.

    `output_ref` is what a tool result is called for by (F1).
    """

    id: str
    seq: int
    turn: int
    role: str
    token_count: int
    output_ref: ToolOutputRef | None


@dataclass(frozen=True, slots=True)
class Appended:
    """The answer to an append; pressure and budget are None while no window is known.

    `warnings` name what could not be done as usual, though all is stored (F8).
    """

    messages: list[AppendedMessage]
    head_seq: int
    pressure: str | None
    notice: bool | None
    next_threshold: str | None
    tokens_to_next: int | None
    budget: ContextBudget | None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Done:
    """An append that was made: the conversation after it, and what its caller is told.

    `stored` is what is new of it; the caller is told of what was there as well.
    """

    conversation: Conversation
    appended: Appended
    stored: Sequence[AppendedMessage] = ()


@dataclass(frozen=True, slots=True)
class _AppendSettings:
    """The settings that an append goes by."""

    counter: str = CounterName.TOKENIZER
    output: ToolOutputPolicy = field(default_factory=ToolOutputPolicy)
    line: CompactionThreshold = NO_THRESHOLD


@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch ready to be stored, with the blobs that go with it.

    `without_view` are blobs that had been collected when it was made: back or not, no new message
    may name them.
    """

    drafts: list[Draft]
    blobs: list[tuple[Blob, list[StoredChunk]]]
    attaches: tuple[str, ...]
    without_view: frozenset[str]
    has_results: bool
    warnings: tuple[str, ...]


class _SettingsChanged(Exception):
    """The settings are others than those a batch was made by."""

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation


class LogService:
    """Appends batches and pages through transcripts."""

    def __init__(
        self,
        database: Database,
        resolver: SettingsResolver,
        outputs: StoredResults,
        active: ActiveWindows,
        new_id: Callable[[], str],
        most_messages: int,
        observer: Observer = UNOBSERVED,
    ) -> None:
        self._database = database
        self._frames = resolver
        self._outputs = outputs
        self._active = active
        self._new_id = new_id
        self._most_messages = most_messages
        self._observer = observer

    async def append(
        self, tenant_id: str, conversation_id: str, request: Append
    ) -> Appended | dict[str, Any]:
        """Append a batch, all of it or nothing (A2), large tool results with their blobs (F1).

        Returns a kept answer, as it was, when the idempotency key was used before. Raises
        NotFound, Conflict, UnpairedToolResult or ValidationError, with nothing stored.
        """
        self._check_size(request)
        current = self._database.held(tenant_id, conversation_id)
        has_results = any(_is_result(raw, request.format) for raw in request.messages)
        if current is None and has_results:
            current = await self._find(tenant_id, conversation_id)
        for _ in range(_MAX_ROUNDS):
            ground = await self._ground(current)
            batch = await self._batch(tenant_id, conversation_id, request, ground, has_results)
            try:
                done = await self._stored(tenant_id, conversation_id, request, batch, ground)
            except _SettingsChanged as stale:
                current = stale.conversation
                continue
            self._observe(done)
            done = await self._as_of_now(tenant_id, done)
            return await self._told(done, ground.line)
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
        read: Read = UNLIMITED,
    ) -> tuple[Conversation, Page[StoredMessage]]:
        """Return messages between two seqs, both exclusive, with their conversation (A6)."""
        async with self._database.session() as records:
            found = await records.conversations.find(
                tenant_id, conversation_id, self._frames.default_model
            )
            if found is None:
                raise NotFound.conversation(conversation_id)
        page = await read.page(
            lambda bound: self._page(conversation_id, after_seq, before_seq, order, limit, bound)
        )
        return found, page

    async def _page(self, *wanted: Any) -> Page[StoredMessage]:
        async with self._database.session() as records:
            return await records.log.page(*wanted)

    async def originals(
        self,
        conversation_id: str,
        messages: Sequence[StoredMessage],
        content: Content,
        read: Read = UNLIMITED,
    ) -> list[Original]:
        """Return messages as they came, as far as they are asked for and fit a page (A1, A6).

        There may be fewer than were given, at least one.
        """
        return await self._outputs.originals(conversation_id, messages, content, read)

    async def _find(self, tenant_id: str, conversation_id: str) -> Conversation:
        async with self._database.session() as records:
            found = await records.conversations.find(
                tenant_id, conversation_id, self._frames.default_model
            )
        if found is None:
            raise NotFound.conversation(conversation_id)
        return found

    async def _ground(self, conversation: Conversation | None) -> _AppendSettings:
        """Return what an append goes by, the defaults while the conversation is not known."""
        if conversation is None:
            return _AppendSettings()
        try:
            resolved = await self._frames.of(conversation)
        except ContextError:
            return _AppendSettings(conversation.counter)
        return _AppendSettings(
            conversation.counter, resolved.policy.tool_output, compaction_threshold(resolved)
        )

    async def _as_of_now(
        self, tenant_id: str, done: _Done | dict[str, Any]
    ) -> _Done | dict[str, Any]:
        """Tell of the active window as it is now, should its time have passed meanwhile (B2).

        The batch is stored already: where the window cannot be moved, that is left to others.
        """
        if isinstance(done, dict) or not done.conversation.is_outdated(self._active.now()):
            return done
        told = done.appended
        try:
            settled = await self._active.settled(tenant_id, done.conversation)
            async with self._database.session() as records:
                answer = await self._answer(records, settled, told.messages, told.warnings)
        except ServiceUnavailable:
            return done
        return _Done(settled, replace(answer, head_seq=told.head_seq))

    async def _told(
        self, done: _Done | dict[str, Any], line: CompactionThreshold
    ) -> Appended | dict[str, Any]:
        """Notify the workers when the batch made a compaction due, and return the answer.

        The append used the settings that this process had cached. Where they have changed, the
        compaction is made due here. Workers that are not notified find it when they poll.
        """
        if isinstance(done, dict):
            return done
        after = done.conversation
        try:
            now = (await self._ground(after)).line
            is_overlooked = now != line and not after.state.is_due and now.reached(after.state)
            if after.state.became_due or is_overlooked:
                async with self._database.session() as records:
                    if is_overlooked and not await records.jobs.set_due(after.conversation_id):
                        return done.appended
                    await records.events.add(after.conversation_id, EventType.DUE, "{}")
                    await records.jobs.notify()
        except ServiceUnavailable:
            _log.warning("worker_not_woken")
        return done.appended

    def _observe(self, done: _Done | dict[str, Any]) -> None:
        if not isinstance(done, dict) and done.stored:
            tokens = sum(message.token_count for message in done.stored)
            self._observer.appended(len(done.stored), tokens)

    def _check_size(self, request: Append) -> None:
        count = len(request.messages)
        if not 1 <= count <= self._most_messages:
            raise ValidationError.at(
                "/messages", f"A batch holds 1 to {self._most_messages} messages, not {count}"
            )

    async def _batch(
        self,
        tenant_id: str,
        conversation_id: str,
        request: Append,
        ground: _AppendSettings,
        has_results: bool,
    ) -> _Batch:
        """Check, offload and count the batch; without its blob store it stays inline (F8)."""
        if not has_results:
            drafts = await self._drafts(conversation_id, request, ground.counter, NO_TERMS)
            return _Batch(drafts, [], (), frozenset(), has_results, ())
        attached: Mapping[str, Attached] = {}
        refs = _attached_refs(request)
        if refs:
            attached = await self._outputs.attached(conversation_id, refs, ground.output)
        terms = Terms(ground.output, {}, attached)
        drafts = await self._drafts(conversation_id, request, ground.counter, terms)
        warnings: tuple[str, ...] = ()
        blobs: list[tuple[Blob, list[StoredChunk]]] = []
        try:
            blobs = await self._outputs.keep(tenant_id, conversation_id, drafts)
        except ServiceUnavailable:
            _log.warning("blob_store_unavailable")
            inline = replace(terms, policy=replace(ground.output, enabled=False))
            drafts = await self._drafts(conversation_id, request, ground.counter, inline)
            warnings = (INLINE,)
        attaches = tuple({item.attaches: None for item in drafts if item.attaches is not None})
        without_view = frozenset(
            ref for ref, item in attached.items() if item.blob.collected_at is not None
        )
        return _Batch(drafts, blobs, attaches, without_view, has_results, warnings)

    async def _drafts(
        self, conversation_id: str, request: Append, counter: str, terms: Terms
    ) -> list[Draft]:
        """Check and count the batch, without holding up the event loop.

        What a model made in several raws is one message (A5). Large messages are counted in a
        thread. Small ones are not: threads that take turns at them spend more on the turns than
        on the counting.
        """
        count = self._frames.counter(counter)
        drafts: list[Draft] = []
        seen: dict[str, int] = {}
        names: dict[str, str] | None = None
        done = 0
        for index, message in gather(request.format, request.messages):
            pointer = f"/messages/{index}"
            size = _weight(message)
            is_result = _is_result(message, request.format)
            if names is None and is_result and _is_large(message, size, terms.policy):
                is_open = all(entry.role is Role.TOOL for entry in drafts)
                names = await self._open_calls(conversation_id) if is_open else {}
                terms = replace(terms, names=names)
            try:
                if size > _THREAD_CHARS:
                    made = await asyncio.to_thread(
                        draft, message, request.format, count, pointer, terms
                    )
                else:
                    made = draft(message, request.format, count, pointer, terms)
                    done += size
            except ValidationError as error:
                if message is request.messages[index]:
                    raise
                raise as_given(error) from error
            for entry in made:
                if entry.id is not None and seen.setdefault(entry.id, index) != index:
                    raise ValidationError.at(f"{pointer}/id", "The id is used twice in the batch")
                if entry.call_names:
                    names = dict(zip(entry.call_ids, entry.call_names, strict=True))
                    terms = replace(terms, names=names)
            drafts.extend(made)
            if done > _INLINE_CHARS:
                done = 0
                await asyncio.sleep(0)
        return drafts

    async def _open_calls(self, conversation_id: str) -> dict[str, str]:
        """Return the names of the tools whose results the log is waiting for, by call id."""
        async with self._database.session() as records:
            return dict(await records.log.open_calls(conversation_id))

    async def _stored(
        self,
        tenant_id: str,
        conversation_id: str,
        request: Append,
        batch: _Batch,
        ground: _AppendSettings,
    ) -> _Done | dict[str, Any]:
        if request.idempotency_key is None and not batch.attaches:
            async with self._database.session() as records:
                done = await self._append(
                    records, tenant_id, conversation_id, request, batch, ground, batch.has_results
                )
            if done is not None:
                return done
        return await self._append_locked(tenant_id, conversation_id, request, batch, ground)

    async def _append(
        self,
        records: Repositories,
        tenant_id: str,
        conversation_id: str,
        request: Append,
        batch: _Batch,
        ground: _AppendSettings,
        as_held: bool,
    ) -> _Done | None:
        drafts = batch.drafts
        ids = [entry.id or self._new_id() for entry in drafts]
        if as_held:
            held = self._database.held(tenant_id, conversation_id)
            if held is None or (await self._ground(held)).output != ground.output:
                return None  # they were learned anew while the batch was made
        after = await records.log.append(
            tenant_id,
            conversation_id,
            request.format,
            drafts,
            ids,
            batch_shape(drafts),
            counter=ground.counter,
            now=self._active.now(),
            expected_seq=request.expected_seq,
            default_model=self._frames.default_model,
            due=ground.line,
            blobs=batch.blobs,
            as_held=as_held,
        )
        if after is None:
            return None
        placed = _placed(after, drafts, ids)
        return _Done(after, await self._answer(records, after, placed, batch.warnings), placed)

    async def _answer(
        self,
        records: Repositories,
        conversation: Conversation,
        messages: list[AppendedMessage],
        warnings: tuple[str, ...] = (),
    ) -> Appended:
        reading = await read_budget(self._frames, records, conversation)
        pressure = reading.pressure if reading else None
        return Appended(
            messages=messages,
            head_seq=conversation.state.head_seq,
            pressure=pressure.pressure if pressure else None,
            notice=pressure.notice if pressure else None,
            next_threshold=pressure.next_threshold if pressure else None,
            tokens_to_next=pressure.tokens_to_next if pressure else None,
            budget=reading.budget if reading else None,
            warnings=warnings,
        )

    async def _append_locked(
        self,
        tenant_id: str,
        conversation_id: str,
        request: Append,
        batch: _Batch,
        ground: _AppendSettings,
    ) -> _Done | dict[str, Any]:
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
            now = await self._ground(current)
            if now.counter != ground.counter or (batch.has_results and now.output != ground.output):
                raise _SettingsChanged(current)
            done = await self._append_checked(records, tenant_id, current, request, batch, now)
            if key is not None:
                text = json_text.dumps(done.appended)
                await records.log.keep_answer(conversation_id, key, request_hash, text)
        return done

    async def _append_checked(
        self,
        records: Repositories,
        tenant_id: str,
        current: Conversation,
        request: Append,
        batch: _Batch,
        ground: _AppendSettings,
    ) -> _Done:
        conversation_id = current.conversation_id
        given = [entry.id for entry in batch.drafts if entry.id is not None]
        known: dict[str, AppendedMessage] = {}
        drafts = {entry.id: entry for entry in batch.drafts}
        async for stored in _stored_with(records, conversation_id, given):
            entry = drafts[stored.id]
            if not await _is_same(stored, entry, request.format):
                raise Conflict(
                    f"Message id {entry.id!r} is taken by another message", {"id": entry.id}
                )
            known[stored.id] = _as_appended(stored)
        new = [entry for entry in batch.drafts if entry.id is None or entry.id not in known]
        if known and len(known) == len(batch.drafts):
            placed = list(known.values())
            return _Done(current, await self._answer(records, current, placed))
        _check_head(current, request, batch_shape(new))
        await _attach(records, conversation_id, batch, new)
        left = replace(batch, drafts=new)
        done = await self._append(
            records, tenant_id, conversation_id, request, left, ground, as_held=False
        )
        assert done is not None, "the head is locked and was checked"
        if known:
            both = [*known.values(), *done.appended.messages]
            merged = sorted(both, key=lambda message: message.seq)
            return replace(done, appended=replace(done.appended, messages=merged))
        return done


async def _stored_with(
    records: Repositories, conversation_id: str, ids: Sequence[str]
) -> AsyncIterator[StoredMessage]:
    """Yield the stored messages with these ids, of which a page's bytes are held at a time."""
    after_seq, has_more = 0, bool(ids)
    while has_more:
        found = await records.log.by_ids(conversation_id, ids, after_seq, Bound(PAGE_BYTES))
        for message in found:
            after_seq = message.seq
            yield message
        has_more = found.has_more


async def _is_same(stored: StoredMessage, entry: Draft, format: FormatName) -> bool:
    """Whether a stored message came as this one does, however both are offloaded."""
    if stored.format != format:
        return False
    output, new = stored.output, entry.kept_output
    if (output.ref if output else None) == (new.ref if new else None) and (
        stored.body.encode() == entry.body
    ):
        return True
    if output is not None and output.ref is not None:
        return await asyncio.to_thread(is_same_result, stored.body, output, entry.piece, format)
    return bool(json_text.loads(stored.body) == json_text.loads(json_text.dump_stored(entry.piece)))


async def _attach(
    records: Repositories, conversation_id: str, batch: _Batch, new: Sequence[Draft]
) -> None:
    """Note under the head's lock that new messages refer to blobs, unless one was collected."""
    refs = [entry.attaches for entry in new if entry.attaches is not None]
    if not refs:
        return
    found = await records.blobs.find_all(conversation_id, refs)
    there = {blob.id for blob in found if blob.collected_at is None}
    missing = {*refs} - (there - batch.without_view)
    for entry in batch.drafts:
        if entry.attaches in missing:
            detail = f"Blob {entry.attaches!r} was collected: upload it again"
            raise ValidationError.at(f"{entry.place}/output_ref", detail)
    await records.blobs.attach(conversation_id, refs)


def _check_head(current: Conversation, request: Append, shape: BatchShape) -> None:
    state = current.state
    if request.expected_seq is not None and request.expected_seq != state.head_seq:
        raise Conflict(
            f"The log's head is {state.head_seq}, not {request.expected_seq}",
            {"head_seq": state.head_seq, "expected_seq": request.expected_seq},
        )
    for call_id in shape.required_calls:
        if call_id not in state.open_calls:
            raise unpaired(call_id, "answers no open call")


def _placed(
    after: Conversation, drafts: Sequence[Draft], ids: Sequence[str]
) -> list[AppendedMessage]:
    first = after.state.head_seq - len(drafts) + 1
    turn = after.state.turns - sum(entry.role is Role.USER for entry in drafts)
    placed = []
    for offset, (entry, message_id) in enumerate(zip(drafts, ids, strict=True)):
        turn += entry.role is Role.USER
        seq, tokens = first + offset, entry.tokens + entry.reasoning_tokens
        ref = entry.output.ref_in(message_id, seq) if entry.output is not None else None
        placed.append(AppendedMessage(message_id, seq, turn, entry.role, tokens, ref))
    return placed


def _as_appended(message: StoredMessage) -> AppendedMessage:
    return AppendedMessage(
        message.id,
        message.seq,
        message.turn,
        message.role,
        message.token_count,
        message.output_ref,
    )


def _is_result(message: Any, format: FormatName) -> bool:
    """Whether a message as it came holds tool results."""
    return isinstance(message, Mapping) and bool(FORMATS[format].results(message))


def _attached_refs(request: Append) -> tuple[str, ...]:
    """Return the ids of all blobs that the messages of a request refer to."""
    results = FORMATS[request.format].results
    given = (message for message in request.messages if isinstance(message, Mapping))
    holders = [holder for message in given for _, holder in results(message)]
    asked = (holder["output_ref"] for holder in holders if holder.get("output_ref"))
    refs = (ref.get("id") if isinstance(ref, Mapping) else ref for ref in asked)
    return tuple(dict.fromkeys(ref for ref in refs if isinstance(ref, str) and is_sendable(ref)))


def _request_hash(request: Append) -> str:
    content = [request.format, request.expected_seq, list(request.messages)]
    return digest(json_text.dumps(content))


def _replayed(kept: tuple[str, str], request_hash: str) -> dict[str, Any]:
    kept_hash, answer = kept
    if kept_hash != request_hash:
        raise Conflict("The Idempotency-Key was used with another body")
    replay: dict[str, Any] = json_text.loads(answer)
    return replay


def _is_large(result: Any, chars: int, policy: ToolOutputPolicy) -> bool:
    """Whether a message with so many characters may be offloaded; most are told by those."""
    if should_offload(chars, policy):
        return True
    if policy.enabled and chars > policy.max_line_length and _has_long_line(result, policy):
        return True
    most_bytes = 4 * chars
    return should_offload(most_bytes, policy) and should_offload(
        len(json_text.dumps(result).encode()), policy
    )


def _has_long_line(value: Any, policy: ToolOutputPolicy) -> bool:
    """Whether a small message holds a text with a line that a view cuts."""
    match value:
        case str():
            return has_long_line(value, policy.max_line_length)
        case Mapping():
            return any(_has_long_line(item, policy) for item in value.values())
        case list():
            return any(_has_long_line(item, policy) for item in value)
    return False


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
