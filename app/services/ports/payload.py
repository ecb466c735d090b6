"""Ports for builds, epochs, compactions and reported usage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from app.domain.common.messages import FormatName
from app.domain.common.pages import UNBOUNDED, Bound, Page
from app.domain.conversations.compaction_receipt import Compaction, VisibleState
from app.domain.conversations.epoch import ContextRead, Epoch
from app.domain.conversations.log.row import LogRow
from app.domain.conversations.turns import Entry
from app.domain.conversations.view import Span, View
from app.domain.models.calibration import Calibration
from app.domain.payload.reported_usage import UsageReport


class ContextRepository(Protocol):
    """Sentences about builds, epochs and compactions of one conversation."""

    async def read(
        self,
        tenant_id: str,
        conversation_id: str,
        *,
        format: str,
        model: str | None,
        default_model: str | None,
        window: int,
        have_epoch_id: str | None,
        have_start: str | None,
        have_through: int,
        most_tokens: int,
    ) -> ContextRead | None:
        """Return all a build needs, None for an unknown conversation.

        What the caller has of an epoch, its frame and its rows up to a seq, is not read again;
        nor is the summary, which that frame holds.
        """
        ...

    async def rows(
        self,
        conversation_id: str,
        start: int,
        end: int,
        *,
        as_chat: bool,
        trimmed_through: int = 0,
        untrimmed: Sequence[int] = (),
    ) -> list[LogRow]:
        """Return the messages in `[start, end)` as a build or a summariser reads them.

        Results up to `trimmed_through`, but for the seqs in `untrimmed`, come without their text.
        """
        ...

    async def add_epoch(
        self, conversation_id: str, epoch: Epoch, view: View, texts: Mapping[str, str]
    ) -> bool:
        """Record an epoch's start; False when another build was first, or all is deleted."""
        ...

    async def find_epoch(self, conversation_id: str, epoch_id: str) -> Epoch | None:
        """Return an epoch by its id, or None."""
        ...

    async def newest_tools(self, conversation_id: str) -> str | None:
        """Return the tools of the epoch that began last, as JSON; None before any build."""
        ...

    async def add_text(self, conversation_id: str, hash: str, body: str) -> None:
        """Keep a text of the conversation under its hash, once."""
        ...

    async def texts(self, conversation_id: str, hashes: Sequence[str]) -> Mapping[str, str]:
        """Return those of the texts that are kept, by their hashes."""
        ...

    async def add_compaction(self, conversation_id: str, compaction: Compaction) -> None:
        """Store a receipt."""
        ...

    async def show(
        self,
        conversation_id: str,
        shown: VisibleState,
        *,
        view_version: int,
        cause: str,
        resume_at: int = 0,
    ) -> bool:
        """Change what is shown, if the view is still this version and no new pin is hidden.

        Call it in a transaction that holds the head's lock.
        """
        ...

    async def hide_compaction(self, conversation_id: str, view_version: int) -> None:
        """Show the log as it is again, if the view is still this one."""
        ...

    async def let_grow(self, conversation_id: str, resume_at: int) -> None:
        """Leave the conversation alone until its log has so many tokens (decision 24)."""
        ...

    async def mark_undone(self, conversation_id: str, compaction_id: str) -> None:
        """Note on a receipt that it was undone."""
        ...

    async def compactions(
        self,
        conversation_id: str,
        limit: int,
        before: str | None,
        bound: Bound = UNBOUNDED,
    ) -> Page[Compaction]:
        """Return receipts, the newest first, starting after the one with the id `before`."""
        ...

    async def around(self, conversation_id: str, seq: int, *, whole_turn: bool) -> list[Entry]:
        """Return the entries of the call group, or of the whole turn, that a seq stands in."""
        ...

    async def pinned(self, conversation_id: str) -> list[Entry]:
        """Return the entries of all pinned messages."""
        ...

    async def pin(self, conversation_id: str, seqs: Sequence[int]) -> None:
        """Pin messages; those that are pinned already stay so."""
        ...

    async def unpin(self, conversation_id: str, seqs: Sequence[int]) -> int:
        """Unpin messages, and return how many were pinned."""
        ...

    async def keep(
        self, conversation_id: str, kept: Sequence[int], tokens: int, messages: int
    ) -> None:
        """Show messages again that were hidden or cleared: so many more, for so many tokens."""
        ...

    async def find_compaction(self, conversation_id: str, compaction_id: str) -> Compaction | None:
        """Return a receipt, or None."""
        ...


class UsageRepository(Protocol):
    """Sentences about what providers reported, and what their models' counts are worth (J3, J4)."""

    async def add(self, conversation_id: str, report: UsageReport) -> bool:
        """Store a report; False for a deleted conversation."""
        ...

    async def newest(self, conversation_id: str) -> UsageReport | None:
        """Return the report that came last, or None."""
        ...

    async def newest_epoch(self, conversation_id: str, payload_stream: str) -> Epoch | None:
        """Return the last epoch of a lane, None where nothing was built."""
        ...

    async def last_format(
        self, conversation_id: str, formats: Sequence[FormatName]
    ) -> FormatName | None:
        """Return which of these formats an epoch began in last, None where none did."""
        ...

    async def has_reasoning(
        self, conversation_id: str, spans: Sequence[Span], after_seq: int, through_seq: int
    ) -> bool:
        """Whether a message of these spans, after one seq and up to another, holds reasoning."""
        ...

    async def calibrate(
        self, tenant_id: str, model: str, counter: str, reported: int, counted: int
    ) -> Calibration:
        """Add a payload to the model's tally as `Tally` does, none lost among many at once."""
        ...

    async def find_calibration(
        self, tenant_id: str, model: str, counter: str
    ) -> Calibration | None:
        """Return what reports have said of a model's counts, or None."""
        ...
