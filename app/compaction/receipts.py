"""Receipts of compactions: read, expanded to the original messages, undone. [compaction.undo]"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from app.common.answer_schemas import answer
from app.common.errors import Conflict, NotFound
from app.common.pages import UNBOUNDED, Bound, Page
from app.conversations.conversation import Conversation
from app.conversations.due import resume_at_tokens
from app.conversations.events import EventType
from app.conversations.messages.row import StoredMessage
from app.conversations.moving_window import ActiveWindows, view_state_of
from app.conversations.receipt import (
    FACTS,
    PROVIDER_ITEM_SUMMARY,
    CompactionFacts,
    ContextState,
    Failure,
    Receipt,
    Trigger,
)
from app.conversations.settings_resolver import SettingsResolver
from app.conversations.view import WHOLE, HeadingCount, Summary, overlap, spans_through
from app.conversations.view_changes import protected_in
from app.http.fields import UUID, ResponseSchema
from app.repositories import Database, Repositories


class MadeSummary(ResponseSchema):
    """A summary that a compaction made or shows."""

    summary_range: tuple[int, int]
    """Seqs that it stands for, the end excluded."""
    level: int
    """1: of messages; higher: of summaries one level below."""
    text: str
    """Its text."""
    token_count: int
    """Tokens of the message that shows it."""
    source_ranges: list[tuple[int, int]]
    """The ranges that it was made from."""
    headings: tuple[HeadingCount, ...]
    """What became of the statements below each heading; empty for a model's summary."""
    unlisted: str | None
    """Important statements that had no room in it or in an earlier one, by heading, and all that
    users stated, each after the seq of its message (`@12`): a later summary with room lists them.
    Null where nothing was left out, and for a summary of an earlier compaction."""

    @classmethod
    def of_summary(cls, summary: Summary) -> MadeSummary:
        """Return a summary with its ranges."""
        return cls.of(
            summary,
            summary_range=(summary.span.start, summary.span.end),
            token_count=summary.tokens,
            source_ranges=[(span.start, span.end) for span in summary.sources],
            unlisted=summary.unlisted or None,
        )


@answer()
@dataclass(frozen=True, slots=True, kw_only=True)
class ShownReceipt(CompactionFacts):
    """The record of one compaction; tokens are of the whole payload."""

    compaction_id: str
    """Its id."""
    parent_id: str | None
    """The compaction that was active before."""
    status: Literal["active", "replaced", "undone"]
    """`active`: the context shows it; `replaced`: by a later compaction or a change of policy."""
    trigger: Trigger
    """Why it ran."""
    hidden_range: tuple[int, int]
    """Seqs that it hides, the end excluded; their messages can be read in full."""
    kept_seqs: Sequence[int]
    """Seqs in the range that stay verbatim."""
    cleared_through_seq: int
    """Tool results up to this seq are placeholders; 0 for none."""
    repeated_seqs: Sequence[int]
    """Later ones that are placeholders, because a newer result repeats them."""
    summary: str | None
    """The text that stands for the range; null without one."""
    retain: str | None
    """Text that was requested to be kept verbatim."""
    note: str | None
    """The note in the context about messages left out."""
    summaries: list[MadeSummary]
    """The summaries the context shows, in order."""
    made: list[MadeSummary]
    """The summaries that this compaction made; a tree may have merged some of them."""
    created_at: datetime
    """When it was applied."""
    undone_at: datetime | None
    """When it was undone."""

    @classmethod
    def of(cls, receipt: Receipt, active_id: str | None) -> ShownReceipt:
        """Return the receipt of a conversation in which another one may be active."""
        view, is_active = receipt.view, receipt.compaction_id == active_id
        status: Any = "active" if is_active else "replaced"
        made = {summary: summary for summary in receipt.made}  # with what a view does not store
        same = (*FACTS, "compaction_id", "parent_id", "trigger", "created_at", "undone_at")
        return cls(
            status="undone" if receipt.undone_at is not None else status,
            hidden_range=(receipt.hidden_span.start, receipt.hidden_span.end),
            kept_seqs=view.kept_seqs,
            cleared_through_seq=view.results_cleared_through,
            repeated_seqs=[item.seq for item in view.repeated_results],
            summary=receipt.summary,
            retain=view.retain,
            note=view.note,
            summaries=[MadeSummary.of_summary(made.get(each, each)) for each in view.summaries],
            made=[MadeSummary.of_summary(each) for each in receipt.made],
            **{name: getattr(receipt, name) for name in same},
        )


