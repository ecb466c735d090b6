"""Batches of messages: checked, offloaded and counted before they are stored."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.domain.common import json_text
from app.domain.common.errors import ServiceUnavailable, ValidationError
from app.domain.common.messages import FormatName, Role, is_sendable
from app.domain.common.policy import CounterName, ToolOutputPolicy
from app.domain.compaction.thresholds import NO_THRESHOLD, CompactionThreshold
from app.domain.conversations.log.draft import DEFAULT_RULES, Draft, draft
from app.domain.formats import FORMATS, group_items, with_request_pointers
from app.domain.tool_output.blobs import Blob, StoredChunk
from app.domain.tool_output.offloading import OffloadRules, PreviewedBlob
from app.domain.tool_output.preview import has_long_line, should_offload
from app.services.ports import Database, Repositories
from app.services.prompt.settings_resolver import SettingsResolver
from app.services.tool_output.stored_results import StoredResults

_log = logging.getLogger("app.log")

INLINE_WARNING = "tool_output_inline"
"""The warning that the blob store failed, so that results stayed in their messages."""
_INLINE_CHARS = 24_000
"""Characters counted in about a millisecond, before the event loop runs other tasks."""
_THREAD_CHARS = 64_000
"""Characters of a message from which a thread counts it."""


@dataclass(frozen=True, slots=True)
class Append:
    """An append request; `messages` are JSON objects in `format`."""

    messages: Sequence[Mapping[str, Any]]
    format: FormatName = FormatName.OPENAI_CHAT
    expected_seq: int | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class AppendSettings:
    """The settings that an append depends on."""

    counter: str = CounterName.TOKENIZER
    output: ToolOutputPolicy = field(default_factory=ToolOutputPolicy)
    threshold: CompactionThreshold = NO_THRESHOLD


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that is ready to be stored, with its blobs.

    `attaches` are the stored blobs that its messages refer to. `collected` are blobs that were
    collected when the batch was prepared: no new message may refer to them.
    """

    request: Append
    settings: AppendSettings
    has_results: bool
    drafts: list[Draft]
    blobs: Sequence[tuple[Blob, list[StoredChunk]]] = ()
    attaches: tuple[str, ...] = ()
    collected: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = ()


class Batches:
    """Prepares batches."""

    def __init__(
        self, database: Database, resolver: SettingsResolver, outputs: StoredResults
    ) -> None:
        self._database = database
        self._resolver = resolver
        self._outputs = outputs

    async def prepare(
        self,
        tenant_id: str,
        conversation_id: str,
        request: Append,
        settings: AppendSettings,
        has_results: bool,
    ) -> Batch:
        """Check, offload and count the messages; without the blob store results stay inline."""
        if not has_results:
            drafts = await self._drafts(conversation_id, request, settings.counter, DEFAULT_RULES)
            return Batch(request, settings, has_results, drafts)
        attached: Mapping[str, PreviewedBlob] = {}
        refs = _attached_refs(request)
        if refs:
            attached = await self._outputs.attached_blobs(conversation_id, refs, settings.output)
        rules = OffloadRules(settings.output, {}, attached)
        drafts = await self._drafts(conversation_id, request, settings.counter, rules)
        warnings: tuple[str, ...] = ()
        blobs: list[tuple[Blob, list[StoredChunk]]] = []
        try:
            blobs = await self._outputs.store_blobs(tenant_id, conversation_id, drafts)
        except ServiceUnavailable:
            _log.warning("blob_store_unavailable")
            inline = replace(rules, policy=replace(settings.output, enabled=False))
            drafts = await self._drafts(conversation_id, request, settings.counter, inline)
            warnings = (INLINE_WARNING,)
        attaches = tuple({item.attaches: None for item in drafts if item.attaches is not None})
        collected = frozenset(
            ref for ref, item in attached.items() if item.blob.collected_at is not None
        )
        return Batch(request, settings, has_results, drafts, blobs, attaches, collected, warnings)

    async def _drafts(
        self, conversation_id: str, request: Append, counter: str, rules: OffloadRules
    ) -> list[Draft]:
        """Check and count the messages without blocking the event loop.

        Items of one model turn are one message. Large messages are counted in a thread. Small ones
        are not: switching threads would take longer than counting.
        """
        count = self._resolver.counter(counter)
        drafts: list[Draft] = []
        seen: dict[str, int] = {}
        names: dict[str, str] | None = None
        done = 0
        for index, message in group_items(request.format, request.messages):
            pointer = f"/messages/{index}"
            size = _approximate_chars(message)
            is_result = has_results(message, request.format)
            if names is None and is_result and _is_large(message, size, rules.policy):
                is_open = all(entry.role is Role.TOOL for entry in drafts)
                names = await self._open_calls(conversation_id) if is_open else {}
                rules = replace(rules, names=names)
            try:
                if size > _THREAD_CHARS:
                    made = await asyncio.to_thread(
                        draft, message, request.format, count, pointer, rules
                    )
                else:
                    made = draft(message, request.format, count, pointer, rules)
                    done += size
            except ValidationError as error:
                if message is request.messages[index]:
                    raise
                raise with_request_pointers(error) from error
            for entry in made:
                if entry.id is not None and seen.setdefault(entry.id, index) != index:
                    raise ValidationError.at(f"{pointer}/id", "The id is used twice in the batch")
                if entry.call_names:
                    names = dict(zip(entry.call_ids, entry.call_names, strict=True))
                    rules = replace(rules, names=names)
            drafts.extend(made)
            if done > _INLINE_CHARS:
                done = 0
                await asyncio.sleep(0)
        return drafts

    async def _open_calls(self, conversation_id: str) -> dict[str, str]:
        """Return the tool names of the open calls by call id."""
        async with self._database.session() as session:
            return dict(await session.log.open_calls(conversation_id))


