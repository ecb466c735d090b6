"""Receipts of compactions: read, expanded to the original messages, undone. [compaction.undo]"""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.common import json_text
from app.common.errors import Conflict, NotFound
from app.common.pages import UNBOUNDED, Bound, Page
from app.compaction.schemas import Receipt
from app.conversations.compaction_receipt import (
    PROVIDER_ITEM_SUMMARY,
    Compaction,
    ContextState,
    Failure,
)
from app.conversations.conversation import Conversation
from app.conversations.events import EventType
from app.conversations.lookup import lock_conversation
from app.conversations.messages.row import StoredMessage
from app.conversations.settings_resolver import SettingsResolver
from app.conversations.thresholds import resume_at_tokens
from app.conversations.view import overlap, spans_through
from app.conversations.views import kept_seqs, kept_with_pins
from app.conversations.windows.service import ActiveWindows, view_state_of
from app.repositories import Database, Repositories


@dataclass(eq=False, repr=False)
class ReceiptService:
    """Reads receipts, and undoes the newest compaction."""

    _database: Database
    _resolver: SettingsResolver
    _active: ActiveWindows

    async def failure(self, tenant_id: str, conversation_id: str) -> Failure | None:
        """Return why the last compaction failed, None if one has succeeded since."""
        async with self._database.session() as session:
            await self._resolver.find_conversation(session, tenant_id, conversation_id)
            return await session.jobs.find_failure(conversation_id)

    async def state(self, tenant_id: str, conversation_id: str) -> ContextState | None:
        """Return the active summary and its range of seqs, None without one."""
        async with self._database.session() as session:
            conversation = await self._resolver.find_conversation(
                session, tenant_id, conversation_id
            )
        conversation = await self._active.updated(tenant_id, conversation)
        if conversation.state.compaction_id is None:
            return None
        async with self._database.session() as session:
            receipt = await session.contexts.find_compaction(
                conversation_id, conversation.state.compaction_id
            )
        if receipt is None or receipt.created_at is None:
            return None
        summary = receipt.summary
        if summary is None and receipt.view.provider_item is not None:
            summary = PROVIDER_ITEM_SUMMARY
        policy = self._resolver.policy_of(conversation)
        if summary is None or not receipt.is_shown_with(policy.strategy):
            return None
        return ContextState(
            strategy=receipt.strategy,
            summary=summary,
            summary_range=(receipt.hidden_span.start, receipt.hidden_span.end),
            compressed_at=receipt.created_at.isoformat(),
        )

    async def page(
        self,
        tenant_id: str,
        conversation_id: str,
        limit: int,
        before: str | None,
        bound: Bound = UNBOUNDED,
    ) -> Page[Receipt]:
        """Return receipts, the newest first, starting after the one with the id `before`."""
        async with self._database.session() as session:
            conversation = await self._resolver.find_conversation(
                session, tenant_id, conversation_id
            )
            page = await session.contexts.compactions(conversation_id, limit, before, bound)
        active_id = conversation.state.compaction_id
        return Page((Receipt.of(receipt, active_id) for receipt in page), has_more=page.has_more)

    async def get(self, tenant_id: str, conversation_id: str, compaction_id: str) -> Receipt:
        """Return one receipt; raises NotFound."""
        async with self._database.session() as session:
            conversation = await self._resolver.find_conversation(
                session, tenant_id, conversation_id
            )
            receipt = await _receipt(session, conversation_id, compaction_id)
        return Receipt.of(receipt, conversation.state.compaction_id)

    async def expand(
        self,
        tenant_id: str,
        conversation_id: str,
        compaction_id: str,
        after_seq: int,
        limit: int,
        bound: Bound = UNBOUNDED,
    ) -> tuple[Conversation, Page[StoredMessage]]:
        """Return the original messages of a receipt's range, those after a seq.

        Messages outside the active window of that time are not part of it: a page ends there.
        """
        async with self._database.session() as session:
            conversation = await self._resolver.find_conversation(
                session, tenant_id, conversation_id
            )
            receipt = await _receipt(session, conversation_id, compaction_id)
        spans = overlap((receipt.hidden_span,), receipt.view.window)
        ranges = [
            (max(after_seq, span.start - 1), span.end)
            for span in spans_through(spans, conversation.state.head_seq)
            if span.end - 1 > after_seq
        ]
        if not ranges:
            return conversation, Page()
        async with self._database.session() as session:
            page = await session.log.page(conversation_id, *ranges[0], "asc", limit, bound)
        return conversation, Page(page, has_more=page.has_more or len(ranges) > 1)

    async def undo(self, tenant_id: str, conversation_id: str, compaction_id: str) -> Receipt:
        """Show what was shown before the newest compaction.

        Automatic compaction and clearing are suspended until the log has grown. Raises Conflict
        for a compaction that is not the active one. [compaction.undo-suspends]
        """
        async with self._database.transaction() as session:
            conversation = await lock_conversation(
                session, tenant_id, conversation_id, self._resolver.default_model
            )
            receipt = await _receipt(session, conversation_id, compaction_id)
            if conversation.state.compaction_id != compaction_id:
                raise Conflict(
                    "Only the newest active compaction can be undone",
                    {"active": conversation.state.compaction_id},
                )
            await self._show_parent_view(session, conversation, receipt)
            await session.contexts.mark_undone(conversation_id, compaction_id)
            data = json_text.dumps({"compaction_id": compaction_id})
            await session.events.add(conversation_id, EventType.UNDONE, data)
        return await self.get(tenant_id, conversation_id, compaction_id)

    async def _show_parent_view(
        self, session: Repositories, conversation: Conversation, receipt: Compaction
    ) -> None:
        """Show the view of a receipt's parent, with the pins that were set since."""
        conversation_id, state = conversation.conversation_id, conversation.state
        parent = None
        if receipt.parent_id is not None:
            parent = await session.contexts.find_compaction(conversation_id, receipt.parent_id)
        resolved = await self._resolver.of(conversation)
        kept: tuple[int, ...] = ()
        if parent is not None:
            pinned = await session.log.pinned(conversation_id)
            kept, _, _ = kept_with_pins(parent.view, kept_seqs(parent.view), pinned)
            kept = tuple(sorted({*kept, *(item.seq for item in pinned)}))
        with_kept = replace(conversation, state=replace(state, kept_seqs=kept))
        visible = await view_state_of(session, self._resolver, with_kept, parent)
        limits = resolved.policy_limits
        applied = await session.contexts.show(
            conversation_id,
            visible,
            view_version=state.view_version,
            cause="undone",
            resume_at_tokens=resume_at_tokens(state, limits)
            if limits is not None
            else state.tokens + 1,
        )
        assert applied, "the conversation is locked, and the view shows every pin"


async def _receipt(session: Repositories, conversation_id: str, compaction_id: str) -> Compaction:
    receipt = await session.contexts.find_compaction(conversation_id, compaction_id)
    if receipt is None:
        raise NotFound(f"No compaction {compaction_id}", {"compaction_id": compaction_id})
    return receipt
