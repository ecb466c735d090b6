"""Renders earlier builds again, from what was stored when their epoch began.

1. A build's id names its epoch, its newest message and, if any, the hash of its tail. With the
   log, which never changes, these give the payload byte for byte.
2. Current settings are not used, except the registry's entry of the model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from app.common import json_text
from app.common.errors import Gone, NotFound
from app.context.history import read_rows
from app.context.rendering import Payload, RenderRequest, render_payload
from app.conversations.epochs import (
    BuildId,
    Epoch,
    EpochStart,
    epoch_start_from,
    model_in,
    parse_build_id,
)
from app.conversations.messages.row import LogRow
from app.conversations.settings_resolver import SettingsResolver
from app.formats.message import FormatName
from app.payload import assembler_of
from app.payload.assembler import PayloadItems
from app.policy.policy import DynamicPosition
from app.prompt.resolved_settings import ResolvedSettings
from app.repositories import Database, Repositories


class BuildReplayService:
    """Renders the payloads of earlier builds."""

    def __init__(self, database: Database, resolver: SettingsResolver) -> None:
        self._database = database
        self._resolver = resolver

    async def get(self, tenant_id: str, conversation_id: str, build_id: str) -> dict[str, Any]:
        """Return the payload of a build; raises NotFound for an unknown conversation or build.

        Raises Gone where a message was redacted since its epoch began.
        """
        find_conversation = self._resolver.find_conversation
        unknown = NotFound(f"No build {build_id!r}", {"build_id": build_id})
        async with self._database.session() as session:
            build = await find_build(session, conversation_id, build_id)
            model = model_in(build[1].payload_stream) if build is not None else None
            conversation = await find_conversation(session, tenant_id, conversation_id, model)
            if build is None:
                raise unknown
            parsed_id, epoch = build
            through_seq, tail_hash = parsed_id.through_seq, parsed_id.tail_hash
            if epoch.view_version < conversation.state.redacted_version:
                message = "A message of this conversation was redacted after that build"
                raise Gone(message, {"build_id": build_id})
            if not epoch.start_seq <= through_seq <= conversation.state.head_seq:
                raise unknown
            start = epoch_start_from(epoch.start_json)
            hashes = (epoch.sections_hash, epoch.tools_hash, epoch.policy_hash, start.dynamic_hash)
            texts = await session.contexts.texts(conversation_id, [*hashes, tail_hash or ""])
            rows = await read_rows(
                session, conversation_id, FormatName(epoch.format), start.view, through_seq
            )
        is_stored = set(filter(None, (*hashes, tail_hash))) <= texts.keys()
        if not is_stored or (tail_hash is not None and not _is_tail(texts[tail_hash])):
            raise unknown
        resolved = self._resolver.recorded(conversation, epoch, start, texts)
        payload, item_seqs = await asyncio.to_thread(
            _render, conversation_id, epoch, start, resolved, rows, texts, tail_hash
        )
        return {
            "format": epoch.format,
            **payload.as_answer(),
            "build_id": build_id,
            "epoch": epoch.epoch,
            "through_seq": through_seq,
            "item_seqs": item_seqs,
        }


async def find_build(
    session: Repositories, conversation_id: str, build_id: str
) -> tuple[BuildId, Epoch] | None:
    """Return a build's parsed id and its epoch, None for an id of no build."""
    parsed_id = parse_build_id(build_id)
    if parsed_id is None:
        return None
    epoch = await session.contexts.find_epoch(conversation_id, parsed_id.epoch_id)
    return (parsed_id, epoch) if epoch is not None else None


def _render(
    conversation_id: str,
    epoch: Epoch,
    start: EpochStart,
    resolved: ResolvedSettings,
    rows: Sequence[LogRow],
    texts: Mapping[str, str],
    tail_hash: str | None,
) -> tuple[Payload, list[int | None]]:
    """Return the payload, and the newest message of each of its items."""
    texts_before_history = _texts(texts, start.dynamic_hash)
    in_opening = resolved.policy.dynamic_position is DynamicPosition.BEFORE_WINDOW
    format = FormatName(epoch.format)
    assembler = assembler_of(format)(
        start.view,
        resolved.count,
        resolved.named_agent_tools(start.tools.agent_tools),
        resolved.dynamic_texts_of(texts_before_history if in_opening else ()),
        resolved.defined_tool_names(start.tools),
    )
    assembler.expect(rows)
    for row in rows:
        assembler.add(row)
    assembler.finish()
    items: PayloadItems = assembler.items(resolved.dynamic_texts_of(_texts(texts, tail_hash)))
    request = RenderRequest(
        format,
        start.tools,
        conversation_id,
        () if in_opening else texts_before_history,
        view=start.view,
    )
    payload = render_payload(request, resolved, items)
    seqs = [assembler.seq_of(index) for index in range(len(items.wire_items))]
    return payload, [None] * (payload.stable_items - items.stable_items) + seqs


def _texts(texts: Mapping[str, str], hash: str | None) -> tuple[str, ...]:
    return tuple(json_text.loads(texts[hash])) if hash else ()


def _is_tail(text: str) -> bool:
    """Whether a stored text is a tail, not sections, tools or a policy."""
    value = json_text.loads(text)
    return isinstance(value, list) and [*map(type, value)] == [str] * len(value) != []
