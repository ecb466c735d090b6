"""Pins: messages that stay in the context verbatim.

A pin protects a message from compaction and from tool result clearing. It does not keep a message
in the active window: an older message, or one before a clear, is not shown. The pin of a restored
message has effect again.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.common import json_text
from app.common.errors import NotFound, ValidationError
from app.conversations.conversation import Conversation
from app.conversations.events.events import EventType
from app.conversations.lookup import lock_conversation
from app.conversations.settings_resolver import SettingsResolver
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
        self, tenant_id: str, conversation_id: str, message_id: str, *, whole_turn: bool
    ) -> list[int]:
        """Pin a message with its call group or turn, and return their seqs.

        Messages that a compaction hid or cleared are shown again. Raises NotFound, or
        ValidationError when pins would take more than half of the history budget.
        """
        async with self._database.transaction() as session:
            conversation, seq = await self._lock_message(
                session, tenant_id, conversation_id, message_id
            )
            around = await session.contexts.around(conversation_id, seq, whole_turn=whole_turn)
            seqs = [entry.seq for entry in around]
            await session.contexts.pin(conversation_id, seqs)
            await self._check_share(session, conversation)
            receipt = None
            if conversation.state.compaction_id is not None:
                receipt = await session.contexts.find_compaction(
                    conversation_id, conversation.state.compaction_id
                )
            if receipt is not None:
                view = base_view(
                    conversation.state, receipt.view, self._resolver.policy_of(conversation)
                )
                kept, tokens, messages = kept_with_pins(view, conversation.state.kept_seqs, around)
                if kept != conversation.state.kept_seqs:
                    await session.contexts.show_pinned(conversation_id, kept, tokens, messages)
            event = json_text.dumps({"seqs": seqs})
            await session.events.add(conversation_id, EventType.PINNED, event)
        return seqs

    async def unpin(
        self, tenant_id: str, conversation_id: str, message_id: str, *, whole_turn: bool
    ) -> list[int]:
        """Unpin a message with its call group or turn, and return their seqs.

        The view changes with the next compaction. Raises NotFound.
        """
        async with self._database.transaction() as session:
            _, seq = await self._lock_message(session, tenant_id, conversation_id, message_id)
            around = await session.contexts.around(conversation_id, seq, whole_turn=whole_turn)
            seqs = [entry.seq for entry in around]
            if await session.contexts.unpin(conversation_id, seqs):
                event = json_text.dumps({"seqs": seqs})
                await session.events.add(conversation_id, EventType.UNPINNED, event)
        return seqs

    async def _lock_message(
        self, session: Repositories, tenant_id: str, conversation_id: str, message_id: str
    ) -> tuple[Conversation, int]:
        """Lock the conversation's state; return the conversation and the seq of the message."""
        conversation = await lock_conversation(
            session, tenant_id, conversation_id, self._resolver.default_model
        )
        messages = await session.log.by_ids(conversation_id, [message_id])
        if not messages:
            raise NotFound.message(message_id)
        return await self._active.update_locked(session, conversation), messages[0].seq

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
