"""Compactions of providers: an appended compaction item hides what it stands for.

1. The receipt is stored in the transaction of the append. No model is called for it: a payload
   that cannot send the item has the summary made when it is built.
2. The item is a fact of the log. It counts whatever the policy's strategy is, and whether or not
   the policy compacts.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from app.common.errors import ContextError
from app.conversations.compaction_receipt import Compaction, Trigger
from app.conversations.compactions import store_compaction
from app.conversations.conversation import Conversation, ConversationState
from app.conversations.epochs import PROVIDER_COMPACTED, model_in
from app.conversations.messages.draft import Draft
from app.conversations.provider_items import leaves_user_messages, provider_item
from app.conversations.settings_resolver import SettingsResolver
from app.conversations.view import Span, View, spans_through
from app.conversations.views import agent_tools_tokens, base_view, view_behind_item, with_view
from app.conversations.windows.service import ActiveWindows, view_state_of
from app.formats.message import FormatName, Role
from app.formats.provider_items import readable_summary
from app.policy.policy import Policy
from app.prompt.resolved_settings import ResolvedSettings
from app.repositories import Repositories


@dataclass(eq=False, repr=False)
class ProviderCompactions:
    """Applies the compaction items of appended messages."""

    _resolver: SettingsResolver
    _active: ActiveWindows
    _new_id: Callable[[], str]

    async def apply(
        self,
        session: Repositories,
        conversation: Conversation,
        draft: Draft,
        seq: int,
        format: FormatName,
    ) -> Conversation:
        """Show the item of the message at a seq, and return the conversation after that.

        Call it in the transaction that stored the message.
        """
        part = draft.compaction
        assert part is not None
        conversation = await self._active.update_locked(session, conversation)
        conversation_id, state = conversation.conversation_id, conversation.state
        resolved = None
        with suppress(ContextError):  # the settings no longer work together
            resolved = await self._resolver.of(conversation)
        policy = resolved.policy if resolved is not None else Policy()
        count = self._resolver.counter(conversation.counter)
        active = await session.contexts.find_compaction(conversation_id, state.compaction_id)
        is_shown = active is not None and active.is_shown_with(policy.strategy)
        before = base_view(state, active.view if active is not None and is_shown else None, policy)
        epoch = await session.usage.last_epoch(conversation_id, (format,))
        model = model_in(epoch.payload_stream) if epoch is not None else conversation.model
        model = model or self._resolver.default_model or ""
        kept_seqs = {item.seq for item in await session.contexts.pinned(conversation_id)}
        if not draft.tokens and leaves_user_messages(format, model):
            kept_seqs |= await _user_seqs(session, conversation_id, before, seq)
        item = provider_item(part, seq, format, model, count)
        view = view_behind_item(before, item, kept_seqs, readable_summary(part), count)
        receipt = _receipt(self._new_id(), state, item.model, before, view)
        shown = replace(conversation, state=replace(state, kept_seqs=view.unhidden_seqs))
        visible = await view_state_of(session, self._resolver, shown, receipt)
        after = replace(
            with_view(state, visible, PROVIDER_COMPACTED),
            resume_at_tokens=0,
            is_due=False,
            became_due=False,
            failures=0,
        )
        receipt = replace(
            receipt,
            summary_tokens=visible.summary_tokens,
            hidden_tokens=visible.hidden_tokens,
            hidden_messages=visible.hidden_messages,
            before_tokens=_tokens(resolved, state),
            after_tokens=_tokens(resolved, after),
            after_msg_count=after.shown_messages,
        )
        version = state.view_version
        stored = await store_compaction(
            session, conversation_id, receipt, visible, PROVIDER_COMPACTED, view_version=version
        )
        assert stored is not None, "the conversation is locked, and the view shows every pin"
        return replace(conversation, state=after)


async def _user_seqs(session: Repositories, conversation_id: str, view: View, end: int) -> set[int]:
    """Return the seqs of the user's messages that a view shows before a seq."""
    seqs: set[int] = set()
    for span in spans_through(view.spans, end - 1):
        entries = await session.log.entries(conversation_id, span.start, span.end)
        seqs |= {item.seq for item in entries if item.role is Role.USER}
    return seqs


def _receipt(
    compaction_id: str, state: ConversationState, model: str, before: View, view: View
) -> Compaction:
    item = view.provider_item
    assert item is not None
    readable = () if view.summaries == before.summaries else view.summaries
    return Compaction(
        compaction_id=compaction_id,
        parent_id=state.compaction_id,
        trigger=Trigger.PROVIDER,
        strategy=Trigger.PROVIDER,
        policy_strategy=Trigger.PROVIDER,
        strategies_run=(Trigger.PROVIDER,),
        hidden_span=view.hidden or Span(item.seq, item.seq),
        view=view,
        made=readable,
        before_msg_count=state.shown_messages + len(before.summary_texts()),
        model=model or None,
    )


def _tokens(resolved: ResolvedSettings | None, state: ConversationState) -> int:
    """Return the tokens of a payload of this state, without settings those of its messages."""
    if resolved is None:
        return state.shown_tokens + state.summary_tokens
    tools = agent_tools_tokens(resolved, state, hides_messages=state.compaction_id is not None)
    return resolved.usage(state.shown_tokens, state.summary_tokens, tools).total
