"""Ports for builds, epochs, compactions and reported usage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from app.domain.common.messages import FormatName
from app.domain.common.pages import UNBOUNDED, Bound, Page
from app.domain.conversations.compaction_receipt import Compaction, ViewState
from app.domain.conversations.epoch import BuildInput, Epoch, PastEpoch
from app.domain.conversations.log.row import LogRow
from app.domain.conversations.turns import Entry
from app.domain.conversations.view import Span, Summary, View
from app.domain.models.calibration import Calibration, Lesson
from app.domain.models.usage_totals import UsageEntry, UsageQuery, UsageRow
from app.domain.payload.reported_usage import UsageReport
from app.domain.prompt.resolved_settings import RequestSettings


class ContextRepository(Protocol):
    """Queries about builds, epochs, compactions and pins of one conversation."""

    async def read_build_input(
        self,
        tenant_id: str,
        conversation_id: str,
        settings: RequestSettings,
        default_model: str | None,
        *,
        cached_epoch_id: str | None,
        cached_start: str | None,
        cached_through: int,
    ) -> BuildInput | None:
        """Return all a build needs, None for an unknown conversation.

        The start of an epoch and the rows up to a seq that the caller has in its payload cache are
        not read again, nor is the active summary, which that start contains.
        """
        ...

    async def rows(
        self,
        conversation_id: str,
        start: int,
        end: int,
        *,
        as_chat: bool,
        results_cleared_through: int = 0,
        uncleared_results: Sequence[int] = (),
    ) -> list[LogRow]:
        """Return the messages in `[start, end)` as a build or a summariser reads them.

        Results up to `results_cleared_through` have no text, except the seqs in
        `uncleared_results`.
        """
        ...

    async def add_epoch(
        self, conversation_id: str, epoch: Epoch, view: View, texts: Mapping[str, str]
    ) -> bool:
        """Store an epoch.

        False when another build stored it first, the conversation is gone, or a message was
        redacted since.
        """
        ...

    async def set_unstored_tokens(
        self, conversation_id: str, view_version: int, tokens: int
    ) -> None:
        """Store what the newest payload has beyond the state, while the view is the same."""
        ...

    async def find_epoch(self, conversation_id: str, epoch_id: str) -> Epoch | None:
        """Return an epoch by its id, or None."""
        ...

    async def newest_tools(self, conversation_id: str) -> str | None:
        """Return the tools of the newest epoch as JSON, None before any build."""
        ...

    async def add_text(self, conversation_id: str, hash: str, body: str) -> None:
        """Store a text under its hash, unless it is stored already."""
        ...

    async def texts(self, conversation_id: str, hashes: Sequence[str]) -> Mapping[str, str]:
        """Return the stored texts among these, by their hashes."""
        ...

    async def add_summary(self, conversation_id: str, receipt: Compaction) -> None:
        """Store the summaries of a receipt whose provider's item had none, and what they cost."""
        ...

    async def add_compaction(self, conversation_id: str, compaction: Compaction) -> None:
        """Store a receipt."""
        ...

    async def show(
        self,
        conversation_id: str,
        visible: ViewState,
        *,
        view_version: int,
        cause: str,
        resume_at_tokens: int = 0,
    ) -> bool:
        """Change the view if it has this version and hides no new pin; False otherwise.

        Call it in a transaction that holds the lock of the conversation's head.
        """
        ...

    async def hide_compaction(self, conversation_id: str, view_version: int) -> None:
        """Show the whole log again, if the view has this version."""
        ...

    async def suspend_compaction(self, conversation_id: str, resume_at_tokens: int) -> None:
        """Suspend background compaction until the log has this many tokens."""
        ...

    async def mark_undone(self, conversation_id: str, compaction_id: str) -> None:
        """Mark a receipt as undone."""
        ...

    async def compactions(
        self, conversation_id: str, limit: int, before: str | None, bound: Bound = UNBOUNDED
    ) -> Page[Compaction]:
        """Return receipts, the newest first, starting after the one with the id `before`."""
        ...

    async def around(self, conversation_id: str, seq: int, *, whole_turn: bool) -> list[Entry]:
        """Return the entries of the call group, or of the turn, that contains a seq."""
        ...

    async def pinned(self, conversation_id: str) -> list[Entry]:
        """Return the entries of all pinned messages."""
        ...

    async def pin(self, conversation_id: str, seqs: Sequence[int]) -> None:
        """Pin messages; pinned ones stay pinned."""
        ...

    async def unpin(self, conversation_id: str, seqs: Sequence[int]) -> int:
        """Unpin messages, and return how many were pinned."""
        ...

    async def show_pinned(
        self, conversation_id: str, kept: Sequence[int], tokens: int, messages: int
    ) -> None:
        """Show hidden or cleared messages again, which adds this many messages and tokens."""
        ...

    async def find_compaction(self, conversation_id: str, compaction_id: str) -> Compaction | None:
        """Return a receipt, or None."""
        ...

    async def newest_summaries(self, conversation_id: str, through: str) -> list[Summary]:
        """Return what the newest compaction made that made summaries, up to this receipt."""
        ...


