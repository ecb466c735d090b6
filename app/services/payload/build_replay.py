"""Renders earlier builds again, from what was stored when their epoch began.

1. A build's id has its epoch, its newest message and, if any, the hash of its tail. With the log,
   which never changes, these give the payload byte for byte.
2. Current settings are not used, except the registry's entry of the model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from app.domain.common import json_text
from app.domain.common.errors import NotFound
from app.domain.common.messages import FormatName
from app.domain.common.policy import DynamicPosition
from app.domain.conversations.conversation import Conversation
from app.domain.conversations.epoch import Epoch
from app.domain.conversations.log.row import LogRow
from app.domain.conversations.view import spans_through
from app.domain.payload.assemblers import ASSEMBLERS
from app.domain.payload.epochs import BuildName, Start, build_name, start_from
from app.domain.payload.payload_items import PayloadItems
from app.domain.payload.rendering import Payload, Request, render_payload
from app.domain.prompt.resolved_settings import ResolvedSettings
from app.services.ports import Database, Repositories
from app.services.prompt.settings_resolver import SettingsResolver


class BuildReplayService:
    """Renders the payloads of earlier builds."""

    def __init__(self, database: Database, resolver: SettingsResolver) -> None:
        self._database = database
        self._resolver = resolver

    async def get(self, tenant_id: str, conversation_id: str, build_id: str) -> dict[str, Any]:
        """Return the payload of a build; raises NotFound for an unknown conversation or build."""
        named = build_name(build_id)
        async with self._database.session() as session:
            conversation = await self._found(session, tenant_id, conversation_id)
            epoch = None
            if named is not None:
                epoch = await session.contexts.find_epoch(conversation_id, named.epoch_id)
            if named is None or epoch is None or not _holds(epoch, named, conversation):
                raise _unknown(build_id)
            model = epoch.payload_stream.partition(":")[2]
            conversation = await self._found(session, tenant_id, conversation_id, model)
            start = start_from(epoch.start_json)
            hashes = (epoch.sections_hash, epoch.tools_hash, epoch.policy_hash, start.dynamic)
            texts = await session.contexts.texts(conversation_id, [*hashes, named.tail or ""])
            rows: list[LogRow] = []
            for span in spans_through(start.view.spans, named.through_seq):
                rows += await session.contexts.rows(
                    conversation_id,
                    span.start,
                    span.end,
                    as_chat=epoch.format == FormatName.OPENAI_CHAT,
                    trimmed_through=start.view.trimmed_through,
                    untrimmed=start.view.untrimmed,
                )
        known = set(filter(None, (*hashes, named.tail))) <= texts.keys()
        if not known or (named.tail is not None and not _is_tail(texts[named.tail])):
            raise _unknown(build_id)
        resolved = self._resolver.recorded(conversation, epoch, start, texts)
        payload = await asyncio.to_thread(
            _rendered, conversation_id, epoch, start, resolved, rows, texts, named.tail
        )
        return _body(epoch, named, build_id, payload)

    async def _found(
        self, session: Repositories, tenant_id: str, conversation_id: str, model: str | None = None
    ) -> Conversation:
        found = await session.conversations.find(
            tenant_id, conversation_id, self._resolver.default_model, model
        )
        if found is None:
            raise NotFound.conversation(conversation_id)
        return found


def _holds(epoch: Epoch, named: BuildName, conversation: Conversation) -> bool:
    """Whether the epoch may have a build through that seq."""
    return epoch.start_seq <= named.through_seq <= conversation.state.head_seq


def _unknown(build_id: str) -> NotFound:
    return NotFound(f"No build {build_id!r}", {"build_id": build_id})


def _rendered(
    conversation_id: str,
    epoch: Epoch,
    start: Start,
    resolved: ResolvedSettings,
    rows: Sequence[LogRow],
    texts: Mapping[str, str],
    tail: str | None,
) -> Payload:
    fixed = _texts(texts, start.dynamic)
    opens = resolved.policy.dynamic_position is DynamicPosition.BEFORE_WINDOW
    format = FormatName(epoch.format)
    assembler = ASSEMBLERS[format](
        start.view,
        resolved.count,
        resolved.nameable,
        resolved.tail(fixed if opens else ()),
        resolved.defined(start.tools),
    )
    for row in rows:
        assembler.add(row)
    assembler.finish()
    items: PayloadItems = assembler.items(resolved.tail(_texts(texts, tail)))
    request = Request(format, start.tools, conversation_id, () if opens else fixed)
    return render_payload(request, resolved, items)


def _texts(texts: Mapping[str, str], hash: str | None) -> tuple[str, ...]:
    return tuple(json_text.loads(texts[hash])) if hash else ()


def _is_tail(text: str) -> bool:
    """Whether a stored text is a tail, not sections, tools or a policy."""
    value = json_text.loads(text)
    return isinstance(value, list) and [*map(type, value)] == [str] * len(value) != []


def _body(epoch: Epoch, named: BuildName, build_id: str, payload: Payload) -> dict[str, Any]:
    return {
        "format": epoch.format,
        "payload": payload.body,
        "build_id": build_id,
        "epoch": epoch.epoch,
        "through_seq": named.through_seq,
        "stable_items": payload.stable_items,
        "prefix_hash": payload.prefix_hash,
        "breakpoints": payload.breakpoints,
        "tail": payload.tail,
    }
