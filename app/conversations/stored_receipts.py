"""Stores compactions: a receipt, the view that it leaves, and the event that announces it.

1. An appended compaction item of a provider hides what it stands for. Its receipt is stored in the
   transaction of the append. No model is called for it: a payload that cannot send the item has the
   summary made when it is built.
2. The item is a fact of the log. It counts whatever the policy's strategy is, and whether or not
   the policy compacts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from app.common.errors import ContextError
from app.conversations.conversation import BreakReason, Conversation
from app.conversations.epoch import PROVIDER_COMPACTED, model_in
from app.conversations.events import EventType
from app.conversations.messages.draft import Draft
from app.conversations.moving_window import ActiveWindows, view_state_of
from app.conversations.pressure import stored_tokens_of
from app.conversations.receipt import CompactResult, Receipt, Trigger, ViewState, result_of
from app.conversations.settings_resolver import SettingsResolver
from app.conversations.view import Span, spans_through
from app.conversations.view_changes import (
    base_view,
    protected_in,
    provider_item,
    view_from_item,
    with_view,
)
from app.formats import PROVIDERS
from app.formats.message import FormatName, Role
from app.formats.reasoning import OPENAI, readable_summary
from app.repositories import Repositories


async def store_receipt(
    session: Repositories, conversation_id: str, receipt: Receipt, cause: BreakReason, **after: int
) -> bool:
    """Store a receipt and show its view; return False if the view was changed meanwhile.

    `after` are the `view_version` that it replaces, and the `resume_at_tokens`. Call it in a
    transaction that holds the lock of the conversation's state, and `announce` it there.
    """
    await session.contexts.add_receipt(conversation_id, receipt)
    visible = ViewState(
        receipt.view,
        receipt.compaction_id,
        receipt.summary_tokens,
        receipt.hidden_tokens,
        receipt.hidden_messages,
        protected_in(receipt.view),
    )
    return await session.contexts.show(conversation_id, visible, cause=cause, **after)


async def announce(session: Repositories, conversation_id: str, receipt: Receipt) -> CompactResult:
    """Store the event of a compaction, and return its result."""
    result = result_of(receipt)
    data = {**asdict(result), "trigger": receipt.trigger}
    await session.events.add(conversation_id, EventType.COMPACTED, **data)
    return result


async def store_view(
    session: Repositories,
    resolver: SettingsResolver,
    before: Conversation,
    after: Conversation,
    receipt: Receipt,
    cause: BreakReason,
) -> tuple[Conversation, Receipt]:
    """Store a receipt that needs no plan; return the conversation that shows its view, and it.

    `after` is the conversation with the active window and the kept seqs of that view. The receipt's
    `before_messages` are already counted. Call it as `store_receipt`.
    """
    visible = await view_state_of(session, resolver, after, receipt)
    after = replace(after, state=with_view(after.state, visible, cause))
    receipt = replace(
        receipt,
        view=visible.view,
        summary_tokens=visible.summary_tokens,
        hidden_tokens=visible.hidden_tokens,
        hidden_messages=visible.hidden_messages,
        before_tokens=await _payload_tokens(resolver, before),
        after_tokens=await _payload_tokens(resolver, after),
        after_messages=after.state.shown_messages + len(visible.view.summary_texts()),
    )
    is_stored = await store_receipt(
        session,
        before.conversation_id,
        receipt,
        cause,
        view_version=before.state.view_version,
        resume_at_tokens=after.state.resume_at_tokens,
    )
    assert is_stored, "the conversation is locked, and the view shows every pin"
    return after, receipt


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
        policy = self._resolver.policy_of(conversation)
        count = self._resolver.counter(conversation.counter)
        active = await session.contexts.find_receipt(conversation_id, state.compaction_id)
        is_shown = active is not None and active.is_shown_with(policy.strategy)
        before = base_view(state, active.view if active is not None and is_shown else None, policy)
        epoch = await session.usage.last_epoch(conversation_id, (format,))
        model = model_in(epoch.payload_stream) if epoch is not None else conversation.model
        model = model or self._resolver.default_model or ""
        kept_seqs = {item.seq for item in await session.log.pinned(conversation_id)}
        provider = PROVIDERS[format]
        is_openai = provider.accepted_families(model)[:1] in ((), (OPENAI,))
        if not draft.tokens and provider.keeps_user_messages and is_openai:
            # OpenAI's endpoint for compactions returns the user's messages beside the item.
            for span in spans_through(before.spans, seq - 1):
                entries = await session.log.entries(conversation_id, span.start, span.end)
                kept_seqs |= {item.seq for item in entries if item.role is Role.USER}
        item = provider_item(part, seq, format, model, count)
        view = view_from_item(before, item, kept_seqs, readable_summary(part), count)
        receipt = Receipt(
            compaction_id=self._new_id(),
            parent_id=state.compaction_id,
            trigger=Trigger.PROVIDER,
            strategy=Trigger.PROVIDER,
            policy_strategy=Trigger.PROVIDER,
            stages=(Trigger.PROVIDER,),
            hidden_span=view.hidden or Span(seq, seq),
            view=view,
            made=() if view.summaries == before.summaries else view.summaries,
            model=model or None,
            before_messages=state.shown_messages + len(before.summary_texts()),
        )
        state = replace(
            state,
            protected_seqs=view.kept_seqs,
            resume_at_tokens=0,
            is_due=False,
            became_due=False,
            failures=0,
        )
        shown = replace(conversation, state=state)
        shown, receipt = await store_view(
            session, self._resolver, conversation, shown, receipt, PROVIDER_COMPACTED
        )
        await announce(session, conversation_id, receipt)
        return shown


async def _payload_tokens(resolver: SettingsResolver, conversation: Conversation) -> int:
    """Return the tokens of the next payload; of its messages, if the settings do not work."""
    shown = conversation.state.shown_tokens
    try:
        resolved = await resolver.of(conversation)
    except ContextError:
        return shown + conversation.state.summary_tokens
    return stored_tokens_of(resolved, conversation, shown).total