class UsageRepository(Protocol):
    """Queries about reported usage, and the calibration of models by it."""

    async def add(self, conversation_id: str, report: UsageReport) -> bool:
        """Store a report; False for a deleted conversation."""
        ...

    async def newest(self, conversation_id: str) -> UsageReport | None:
        """Return the newest report, or None."""
        ...

    async def page(self, conversation_id: str, limit: int, before: str | None) -> Page[UsageReport]:
        """Return reports, the newest first, starting after the one with the id `before`."""
        ...

    async def epochs(self, conversation_id: str, limit: int, before: str | None) -> Page[PastEpoch]:
        """Return epochs, the newest first, starting after the one with the id `before`."""
        ...

    async def newest_epoch(self, conversation_id: str, payload_stream: str) -> Epoch | None:
        """Return the newest epoch of a payload stream, None before any build."""
        ...

    async def last_epoch(self, conversation_id: str, formats: Sequence[FormatName]) -> Epoch | None:
        """Return the newest epoch in one of these formats, or None."""
        ...

    async def has_reasoning(
        self, conversation_id: str, spans: Sequence[Span], after_seq: int, through_seq: int
    ) -> bool:
        """Whether a message of these spans, after one seq and up to another, has reasoning."""
        ...

    async def calibrate(
        self, tenant_id: str, model: str, counter: str, lesson: Lesson
    ) -> Calibration:
        """Add what a report says to the model's sums as `Tally` does, atomically."""
        ...

    async def find_calibration(
        self, tenant_id: str, model: str, counter: str
    ) -> Calibration | None:
        """Return the calibration of a model, or None."""
        ...


class UsageTotalRepository(Protocol):
    """Totals of usage and cost by day and model, of a conversation, an agent or a tenant."""

    async def add_to_conversation(
        self, conversation_id: str, entries: Sequence[UsageEntry]
    ) -> None:
        """Add to the totals of today; nothing is added for a deleted conversation."""
        ...

    async def add_to_tenant(
        self, tenant_id: str, agent_id: str | None, entries: Sequence[UsageEntry]
    ) -> None:
        """Add to the totals of today, of the tenant and of the agent, if there is one.

        Call it last in a transaction: all reports of the tenant wait for the end of that.
        """
        ...

    async def of_conversation(
        self, conversation_id: str, query: UsageQuery
    ) -> tuple[UsageRow, Page[UsageRow]]:
        """Return the totals of all matching rows, and a page of their groups."""
        ...

    async def of_tenant(
        self, tenant_id: str, agent_id: str | None, query: UsageQuery
    ) -> tuple[UsageRow, Page[UsageRow]]:
        """Return the same of one agent, without an agent id of the whole tenant."""
        ...