def has_results(message: Any, format: FormatName) -> bool:
    """Whether a message of a request has tool results."""
    return isinstance(message, Mapping) and bool(FORMATS[format].results(message))


def _attached_refs(request: Append) -> tuple[str, ...]:
    """Return the ids of all blobs that the messages of a request refer to."""
    results = FORMATS[request.format].results
    given = (message for message in request.messages if isinstance(message, Mapping))
    holders = [holder for message in given for _, holder in results(message)]
    refs_given = (holder["output_ref"] for holder in holders if holder.get("output_ref"))
    refs = (ref.get("id") if isinstance(ref, Mapping) else ref for ref in refs_given)
    return tuple(dict.fromkeys(ref for ref in refs if isinstance(ref, str) and is_sendable(ref)))


def _is_large(result: Any, chars: int, policy: ToolOutputPolicy) -> bool:
    """Whether a message of this many characters may be offloaded, mostly decided by that number."""
    if should_offload(chars, policy):
        return True
    if policy.enabled and chars > policy.max_line_length and _has_long_line(result, policy):
        return True
    max_bytes = 4 * chars
    return should_offload(max_bytes, policy) and should_offload(
        len(json_text.dumps(result).encode()), policy
    )


def _has_long_line(value: Any, policy: ToolOutputPolicy) -> bool:
    """Whether a small message has a text with a line that a preview cuts."""
    match value:
        case str():
            return has_long_line(value, policy.max_line_length)
        case Mapping():
            return any(_has_long_line(item, policy) for item in value.values())
        case list():
            return any(_has_long_line(item, policy) for item in value)
    return False


def _approximate_chars(message: Any) -> int:
    """Return the approximate number of characters of a message without a walk over all of it."""
    if not isinstance(message, Mapping):
        return 0
    total = 0
    for value in message.values():
        if isinstance(value, str):
            total += len(value)
        elif isinstance(value, list):
            total += sum(
                _approximate_chars(item) if isinstance(item, Mapping) else 0 for item in value
            )
        elif isinstance(value, Mapping):
            total += _approximate_chars(value)
    return total


async def attach_blobs(
    session: Repositories, conversation_id: str, batch: Batch, new: Sequence[Draft]
) -> None:
    """Store that new messages refer to blobs; raises ValidationError if one was collected."""
    refs = [entry.attaches for entry in new if entry.attaches is not None]
    if not refs:
        return
    found = await session.blobs.find_all(conversation_id, refs)
    there = {blob.id for blob in found if blob.collected_at is None}
    missing = {*refs} - (there - batch.collected)
    for entry in batch.drafts:
        if entry.attaches in missing:
            detail = f"Blob {entry.attaches!r} was collected: upload it again"
            raise ValidationError.at(f"{entry.place}/output_ref", detail)
    await session.blobs.attach(conversation_id, refs)
