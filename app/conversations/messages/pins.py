"""Pins: messages that stay in the context verbatim.

A pin protects a message from compaction and from tool result clearing. It does not keep a message
in the active window: an older message, or one before a clear, is not shown. The pin of a restored
message has effect again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.common import json_text
from app.common.errors import NotFound, ValidationError
from app.conversations.conversation import Conversation
from app.conversations.events.events import EventType
from app.conversations.lookup import lock_conversation
from app.conversations.messages.pins_repository import SHOW_PINNED
from app.conversations.settings_resolver import SettingsResolver
from app.conversations.turns import Entry
from app.conversations.views import base_view, kept_with_pins
from app.conversations.windows.service import ActiveWindows
from app.repositories import Database, Repositories

MAX_PINNED_SHARE = 0.5
"""The share of the history budget that pins may take."""


@dataclass(eq=False, repr=False)
class PinService:
    """Pins and unpins messages, with their call groups or whole turns."""

    _database: Database
    _resolver: SettingsResolver
    _active: ActiveWindows

    async def pin(
        self,
        tenant_id: str,
        conversation_id: str,
        message_id: str,
        *,
        whole_turn: bool,
        pinned: bool = True,
    ) -> list[int]:
        """Pin or unpin a message with its call group or turn, and return their seqs.

        Pinned messages that a compaction hid or cleared are shown again; an unpinned one stays
        until the next compaction. Raises NotFound, or ValidationError when pins would take more
        than half of the history budget.
        """
        async with self._database.transaction() as session:
            conversation = await lock_conversation(
                session, tenant_id, conversation_id, self._resolver.default_model
            )
            messages = await session.log.by_ids(conversation_id, [message_id])
            if not messages:
                raise NotFound.message(message_id)
            conversation = await self._active.update_locked(session, conversation)
            around = await session.contexts.around(
                conversation_id, messages[0].seq, whole_turn=whole_turn
            )
            seqs = [entry.seq for entry in around]
            kind = EventType.PINNED if pinned else EventType.UNPINNED
            if pinned:
                await session.contexts.pin(conversation_id, seqs)
                await self._check_share(session, conversation)
                await self._show(session, conversation, around)
            elif not await session.contexts.unpin(conversation_id, seqs):
                return seqs
            await session.events.add(conversation_id, kind, json_text.dumps({"seqs": seqs}))
        return seqs

    async def _show(
        self, session: Repositories, conversation: Conversation, around: Sequence[Entry]
    ) -> None:
        """Show the pinned messages that the active compaction hides or clears."""
        state, conversation_id = conversation.state, conversation.conversation_id
        receipt = await session.contexts.find_compaction(conversation_id, state.compaction_id)
        if receipt is not None:
            view = base_view(state, receipt.view, self._resolver.policy_of(conversation))
            kept, tokens, messages = kept_with_pins(view, state.kept_seqs, around)
            if kept != state.kept_seqs:
                await session.session.run(
                    SHOW_PINNED,
                    conversation_id=conversation_id,
                    kept=kept,
                    tokens=tokens,
                    messages=messages,
                )

    async def _check_share(self, session: Repositories, conversation: Conversation) -> None:
        """Raise ValidationError when pins take more than their share of the history budget."""
        resolved = await self._resolver.of(conversation)
        limits = resolved.policy_limits
        if limits is None:
            return
        window = conversation.state.window
        pinned = await session.contexts.pinned(conversation.conversation_id)
        pinned_tokens = sum(entry.tokens for entry in pinned if window.holds(entry.seq))
        tokens = resolved.usage(pinned_tokens, 0).conversation
        max_tokens = int((limits.capacity - resolved.usage(0, 0).fixed) * MAX_PINNED_SHARE)
        if tokens > max_tokens:
            raise ValidationError(
                f"Pinned messages would take {tokens} tokens. The limit is {max_tokens}:"
                " half of the tokens that the context window leaves for history",
                {"pinned_tokens": tokens, "limit": max_tokens},
            )
