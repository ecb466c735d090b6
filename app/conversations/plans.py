"""Plans of compactions, the token budget of a plan, and which tool results may be cleared."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from app.conversations.turns import Entry
from app.conversations.view import Span


class ChainStep(StrEnum):
    """The steps of the chain strategy, in their order."""

    CLEAR_TOOL_RESULTS = "clear_tool_results"
    SUMMARIZE = "summarize"
    TRUNCATE = "truncate"


@dataclass(frozen=True, slots=True)
class HistoryBudget:
    """The token budget of a history within the effective window; every field is in tokens.

    `capacity` is the maximum of a payload, `target` is the size that a compaction aims for. `fixed`
    is used by sections and tools. `summary` is reserved for new summaries; `current_summary` is the
    size of the present ones, by default the same. `policy_target` is the target before it was
    lowered so that a plan frees a minimum, by default the same.
    """

    capacity: int
    target: int
    fixed: int
    summary: int
    current_summary: int | None = None
    policy_target: int | None = None

    @property
    def history_target(self) -> int:
        """Tokens that the target leaves for history."""
        return min(self.target, self.capacity) - self.fixed - self.summary

    @property
    def user_tokens(self) -> int:
        """Tokens that preserved user messages take at most, whether or not the target is lowered.

        With a lowered one, the next plan would hide what this one preserves.
        """
        if self.policy_target is None:
            return self.history_target // 2
        return replace(self, target=self.policy_target).history_target // 2

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
        """The budget of a history that keeps its present summaries."""
        return self if self.current_summary is None else replace(self, summary=self.current_summary)


@dataclass(frozen=True, slots=True)
class NoCompaction:
    """A plan to do nothing, with the reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class SlidingCut:
    """A plan to show only the messages from the seq `tail_start` on, and these before it."""

    tail_start: int
    kept_seqs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """A plan of what to clear, hide and summarise.

    - `hidden` is the whole hidden range after the compaction, or None if it hides no message.
      `unhidden_seqs` inside it stay shown. `released_seqs` were shown inside the former range and
      are hidden now.
    - Tool results up to `results_cleared_through` are replaced by placeholders.
    - Without `summarises` the newly hidden messages are dropped with a note.
    - `chunks` are the parts that a tree summarises one by one. Together they cover what is newly
      hidden outside the former range; the first one includes the released messages.
    - `hides_preserved` is set when preserved messages had to be hidden to fit the capacity.
    - `fallback` is the plan to use when no summary can be made. `drops_without_summary` is set when
      messages are dropped without the summary that the policy asks for.
    - `freed_tokens` counts what messages no longer cost, without the cost of a new summary.
    """

    steps: tuple[str, ...]
    freed_tokens: int
    hidden: Span | None = None
    unhidden_seqs: tuple[int, ...] = ()
    results_cleared_through: int = 0
    summarises: bool = True
    chunks: tuple[Span, ...] = ()
    hides_preserved: bool = False
    fallback: CompactionPlan | None = None
    released_seqs: tuple[int, ...] = ()
    drops_without_summary: bool = False


Plan = NoCompaction | SlidingCut | CompactionPlan


def tokens_of(history: Iterable[Entry]) -> int:
    """Return the tokens of a history."""
    return sum(entry.tokens for entry in history)


def tokens_hidden_by(plan: CompactionPlan, history: Iterable[Entry]) -> int:
    """Return the tokens of the messages that a plan newly hides."""
    if (hidden := plan.hidden) is None:
        return 0
    shown = set(plan.unhidden_seqs)
    return tokens_of(item for item in history if hidden.holds(item.seq) and item.seq not in shown)


def placeholder_tokens_of(history: Iterable[Entry]) -> int:
    """Return the tokens of a history whose tool results are all placeholders."""
    return sum(entry.placeholder_tokens for entry in history)


def clearable(
    history: Iterable[Entry], kept: Collection[int], hidden: Span | None = None, after: int = 0
) -> list[Entry]:
    """Return the results that a clearing may take: the one rule for all of them.

    Those in `kept` stay, as in `never_cleared`; so do messages shown inside a hidden range, which
    are hidden instead. Results up to `after` are placeholders already.
    """
    return [
        item
        for item in history
        if item.clearable
        and item.seq > after
        and item.seq not in kept
        and not (hidden is not None and hidden.holds(item.seq))
    ]


def oldest_cleared(clearable: Iterable[Entry], is_enough: Callable[[int], bool]) -> int:
    """Return the seq through which these results are cleared, the oldest first; 0 for none.

    Clearing ends once the tokens that it frees are enough.
    """
    freed = through = 0
    for item in clearable:
        if is_enough(freed):
            break
        freed += item.tokens - item.placeholder_tokens
        through = item.seq
    return through


def with_cleared(history: Iterable[Entry], through: int, kept: Collection[int]) -> list[Entry]:
    """Return a history with its results up to a seq at the cost of placeholders, except `kept`."""
    return [
        replace(item, tokens=item.placeholder_tokens)
        if item.seq <= through and item.seq not in kept
        else item
        for item in history
    ]
