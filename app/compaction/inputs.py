"""Reads the inputs of compactions from the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from app.blobs.stored_output import message_ref
from app.common.concurrency import THREAD_BYTES, in_thread_if
from app.common.errors import NotFound
from app.compaction.planning import CompactionInput
from app.compaction.reduction import excluded_seqs, with_excluded
from app.compaction.summary_budget import summary_reserve
from app.conversations.conversation import Conversation
from app.conversations.messages.row import LogRow
from app.conversations.settings_resolver import SettingsResolver
from app.conversations.text_shortening import READER_TOOLS, limits_of_oversized, shortened_to
from app.conversations.turns import OPEN_CALLS_SHARE, Entry, open_call_seqs, with_pins
from app.conversations.view import ShortenedMessage, Span, View, spans_through
from app.conversations.views import (
    base_view,
    view_summary_tokens,
    with_shortened,
    without_compaction,
)
from app.conversations.windows.service import ActiveWindows
from app.policy.policy import Policy, StrategyName
from app.prompt.resolved_settings import RequestSettings, ResolvedSettings
from app.repositories import Database, Repositories


class CompactionInputs:
    """Reads the input of a compaction from the database."""

    def __init__(
        self, database: Database, resolver: SettingsResolver, active: ActiveWindows
    ) -> None:
        self._database = database
        self.resolver = resolver
        self._active = active

    async def find(
        self, tenant_id: str, conversation_id: str, model: str | None = None
    ) -> Conversation:
        """Return a conversation; raises NotFound."""
        async with self._database.session() as session:
            conversation = await session.conversations.find(
                tenant_id, conversation_id, self.resolver.default_model, model
            )
        if conversation is None:
            raise NotFound.conversation(conversation_id)
        return conversation

    async def read(
        self,
        tenant_id: str,
        conversation_id: str,
        settings: RequestSettings | None = None,
        spans: tuple[Span, ...] | None = None,
    ) -> CompactionInput:
        """Return the input of a compaction, with the shown messages or those in `spans`.

        `settings` are those of a build. A summary of another strategy than the policy's is no
        longer shown: the compaction starts from the log. [strategy.change-drops-summary]
        """
        model = settings.model if settings else None
        conversation = await self.find(tenant_id, conversation_id, model)
        if conversation.is_outdated(self._active.now()):
            await self._active.updated(tenant_id, conversation)
            conversation = await self.find(tenant_id, conversation_id, model)
        async with self._database.session() as session:
            resolved = await self.resolver.of(conversation, settings)
            state = conversation.state
            active = await session.contexts.find_compaction(conversation_id, state.compaction_id)
            if active is not None and not active.is_shown_with(resolved.policy.strategy):
                await session.contexts.hide_compaction(conversation_id, state.view_version)
                conversation = replace(conversation, state=without_compaction(state))
                state, active = conversation.state, None
            view = base_view(state, active.view if active else None, resolved.policy)
            shown = spans_through(spans or view.spans, state.head_seq)
            entries = await _entries(session, conversation_id, shown, view, resolved.policy)
        limits = resolved.policy_limits or resolved.limits
        max_tokens = limits.capacity // OPEN_CALLS_SHARE if limits is not None else 0
        staying = open_call_seqs(entries, state.calls.open.values(), max_tokens)
        entries = with_pins(entries, staying) if staying else entries
        return await self._with_shortened(
            CompactionInput(tenant_id, conversation, resolved, view, tuple(entries), active)
        )

    async def _with_shortened(self, source: CompactionInput) -> CompactionInput:
        """Return the input with oversized messages shortened, as in every build."""
        resolved, view = source.resolved, source.view
        limits = resolved.policy_limits or resolved.limits
        if limits is None or not resolved.policy.messages.offload_oversized:
            return source
        if source.tokens_in(view) <= limits.capacity:
            return source
        summary = view_summary_tokens(view, resolved.count)
        reserve = max(summary_reserve(StrategyName.SANDWICH, limits), summary)
        available = int(limits.capacity / resolved.factor)  # before the factor of the model
        other_tokens = resolved.raw_fixed.fixed + reserve + reader_tool_tokens(resolved)
        max_tokens = limits_of_oversized(source.shown, available - other_tokens)
        if not max_tokens:
            return source
        shortened = await shortened_messages(
            self._database,
            source.conversation.conversation_id,
            max_tokens,
            resolved,
            as_chat=True,
        )
        return replace(source, view=with_shortened(view, shortened))


async def _entries(
    session: Repositories, conversation_id: str, spans: Sequence[Span], view: View, policy: Policy
) -> list[Entry]:
    """Return the entries in these spans of a view, the results of excluded tools marked."""
    entries: list[Entry] = []
    names: dict[int, str] = {}
    tools = policy.tool_output.exclude_tools
    for span in spans:
        entries += await session.log.entries(conversation_id, span.start, span.end)
        if tools:
            names.update(await session.log.tool_names(conversation_id, span.start, span.end))
    return with_excluded(entries, excluded_seqs(entries, view, names, tools))


async def shortened_messages(
    database: Database,
    conversation_id: str,
    max_tokens: Mapping[int, int],
    resolved: ResolvedSettings,
    *,
    as_chat: bool,
) -> list[ShortenedMessage]:
    """Return messages shortened to their maximum of tokens, which `max_tokens` has by seq.

    A message that is large for another reason than its texts is left out. `as_chat` reads the
    messages as a build in the format openai_chat does.
    """
    spans = [Span(seq, seq + 1) for seq in max_tokens]
    async with database.session() as session:
        rows = await session.contexts.rows(conversation_id, spans, as_chat=as_chat)
    is_long = sum(len(row.text) for row in rows) > THREAD_BYTES
    return await in_thread_if(is_long, _shortened, rows, max_tokens, resolved)


def _shortened(
    rows: Sequence[LogRow], max_tokens: Mapping[int, int], resolved: ResolvedSettings
) -> list[ShortenedMessage]:
    max_bytes = resolved.policy.tool_output.max_message_bytes
    shortened = (
        shortened_to(
            row.message(),
            row.seq,
            message_ref(row.id, row.seq),
            max_tokens[row.seq],
            max_bytes,
            resolved.count,
        )
        for row in rows
    )
    return [message for message in shortened if message is not None]


def reader_tool_tokens(resolved: ResolvedSettings, included: Sequence[str] = ()) -> int:
    """Return the tokens of the tools that read a cut message, without those in `included`."""
    missing = (name for name in resolved.agent_tools(READER_TOOLS) if name not in included)
    return resolved.agent_tool_tokens(tuple(missing))
