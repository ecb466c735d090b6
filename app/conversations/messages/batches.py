"""Batches of messages: checked, offloaded and counted before they are stored."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from app.blobs.chunks import Blob, Chunk
from app.blobs.offloading import OffloadRules
from app.blobs.preview import Preview, bounded_by_window, should_offload
from app.common.concurrency import in_thread_if
from app.common.errors import ContextError, ServiceUnavailable, ValidationError
from app.common.texts import is_sendable
from app.conversations.conversation import Conversation
from app.conversations.due import NO_THRESHOLD, CompactionThreshold, compaction_threshold
from app.conversations.messages.draft import Draft, make_drafts
from app.conversations.messages.row import RawBatch
from app.conversations.messages.stored_results import StoredResults
from app.conversations.settings_resolver import SettingsResolver
from app.formats import PROVIDERS, with_request_pointers
from app.models.tokens import CountText
from app.policy.policy import ToolOutputPolicy
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
class Batch:
    """A batch that is ready to be stored, with its blobs.

    A compaction becomes due at the `threshold`. `collected_blob_ids` are stored blobs that its
    messages refer to, and that were collected before the batch was prepared: no new message may
    refer to them.
    """

    request: RawBatch
    threshold: CompactionThreshold
    drafts: list[Draft]
    blobs: Sequence[tuple[Blob, list[Chunk]]] = ()
    collected_blob_ids: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = ()


@dataclass(eq=False, repr=False)
class Batches:
    """Prepares batches."""

    _database: Database
    _resolver: SettingsResolver
    _outputs: StoredResults

    async def prepare(self, tenant_id: str, conversation: Conversation, request: RawBatch) -> Batch:
        """Check, offload and count the messages; without the blob store results stay inline."""
        key, policy, threshold = conversation.conversation_id, ToolOutputPolicy(), NO_THRESHOLD
        with suppress(ContextError):  # the settings no longer work together, which a build tells
            resolved = await self._resolver.of(conversation)
            policy = bounded_by_window(resolved.policy.tool_output, resolved.policy_limits)
            threshold = compaction_threshold(resolved)
        count = self._resolver.counter(conversation.counter)
        attached: Mapping[str, tuple[Blob, Preview]] = {}
        if refs := _attached_refs(request):
            attached = await self._outputs.attached_blobs(key, refs, policy)
        rules = OffloadRules(policy, {}, attached)
        warnings: tuple[str, ...] = ()
        drafts = await self._drafts(key, request, count, rules)
        blobs: list[tuple[Blob, list[Chunk]]] = []
        try:
            if any(draft.blobs for draft in drafts):
                blobs = await self._outputs.store_blobs(tenant_id, key, drafts)
        except ServiceUnavailable:
            _log.warning("blob_store_unavailable")
            rules = replace(rules, policy=policy.model_copy(update={"enabled": False}))
            drafts, warnings = await self._drafts(key, request, count, rules), (INLINE_WARNING,)
        collected = (ref for ref, (blob, _) in attached.items() if blob.collected_at is not None)
        return Batch(request, threshold, drafts, blobs, frozenset(collected), warnings)

    async def _drafts(
        self, conversation_id: str, request: RawBatch, count: CountText, rules: OffloadRules
    ) -> list[Draft]:
        """Check and count the messages without blocking the event loop.

        Items of one model turn are one message. Which tools earlier messages called is read for
        the first result that is offloaded.
        """
        provider = PROVIDERS[request.format]
        drafts: list[Draft] = []
        index_by_id: dict[str, int] = {}
        knows_tools, chars_since_yield = False, 0
        for index, message in provider.group_items(request.messages):
            size, new = _approximate_chars(message), None
            is_result = isinstance(message, Mapping) and bool(provider.results(message))
            if knows_tools or not (is_result and should_offload(size, rules.policy)):
                new = await _made(request, index, message, size, count, rules)
            if not knows_tools and (new is None or any(draft.blobs for draft in new)):
                knows_tools = True
                async with self._database.session() as session:
                    names = await session.log.open_calls(conversation_id)
                rules = replace(rules, tool_names={**names, **rules.tool_names})
                new = await _made(request, index, message, size, count, rules)
            for draft in new or ():
                if draft.id is not None and index_by_id.setdefault(draft.id, index) != index:
                    detail = "The id is used twice in the batch"
                    raise ValidationError.at(f"/messages/{index}/id", detail)
                if draft.call_names:
                    called = dict(zip(draft.call_ids, draft.call_names, strict=True))
                    rules = replace(rules, tool_names={**rules.tool_names, **called})
                drafts.append(draft)
            chars_since_yield += size
            if chars_since_yield > _CHARS_BEFORE_YIELD:
                chars_since_yield = 0
                await asyncio.sleep(0)
        return drafts


async def _made(
    request: RawBatch, index: int, message: Any, size: int, count: CountText, rules: OffloadRules
) -> list[Draft]:
    """Return the drafts of a message; a thread makes those of a large one.

    For small ones, switching threads would take longer than counting.
    """
    arguments = (message, request.format, count, f"/messages/{index}", rules)
    try:
        return await in_thread_if(size > _THREAD_CHARS, make_drafts, *arguments)
    except ValidationError as error:
        if message is request.messages[index]:
            raise
        raise with_request_pointers(error) from error


def _attached_refs(request: RawBatch) -> tuple[str, ...]:
    """Return the ids of all blobs that the messages of a request refer to."""
    results = PROVIDERS[request.format].results
    objects = (message for message in request.messages if isinstance(message, Mapping))
    refs = [result.get("output_ref") for message in objects for _, result in results(message)]
    ids = (ref.get("id") if isinstance(ref, Mapping) else ref for ref in refs)
    return tuple(dict.fromkeys(id for id in ids if id and isinstance(id, str) and is_sendable(id)))


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
