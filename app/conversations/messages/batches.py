"""Batches of messages: checked, offloaded and counted before they are stored."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.blobs.blobs import Blob, StoredChunk
from app.blobs.offloading import OffloadRules, PreviewedBlob
from app.blobs.preview import has_long_line, should_offload
from app.common import json_text
from app.common.concurrency import in_thread_if
from app.common.errors import ServiceUnavailable, ValidationError
from app.common.texts import is_sendable
from app.conversations.messages.batch import Append
from app.conversations.messages.draft import Draft, make_drafts
from app.conversations.messages.stored_results import StoredResults
from app.conversations.settings_resolver import SettingsResolver
from app.conversations.thresholds import NO_THRESHOLD, CompactionThreshold
from app.formats import PROVIDERS, with_request_pointers
from app.formats.message import FormatName
from app.policy.policy import CounterName, ToolOutputPolicy
from app.repositories import Database, Repositories

_log = logging.getLogger("app.log")

INLINE_WARNING = "tool_output_inline"
"""The warning that the blob store failed, so that results stayed in their messages."""
_CHARS_BEFORE_YIELD = 24_000
"""Characters counted before other tasks run: less than a millisecond of most texts."""
_THREAD_CHARS = 16_000
"""Characters of a message from which a thread counts it.

The slowest texts take half a microsecond for a character.
"""


@dataclass(frozen=True, slots=True)
class AppendSettings:
    """The settings that an append depends on."""

    counter: str = CounterName.TOKENIZER
    output: ToolOutputPolicy = field(default_factory=ToolOutputPolicy)
    threshold: CompactionThreshold = NO_THRESHOLD


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that is ready to be stored, with its blobs.

    `collected_blob_ids` are stored blobs that its messages refer to, and that were collected before
    the batch was prepared: no new message may refer to them.
    """

    request: Append
    settings: AppendSettings
    drafts: list[Draft]
    blobs: Sequence[tuple[Blob, list[StoredChunk]]] = ()
    collected_blob_ids: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = ()


@dataclass(eq=False, repr=False)
class Batches:
    """Prepares batches."""

    _database: Database
    _resolver: SettingsResolver
    _outputs: StoredResults

    async def prepare(
        self,
        tenant_id: str,
        conversation_id: str,
        request: Append,
        settings: AppendSettings,
    ) -> Batch:
        """Check, offload and count the messages; without the blob store results stay inline."""
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
            inline = replace(rules, policy=settings.output.model_copy(update={"enabled": False}))
            drafts = await self._drafts(conversation_id, request, settings.counter, inline)
            warnings = (INLINE_WARNING,)
        collected = frozenset(
            ref for ref, item in attached.items() if item.blob.collected_at is not None
        )
        return Batch(request, settings, drafts, blobs, collected, warnings)

    async def _drafts(
        self, conversation_id: str, request: Append, counter: str, rules: OffloadRules
    ) -> list[Draft]:
        """Check and count the messages without blocking the event loop.

        Items of one model turn are one message. Large messages are counted in a thread. Small ones
        are not: switching threads would take longer than counting.
        """
        count = self._resolver.counter(counter)
        drafts: list[Draft] = []
        index_by_id: dict[str, int] = {}
        tool_names: dict[str, str] = {}
        is_known = False
        chars_since_yield = 0
        for index, message in PROVIDERS[request.format].group_items(request.messages):
            pointer = f"/messages/{index}"
            size = _approximate_chars(message)
            is_result = has_results(message, request.format)
            if is_result and not is_known and _may_offload(message, size, rules.policy):
                is_known = True
                async with self._database.session() as session:
                    tool_names = await session.log.open_calls(conversation_id) | tool_names
                rules = replace(rules, tool_names=tool_names)
            try:
                is_long = size > _THREAD_CHARS
                message_drafts = await in_thread_if(
                    is_long, make_drafts, message, request.format, count, pointer, rules
                )
            except ValidationError as error:
                if message is request.messages[index]:
                    raise
                raise with_request_pointers(error) from error
            for draft in message_drafts:
                if draft.id is not None and index_by_id.setdefault(draft.id, index) != index:
                    raise ValidationError.at(f"{pointer}/id", "The id is used twice in the batch")
                if draft.call_names:
                    tool_names |= zip(draft.call_ids, draft.call_names, strict=True)
                    rules = replace(rules, tool_names=tool_names)
            drafts.extend(message_drafts)
            chars_since_yield += size
            if chars_since_yield > _CHARS_BEFORE_YIELD:
                chars_since_yield = 0
                await asyncio.sleep(0)
        return drafts


def has_results(message: Any, format: FormatName) -> bool:
    """Whether a message of a request has tool results."""
    return isinstance(message, Mapping) and bool(PROVIDERS[format].results(message))


def _attached_refs(request: Append) -> tuple[str, ...]:
    """Return the ids of all blobs that the messages of a request refer to."""
    results = PROVIDERS[request.format].results
    objects = (message for message in request.messages if isinstance(message, Mapping))
    containers = [container for message in objects for _, container in results(message)]
    output_refs = (item["output_ref"] for item in containers if item.get("output_ref"))
    refs = (ref.get("id") if isinstance(ref, Mapping) else ref for ref in output_refs)
    return tuple(dict.fromkeys(ref for ref in refs if isinstance(ref, str) and is_sendable(ref)))


def _may_offload(result: Any, chars: int, policy: ToolOutputPolicy) -> bool:
    """Whether a message of this many characters may be offloaded.

    Its JSON is measured only where the number of characters does not decide.
    """
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


def _approximate_chars(value: Any) -> int:
    """Return the approximate number of characters of a message without a walk over all of it."""
    match value:
        case str():
            return len(value)
        case Mapping():
            return sum(map(_approximate_chars, value.values()))
        case list():
            return sum(_approximate_chars(item) for item in value if isinstance(item, Mapping))
    return 0


async def attach_blobs(
    session: Repositories, conversation_id: str, batch: Batch, new: Sequence[Draft]
) -> None:
    """Mark the blobs that new messages refer to; raises ValidationError if one was collected."""
    refs = [draft.attached_blob_id for draft in new if draft.attached_blob_id is not None]
    if not refs:
        return
    blobs = await session.blobs.find_all(conversation_id, refs)
    available = {blob.id for blob in blobs if blob.collected_at is None}
    missing = {*refs} - (available - batch.collected_blob_ids)
    for draft in batch.drafts:
        if draft.attached_blob_id in missing:
            detail = f"Blob {draft.attached_blob_id!r} was collected: upload it again"
            raise ValidationError.at(f"{draft.pointer}/output_ref", detail)
    await session.blobs.attach(conversation_id, refs)