@dataclass(eq=False, repr=False)
class ReceiptService:
    """Reads receipts, and undoes the newest compaction.

    Raises NotFound for what this tenant does not have.
    """

    _database: Database
    _resolver: SettingsResolver
    _active: ActiveWindows

    async def failure(self, tenant_id: str, conversation_id: str) -> Failure | None:
        """Return why the last automatic one failed, None if one has succeeded since."""
        async with self._database.session() as session:
            await session.conversations.get(tenant_id, conversation_id)
            return await session.jobs.find_failure(conversation_id)

    async def state(self, tenant_id: str, conversation_id: str) -> ContextState | None:
        """Return the active summary and its range of seqs, None without one."""
        async with self._database.session() as session:
            conversation = await session.conversations.get(tenant_id, conversation_id)
        conversation = await self._active.updated(tenant_id, conversation)
        active_id = conversation.state.compaction_id
        async with self._database.session() as session:
            receipt = await session.contexts.find_receipt(conversation_id, active_id)
        if receipt is None or receipt.created_at is None:
            return None
        summary, strategy = receipt.summary, self._resolver.policy_of(conversation).strategy
        if summary is None and receipt.view.provider_item is not None:
            summary = PROVIDER_ITEM_SUMMARY
        if summary is None or not receipt.is_shown_with(strategy):
            return None
        span, at = receipt.hidden_span, receipt.created_at.isoformat()
        return ContextState(receipt.strategy, summary, (span.start, span.end), at)

    async def page(
        self,
        tenant_id: str,
        conversation_id: str,
        limit: int,
        before: str | None,
        bound: Bound = UNBOUNDED,
    ) -> Page[ShownReceipt]:
        """Return receipts, the newest first, starting after the one with the id `before`."""
        async with self._database.session() as session:
            conversation = await session.conversations.get(tenant_id, conversation_id)
            page = await session.contexts.receipts(conversation_id, limit, before, bound)
        active_id = conversation.state.compaction_id
        return Page(
            (ShownReceipt.of(receipt, active_id) for receipt in page), has_more=page.has_more
        )

    async def get(self, tenant_id: str, conversation_id: str, compaction_id: str) -> ShownReceipt:
        """Return one receipt."""
        conversation, receipt = await self._read(tenant_id, conversation_id, compaction_id)
        return ShownReceipt.of(receipt, conversation.state.compaction_id)

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
        conversation, receipt = await self._read(tenant_id, conversation_id, compaction_id)
        window = receipt.view.window
        if receipt.trigger == Trigger.REWIND:  # its own window is without them
            async with self._database.session() as session:
                before = await session.contexts.find_receipt(conversation_id, receipt.parent_id)
            window = before.view.window if before is not None else WHOLE
        spans = overlap((receipt.hidden_span,), window)
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

    async def undo(self, tenant_id: str, conversation_id: str, compaction_id: str) -> ShownReceipt:
        """Show what was shown before the newest compaction, with the pins that were set since.

        Automatic compaction and clearing are suspended until the log has grown. Raises Conflict
        for a compaction that is not the active one. [compaction.undo-suspends]
        """
        async with self._database.transaction() as session:
            conversation = await session.conversations.get(tenant_id, conversation_id, lock=True)
            receipt = await _find(session, conversation_id, compaction_id)
            state = conversation.state
            if state.compaction_id != receipt.compaction_id:
                raise Conflict(
                    "Only the newest active compaction can be undone",
                    {"active": state.compaction_id},
                )
            if receipt.trigger == Trigger.REWIND:
                conversation = await self._active.unrewind(
                    session, conversation, receipt.hidden_span
                )
                state = conversation.state
            parent = await session.contexts.find_receipt(conversation_id, receipt.parent_id)
            kept = protected_in(parent.view) if parent is not None else ()
            with_kept = replace(conversation, state=replace(state, protected_seqs=kept))
            limits = (await self._resolver.of(conversation)).policy_limits
            applied = await session.contexts.show(
                conversation_id,
                await view_state_of(session, self._resolver, with_kept, parent),
                view_version=state.view_version,
                cause="undone",
                resume_at_tokens=resume_at_tokens(state, limits) if limits else state.tokens + 1,
            )
            assert applied, "the conversation is locked, and the view shows every pin"
            await session.contexts.mark_undone(conversation_id, receipt.compaction_id)
            undone = {"compaction_id": receipt.compaction_id}
            await session.events.add(conversation_id, EventType.UNDONE, **undone)
        return await self.get(tenant_id, conversation_id, compaction_id)

    async def _read(
        self, tenant_id: str, conversation_id: str, compaction_id: str
    ) -> tuple[Conversation, Receipt]:
        async with self._database.session() as session:
            conversation = await session.conversations.get(tenant_id, conversation_id)
            return conversation, await _find(session, conversation_id, compaction_id)


async def _find(session: Repositories, conversation_id: str, compaction_id: str) -> Receipt:
    receipt = None
    if UUID.fullmatch(compaction_id):
        receipt = await session.contexts.find_receipt(conversation_id, compaction_id.lower())
    if receipt is None:
        raise NotFound(f"No compaction {compaction_id}", {"compaction_id": compaction_id})
    return receipt
