"""Schemas of compactions: requests, receipts, jobs and strategies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from app.common.answers import answer
from app.conversations.compaction_receipt import (
    FACTS,
    Compaction,
    CompactionFacts,
    CompactResult,
    Trigger,
)
from app.conversations.view import SectionCount, Span, Summary
from app.http.cursors import Page
from app.http.errors import ProblemAnswer
from app.http.fields import ModelName, RequestSchema, ResponseSchema, Tokens, examples
from app.http.fields import Strategy as StrategyField
from app.policy.policy import StrategyName
from app.work.repository import JobStatus


class CompactionRequest(RequestSchema):
    """A compaction now, however full the window is."""

    model_config = examples({"instructions": "Keep every file path.", "dry_run": True})

    strategy: StrategyField | None = None
    """Strategy for this compaction; the policy's by default."""
    model: ModelName | None = None
    """Model that summarises; must be an allowed one."""
    instructions: str | None = Field(default=None, max_length=32_000)
    """What this summary should keep."""
    target_tokens: Tokens | None = None
    """Tokens of the payload to aim for; by default `compaction.target` of the effective window
    or, within it already, as few as the strategy can."""
    dry_run: bool = False
    """Only return what would be done, and the size of the payload after it; no model is called."""


class MadeSummary(ResponseSchema):
    """A summary that a compaction made or shows."""

    summary_range: tuple[int, int]
    """Seqs that it stands for, the end excluded."""
    level: int
    """1: of messages; higher: of summaries one level below."""
    text: str
    """Its text."""
    tokens: int
    """Tokens of the message that shows it."""
    sources: list[tuple[int, int]]
    """The ranges that it was made from."""
    sections: tuple[SectionCount, ...]
    """What became of the statements of each section; empty for a model's summary."""
    unlisted: str | None
    """Important statements that had no room in it or in an earlier one, by section: a later
    summary with room lists them. Null for a summary of an earlier compaction."""

    @classmethod
    def of_summary(cls, summary: Summary) -> MadeSummary:
        """Return a summary with its ranges."""
        return cls.of(
            summary,
            summary_range=range_of(summary.span),
            sources=[range_of(span) for span in summary.sources],
            unlisted=summary.unlisted or None,
        )


@answer()
@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt(CompactionFacts):
    """The immutable record of one compaction; tokens are of the whole payload."""

    compaction_id: str
    """Its id."""
    parent_id: str | None
    """The compaction that was active before."""
    status: Literal["active", "superseded", "undone"]
    """`active`: the context shows it; `superseded`: a later compaction or a change of policy
    replaced it."""
    trigger: Trigger
    """Why it ran."""
    hidden_range: tuple[int, int]
    """Seqs that it hides, the end excluded; their messages can be read in full."""
    kept: Sequence[int]
    """Seqs in the range that stay verbatim."""
    cleared_through: int
    """Tool results up to this seq are placeholders; 0 for none."""
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
    def of(cls, receipt: Compaction, active_id: str | None) -> Receipt:
        """Return the receipt of a conversation in which another one may be active."""
        view, is_active = receipt.view, receipt.compaction_id == active_id
        status: Any = "active" if is_active else "superseded"
        made = {summary: summary for summary in receipt.made}  # with what a view does not store
        same = (*FACTS, "compaction_id", "parent_id", "trigger", "created_at", "undone_at")
        return cls(
            status="undone" if receipt.undone_at is not None else status,
            hidden_range=range_of(receipt.hidden_span),
            kept=view.unhidden_seqs,
            cleared_through=view.results_cleared_through,
            summary=receipt.summary,
            retain=view.retain,
            note=view.note,
            summaries=[MadeSummary.of_summary(made.get(each, each)) for each in view.summaries],
            made=[MadeSummary.of_summary(each) for each in receipt.made],
            **{name: getattr(receipt, name) for name in same},
        )


def range_of(span: Span) -> tuple[int, int]:
    """Return the seqs of a span, the end excluded."""
    return span.start, span.end


class ReceiptPage(Page[Receipt]):
    """Receipts of a conversation, the newest first."""


class Job(ResponseSchema):
    """Work in the background, and its result."""

    job_id: str
    """Id of the job."""
    conversation_id: str
    """The conversation that it works on."""
    kind: str
    """What kind of work it is."""
    status: JobStatus
    """`done` and `failed` are final."""
    result: CompactResult | None
    """Its result; null until it is done."""
    error: ProblemAnswer | None
    """Why it failed; null unless it did."""
    created_at: datetime
    """When it was requested."""
    updated_at: datetime
    """When its status last changed."""


class Strategy(ResponseSchema):
    """A strategy to keep a history within the context window, with the service's defaults."""

    name: StrategyName
    """The value for `policy.strategy`."""
    description: str
    """What it does."""
    is_default: bool
    """Whether it is the default."""
    trigger: float | None
    """Share of the effective window at which a compaction is due; null: never."""
    preserve_top: int | None
    """Messages kept at the start; null: all."""
    preserve_bottom: int | None
    """Messages kept at the end; null: all."""


class StrategyList(Page[Strategy]):
    """All strategies."""
