"""Plans of compactions as values, and the token budget that they are made for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from app.domain.conversations.turns import Entry
from app.domain.conversations.view import Span


@dataclass(frozen=True, slots=True)
class HistoryBudget:
    """The token budget of a history, in tokens of the effective window.

    `capacity` is the most a payload may have, `target` is what a compaction aims for. `fixed` is
    used by sections and tools. `summary` is reserved for the text of a new summary; `summary_now`
    is what the current summaries use, by default as much.
    """

    capacity: int
    target: int
    fixed: int
    summary: int
    summary_now: int | None = None

    @property
    def history_target(self) -> int:
        """Tokens that the target leaves for history."""
        return min(self.target, self.capacity) - self.fixed - self.summary

    def fits(self, history_tokens: int) -> bool:
        """Whether a history of this size fits beside the fixed tokens and a summary."""
        return history_tokens + self.fixed + self.summary <= self.capacity

    def meets_target(self, history_tokens: int) -> bool:
        """Whether a history of this size is within the target."""
        return history_tokens <= self.history_target

    def is_met_by(self, history: Iterable[Entry]) -> bool:
        """Whether a history is within the target as it is, without a new summary."""
        return self.without_new_summary.meets_target(tokens_of(history))

    @property
    def without_new_summary(self) -> HistoryBudget:
        """The budget as long as no new summary is made."""
        return self if self.summary_now is None else replace(self, summary=self.summary_now)


@dataclass(frozen=True, slots=True)
class NoCompaction:
    """There is nothing to do, for this reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class SlidingCut:
    """Show only the messages from `tail_start` on, and the pinned ones in `kept` before it."""

    tail_start: int
    kept: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """One compaction as planned: what is cleared, hidden and summarised.

    - `hidden` is the whole hidden range afterwards, the former one included; None when no more is
      hidden. `kept` are the seqs inside it that stay verbatim. `released` are seqs that were kept
      in the former range and are hidden now.
    - Tool results up to `results_cleared_through` are replaced by placeholders.
    - Without `summarises` the newly hidden messages are dropped with a note.
    - `chunks` are the parts that a tree summarises one by one. Together they cover what is newly
      hidden outside the former range; the first one includes what was released.
    - `shrunk` is set when preserved messages had to be hidden to fit the capacity.
    - `fallback` is the plan to use when no summary can be made. `drops` is set when messages are
      dropped without the summary that the policy asks for.
    - `freed_tokens` counts what messages no longer cost, without the cost of a new summary.
    """

    steps: tuple[str, ...]
    freed_tokens: int
    hidden: Span | None = None
    kept: tuple[int, ...] = ()
    results_cleared_through: int = 0
    summarises: bool = True
    chunks: tuple[Span, ...] = ()
    shrunk: bool = False
    fallback: CompactionPlan | None = None
    released: tuple[int, ...] = ()
    drops: bool = False


Plan = NoCompaction | SlidingCut | CompactionPlan


def tokens_of(history: Iterable[Entry]) -> int:
    """Return the tokens of a history."""
    return sum(entry.tokens for entry in history)


def placeholder_tokens_of(history: Iterable[Entry]) -> int:
    """Return the tokens of a history whose tool results are all placeholders."""
    return sum(entry.placeholder_tokens for entry in history)
