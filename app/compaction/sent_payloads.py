"""Finds the newest payload of a conversation, for a summary that reads it from the prompt cache."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from app.common import json_text
from app.common.errors import Gone, NotFound
from app.compaction.planning import CompactionInput
from app.compaction.summaries.payload_prefix import PrefixProblem, SentPayload, shows_part
from app.compaction.summariser import Summariser
from app.conversations.epochs import BuildId, epoch_start_from, model_in
from app.conversations.view import Span, spans_through
from app.formats import PROVIDERS
from app.formats.message import FormatName
from app.models.tokens import CountText, count_json, count_payload_messages
from app.repositories import Database

ReadBuild = Callable[[str, str, str], Awaitable[Mapping[str, Any]]]
"""Returns the payload of a tenant's conversation by a build's id; raises NotFound or Gone."""

_COUNTED_AS_JSON = ("system", "tools")


class SentPayloads:
    """Finds newest payloads.

    The newest build is that of the newest epoch. Its payload is rendered again with the messages
    that came since and without a tail, so everything before these is what the model was sent.
    """

    def __init__(self, database: Database, read_build: ReadBuild) -> None:
        self._database = database
        self._read_build = read_build

    async def find(
        self,
        source: CompactionInput,
        spans: Sequence[Span],
        call_model: str | None,
        summariser: Summariser,
    ) -> SentPayload | PrefixProblem:
        """Return the newest payload, or why it cannot be used to summarise messages in it.

        `call_model` is the model that the caller asks for.
        """
        conversation_id, state = source.conversation.conversation_id, source.state
        async with self._database.session() as session:
            epoch = await session.usage.last_epoch(conversation_id, tuple(FormatName))
        if epoch is None or epoch.view_version != state.view_version:
            return PrefixProblem.NO_BUILD
        format, model = FormatName(epoch.format), model_in(epoch.payload_stream)
        if call_model not in (None, model):
            return PrefixProblem.OTHER_MODEL
        if problem := await summariser.prefix_problem(model, format):
            return problem
        start = epoch_start_from(epoch.start_json)
        if not shows_part(start.view, source.view, spans_through(spans, state.head_seq)):
            return PrefixProblem.NOT_SHOWN
        build_id = str(BuildId(epoch.epoch_id, state.head_seq))
        try:
            build = await self._read_build(source.tenant_id, conversation_id, build_id)
        except (NotFound, Gone):
            return PrefixProblem.NO_BUILD
        body = await asyncio.to_thread(_parsed, build["payload"])
        if build["betas"] or "context_management" in body:
            return PrefixProblem.FORMAT  # the provider would compact the call itself
        tokens = await asyncio.to_thread(_tokens, format, body, source.resolved.count)
        return SentPayload(format, model, body, build_id, int(tokens * start.factor))


def _parsed(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return a rendered payload as plain values, its integers exact."""
    body: dict[str, Any] = json_text.loads_exact(json_text.dump_payload(payload))
    return body


def _tokens(format: FormatName, body: Mapping[str, Any], count: CountText) -> int:
    messages = count_payload_messages(format, body[PROVIDERS[format].items_key], count)
    fields = (body[name] for name in _COUNTED_AS_JSON if name in body)
    return messages + sum(count_json(value, count) for value in fields)
