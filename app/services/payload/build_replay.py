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
from app.domain.conversations.epoch import Epoch
from app.domain.conversations.log.row import LogRow
from app.domain.payload.assemblers import ASSEMBLERS
from app.domain.payload.epochs import BuildId, Start, build_name, model_in, start_from
from app.domain.payload.payload_items import PayloadItems
from app.domain.payload.rendering import Payload, Request, render_payload
from app.domain.prompt.resolved_settings import ResolvedSettings
from app.services.payload.pipeline.rendering import read_rows
from app.services.ports import Database, Repositories
from app.services.prompt.settings_resolver import SettingsResolver


class BuildReplayService:
    """Renders the payloads of earlier builds."""

    def __init__(self, database: Database, resolver: SettingsResolver) -> None:
        self._database = database
        self._resolver = resolver

    async def get(self, tenant_id: str, conversation_id: str, build_id: str) -> dict[str, Any]:
        """Return the payload of a build; raises NotFound for an unknown conversation or build."""
        find_conversation = self._resolver.find_conversation
        unknown = NotFound(f"No build {build_id!r}", {"build_id": build_id})
        async with self._database.session() as session:
            conversation = await find_conversation(session, tenant_id, conversation_id)
            build = await find_build(session, conversation_id, build_id)
            if build is None:
                raise unknown
            name, epoch = build
            if not epoch.start_seq <= name.through_seq <= conversation.state.head_seq:
                raise unknown
            model = model_in(epoch.payload_stream)
            conversation = await find_conversation(session, tenant_id, conversation_id, model)
            start = start_from(epoch.start_json)
            hashes = (epoch.sections_hash, epoch.tools_hash, epoch.policy_hash, start.dynamic)
            texts = await session.contexts.texts(conversation_id, [*hashes, name.tail or ""])
            rows = await read_rows(
                session, conversation_id, FormatName(epoch.format), start.view, name.through_seq
            )
        is_stored = set(filter(None, (*hashes, name.tail))) <= texts.keys()
        if not is_stored or (name.tail is not None and not _is_tail(texts[name.tail])):
            raise unknown
        resolved = self._resolver.recorded(conversation, epoch, start, texts)
        payload = await asyncio.to_thread(
            _rendered, conversation_id, epoch, start, resolved, rows, texts, name.tail
        )
        return {
            "format": epoch.format,
            "payload": payload.body,
            "build_id": build_id,
            "epoch": epoch.epoch,
            "through_seq": name.through_seq,
            "stable_items": payload.stable_items,
            "prefix_hash": payload.prefix_hash,
            "breakpoints": payload.breakpoints,
            "tail": payload.tail,
        }


async def find_build(
    session: Repositories, conversation_id: str, build_id: str
) -> tuple[BuildId, Epoch] | None:
    """Return the parts of a build's id and its epoch, None for an id of no build."""
    name = build_name(build_id)
    epoch = None
    if name is not None:
        epoch = await session.contexts.find_epoch(conversation_id, name.epoch_id)
    return (name, epoch) if name is not None and epoch is not None else None


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
        resolved.mentionable_agent_tools,
        resolved.tail(fixed if opens else ()),
        resolved.defined_tool_names(start.tools),
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
