"""What a view shows and the room that it has: the one value that every reduction makes smaller.

1. A reduction only hides entries or clears results. Those in `protected` stay, whatever is asked.
2. The hidden messages lie in one range, `hidden`. Entries inside it stayed shown there.
3. A cut is an index into the entries. Those between two cuts, `top` and `bottom`, are hidden,
   except for those that stay.
4. What became of the value is a plan: `plan_to` compares it with a smaller one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from app.conversations.receipt import CompactionPlan
from app.conversations.turns import (
    Entry,
    Protected,
    group_boundary_before,
    is_group_boundary,
    protected,
    starts_turn,
)
from app.conversations.view import Span
from app.policy.policy import Policy

MIN_FILL = 0.75
"""A cut at a turn's start has to use this share of the target; else the turn is cut inside."""
NOTE_TOKENS = 32
"""Reserved for the note that counts the messages left out."""


def tokens_of(history: Iterable[Entry]) -> int:
    """Return the tokens of a history."""
    return sum(entry.tokens for entry in history)


@dataclass(frozen=True, slots=True)
class HistoryBudget:
    """The token budget of a history within the effective window; every field is in tokens.

    `capacity` is the maximum of a payload, `target` is the size that a compaction aims for. `fixed`
    is used by sections and tools. `summary` is reserved for new summaries; `current_summary` is the
    size of the present ones, by default the same.
    """

    capacity: int
    target: int
    fixed: int
    summary: int
    current_summary: int | None = None

    @property
    def history_target(self) -> int:
        """Tokens that the target leaves for history."""
        return min(self.target, self.capacity) - self.fixed - self.summary

    def fits(self, history_tokens: int) -> bool:
        """Whether a history of this size fits beside sections, tools and a summary."""
        return history_tokens + self.fixed + self.summary <= self.capacity

    def meets_target(self, history_tokens: int) -> bool:
        """Whether a history of this size is within the target."""
        return history_tokens <= self.history_target

    @property
    def without_new_summary(self) -> HistoryBudget:
        """The budget of a history that keeps its present summaries."""
        return self if self.current_summary is None else replace(self, summary=self.current_summary)


NO_ROOM = HistoryBudget(0, 0, 0, 0)
"""For what does not depend on a budget."""


