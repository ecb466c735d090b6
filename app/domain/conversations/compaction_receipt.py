"""What compactions did: receipts, failures, and the view they leave."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from app.domain.conversations.view import Span, Summary, View


class Trigger(StrEnum):
    """What made a compaction run (E6), or a clearing of tool results (F3)."""

    BACKGROUND = "background"
    PROACTIVE = "proactive"
    FORCED = "forced"
    EMERGENCY = "emergency"
    TOOL_OUTPUT = "tool_output"


@dataclass(frozen=True, slots=True)
class Compaction:
    """The receipt of one reduction (E8).

    `span` is the whole range hidden since, `view` what is shown in its place, with `made` the
    summaries made for it (the view may hold older ones, or have folded a new one away again).
    `strategy` is what ran, `policy_strategy` what the policy said then. `model` is None where
    none was asked, `degraded` names what it had to do without. `hidden_tokens`,
    `hidden_messages` and `summary_tokens` go to the head.
    """

    compaction_id: str
    parent_id: str | None
    trigger: str
    strategy: str
    policy_strategy: str
    strategies_run: tuple[str, ...]
    span: Span
    view: View
    made: tuple[Summary, ...]
    summary_tokens: int
    hidden_tokens: int
    hidden_messages: int
    before_tokens: int
    after_tokens: int
    before_msg_count: int
    after_msg_count: int
    model: str | None
    prompt_hash: str | None
    calls: int
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    duration_ms: int
    degraded: tuple[str, ...] = ()
    created_at: datetime | None = None
    undone_at: datetime | None = None

    @property
    def summary(self) -> str | None:
        """The text that stands for the range, None where nothing was summarised."""
        texts = [summary.text for summary in self.view.summaries]
        return "\n\n".join(texts) if texts else None


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the last compaction failed (E9); nothing of it is content.

    `calls` of a model were made for it, `failures` automatic ones have failed in a row, and
    `retry_at` is when the next one is due.
    """

    trigger: str
    code: str
    reason: str
    detail: str
    calls: int
    failed_at: datetime
    failures: int
    retry_at: datetime | None


@dataclass(frozen=True, slots=True)
class VisibleState:
    """What a head is to show: a view, whose receipt made it, and what it takes out of the log.

    `kept` are the seqs it shows whole although the receipt hid or cleared them.
    """

    view: View
    compaction_id: str | None
    summary_tokens: int
    hidden_tokens: int
    hidden_messages: int
    kept: tuple[int, ...] = ()