@dataclass(frozen=True)
class ShownHistory:
    """The entries that a view shows, each at its cost there, and their budget.

    `hidden` is the range that the view hides. A reduction cleared the results up to the seq
    `results_cleared_through`.
    """

    entries: Sequence[Entry]
    hidden: Span | None
    budget: HistoryBudget
    policy: Policy = field(default_factory=Policy)
    results_cleared_through: int = 0

    @cached_property
    def tokens(self) -> int:
        """The tokens of the entries."""
        return tokens_of(self.entries)

    @cached_property
    def protected(self) -> Protected:
        """What no reduction touches."""
        return protected(self.entries)

    # --- smaller ones ---------------------------------------------------------------------

    def clear(
        self, results: Iterable[Entry], is_enough: Callable[[int], bool]
    ) -> ShownHistory | None:
        """Clear those of these results that may be cleared, the oldest first; None without any.

        It ends once the tokens that it frees are enough.
        """
        freed = through = 0
        for item in results:
            if not item.clearable or item.seq in self.protected.uncleared:
                continue
            if is_enough(freed):
                break
            freed += item.tokens - item.placeholder_tokens
            through = item.seq
        if not through:
            return None
        entries = [
            replace(item, tokens=item.placeholder_tokens)
            if item.seq <= through and item.seq not in self.protected.uncleared
            else item
            for item in self.entries
        ]
        last = max(through, self.results_cleared_through)
        return replace(self, entries=entries, results_cleared_through=last)

    def show(self, entries: Sequence[Entry]) -> ShownHistory:
        """Hide all but these of the entries: the hidden range grows."""
        shown = {item.seq for item in entries}
        seqs = [item.seq for item in self.entries if item.seq not in shown]
        bounds = [*((seqs[0], seqs[-1] + 1) if seqs else ())]
        bounds += [self.hidden.start, self.hidden.end] if self.hidden else []
        hidden = Span(min(bounds), max(bounds)) if bounds else None
        return replace(self, entries=entries, hidden=hidden)

    def plan_to(
        self,
        after: ShownHistory,
        stages: tuple[str, ...],
        *,
        summarises: bool = False,
        hides_preserved: bool = False,
    ) -> CompactionPlan:
        """Return the plan that makes this what it is after some stages."""
        shown, freed, former = {item.seq for item in after.entries}, self.tokens, self.hidden
        seqs = [item.seq for item in self.entries if item.seq not in shown]
        plan = CompactionPlan(
            stages,
            freed - after.tokens,
            results_cleared_through=after.results_cleared_through,
            summarises=False,
        )
        if not seqs or (hidden := after.hidden) is None:
            return plan
        return replace(
            plan,
            hidden=hidden,
            kept_seqs=tuple(item.seq for item in after.entries if hidden.holds(item.seq)),
            summarises=summarises,
            hides_preserved=hides_preserved,
            released_seqs=tuple(seq for seq in seqs if former and former.holds(seq)),
        )

    # --- cuts: a later bottom one never shows more, so they are bisected ------------------

    @cached_property
    def hidden_from(self) -> int:
        """The index of the first entry in the hidden range or after it."""
        return sum(item.seq < self.hidden.start for item in self.entries) if self.hidden else 0

    @cached_property
    def hidden_to(self) -> int:
        """The index of the first entry after the hidden range."""
        return sum(item.seq < self.hidden.end for item in self.entries) if self.hidden else 0

    @cached_property
    def last_group(self) -> int:
        """The index of the last call group after the hidden range."""
        return max(self.hidden_to, group_boundary_before(self.entries, len(self.entries) - 1))

    def between(self, top: int, bottom: int, *, keeps_users: bool = True) -> list[Entry]:
        """Return the entries that are shown if those between two cuts are hidden."""
        between = self.entries[top:bottom]
        staying = {item.seq for item in between if item.seq in self.protected.unhidden}
        users = self.policy.preserve_user_messages and keeps_users
        remaining_tokens = self.budget.history_target // 2 if users else 0
        for item in reversed(between) if remaining_tokens > 0 else ():
            if starts_turn(item) and item.seq not in staying:
                remaining_tokens -= item.tokens
                if remaining_tokens < 0:
                    break
                staying.add(item.seq)
        middle = [item for item in between if item.seq in staying] if staying else []
        return [*self.entries[:top], *middle, *self.entries[bottom:]]

    def hides(self, top: int, bottom: int) -> bool:
        """Whether two cuts hide any message."""
        return len(self.between(top, bottom)) < len(self.entries)

    def meets_target(self, top: int, bottom: int) -> bool:
        """Whether the entries that two cuts show are within the target."""
        return self.budget.meets_target(tokens_of(self.between(top, bottom)))

    def fits_cleared(self, entries: Iterable[Entry]) -> bool:
        """Whether entries fit once all their results are placeholders."""
        return self.budget.fits(sum(item.placeholder_tokens for item in entries))

    def shown_to_fit(self, top: int, bottom: int) -> tuple[list[Entry], bool] | None:
        """Return the entries to show, and whether preserved messages are hidden so that they fit.

        Of preserved messages the whole top is hidden first, then the oldest of the bottom, down to
        the target, so that the next time is far. None when the last call group does not fit beside
        what is never hidden.
        """
        if self.fits_cleared(shown := self.between(top, bottom)):
            return shown, False
        cut = _first(self._group_cuts(bottom), lambda cut: self.meets_target(0, cut))
        if self.fits_cleared(shown := self.between(0, self.last_group if cut is None else cut)):
            return shown, True
        return (fewest, True) if self.fits_cleared(fewest := self.fewest) else None

    @property
    def fewest(self) -> list[Entry]:
        """The fewest entries that any plan shows."""
        return self.between(0, self.last_group, keeps_users=False)

    def turns_cut(self, turns: int) -> int:
        """Return the cut that leaves the last turns, at least the last call group."""
        starts = self._turn_cuts()
        if turns == 0:
            return self.last_group
        return starts[-turns] if turns <= len(starts) else self.hidden_to

    def target_cut(self, top: int, *, latest: int | None = None, inside_turns: bool = True) -> int:
        """Return the bottom cut that shows the most messages within the target, besides the top.

        A turn start is preferred if its messages use most of the target. The last turn is cut
        inside only with `inside_turns`, or if it does not fit. No cut is after `latest`, which by
        default is before the last call group.
        """
        latest = self.last_group if latest is None else latest
        starts = [cut for cut in self._turn_cuts() if top <= cut <= latest]
        inside = [cut for cut in self._group_cuts(max(top, self.hidden_to)) if cut <= latest]
        turn = _first(starts, lambda cut: self.meets_target(top, cut))
        group = _first(inside, lambda cut: self.meets_target(top, cut))
        if turn is not None:
            filled = tokens_of(self.between(top, turn)) >= MIN_FILL * self.budget.history_target
            return turn if group is None or filled else group
        if starts and not inside_turns and self.fits_cleared(self.between(top, starts[-1])):
            return starts[-1]
        return latest if group is None else group

    def _turn_cuts(self) -> list[int]:
        """Return the starts of the turns after the hidden range; the first may be partial."""
        indices = range(self.hidden_to, len(self.entries))
        return [i for i in indices if i == self.hidden_to or starts_turn(self.entries[i])]

    def _group_cuts(self, start: int) -> list[int]:
        """Return the cuts from `start` on that split no call group and show the last one."""
        indices = range(min(start, self.last_group), self.last_group + 1)
        return [index for index in indices if is_group_boundary(self.entries, index)]


def _first(cuts: Sequence[int], condition: Callable[[int], bool]) -> int | None:
    """Return the first cut that meets a condition, which all later cuts meet as well."""
    index = bisect_left(cuts, True, key=condition)
    return cuts[index] if index < len(cuts) else None
