"""The search for cuts: where a history may be cut, and what stays of it then.

A cut is an index into the history. The messages between two cuts, top and bottom, are hidden, but
for those that stay (rule 4 of `base`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.domain.common.messages import Role
from app.domain.common.policy import Policy
from app.domain.compaction.plans import (
    CompactionPlan,
    HistoryBudget,
    placeholder_tokens_of,
    tokens_of,
)
from app.domain.conversations.turns import (
    Entry,
    group_boundary_before,
    is_group_boundary,
    pinned_seqs,
)
from app.domain.conversations.view import Span

MIN_FILL = 0.75
"""A cut at a turn's start has to use this share of the target; else the turn is cut inside."""


@dataclass(frozen=True, slots=True)
class CutSearch:
    """A history, its budget, and the indices that cuts are searched between.

    `inner` is the index of the first entry in the covered range or after it, `tail` of the first
    after it, `last` of the last call group after it. A later bottom never shows more.
    """

    history: Sequence[Entry]
    covered: Span | None
    budget: HistoryBudget
    policy: Policy
    pinned: frozenset[int]
    inner: int
    tail: int
    last: int

    @classmethod
    def of(
        cls, history: Sequence[Entry], covered: Span | None, budget: HistoryBudget, policy: Policy
    ) -> CutSearch:
        """Return the search for a history, whose hidden range is `covered`."""
        inner = sum(entry.seq < covered.start for entry in history) if covered is not None else 0
        tail = sum(entry.seq < covered.end for entry in history) if covered is not None else 0
        last = max(tail, group_boundary_before(history, len(history) - 1))
        return cls(history, covered, budget, policy, pinned_seqs(history), inner, tail, last)

    def shown(self, top: int, bottom: int, *, keeps_users: bool = True) -> list[Entry]:
        """Return what is shown once the messages from `top` to `bottom` are hidden."""
        between = self.history[top:bottom]
        stays = self._stays(between, keeps_users)
        middle = [item for item in between if item.seq in stays] if stays else []
        return [*self.history[:top], *middle, *self.history[bottom:]]

    def hides(self, top: int, bottom: int) -> bool:
        """Whether there is a message between two cuts that would not stay."""
        return len(self.shown(top, bottom)) < len(self.history)

    def meets_target(self, top: int, bottom: int) -> bool:
        """Whether what two cuts show is within the target."""
        return self.budget.meets_target(tokens_of(self.shown(top, bottom)))

    def fits(self, top: int, bottom: int) -> bool:
        """Whether what two cuts show fits the capacity once its tool results are trimmed."""
        return self.budget.fits(placeholder_tokens_of(self.shown(top, bottom)))

    def fitted(self, top: int, bottom: int) -> tuple[list[Entry], bool] | None:
        """Return what two cuts show, and whether preserved messages were hidden to fit.

        Preserved messages are hidden from the oldest on. None when the last call group and the
        pins do not fit.
        """
        if self.fits(top, bottom):
            return self.shown(top, bottom), False
        cut = _first(self._group_cuts(bottom), lambda cut: self.fits(0, cut))
        if cut is not None:
            return self.shown(0, cut), True
        smallest = self.shown(0, self.last, keeps_users=False)
        return (smallest, True) if self.budget.fits(placeholder_tokens_of(smallest)) else None

    def turns_cut(self, turns: int) -> int:
        """Return the cut that leaves the last turns, at least the last call group."""
        starts = self._turn_cuts()
        if turns == 0:
            return self.last
        return starts[-turns] if turns <= len(starts) else self.tail

    def target_cut(self, top: int, *, latest: int | None = None, inside_turns: bool = True) -> int:
        """Return the cut that leaves the longest tail within the target, beside a top.

        Turn starts come first, as long as they leave most of the target in use. The last turn is
        cut inside only if that is allowed, or if it does not fit. No cut is after `latest`, which
        by default leaves the last call group.
        """
        latest = self.last if latest is None else latest
        starts = [cut for cut in self._turn_cuts() if top <= cut <= latest]
        inside = [cut for cut in self._group_cuts(max(top, self.tail)) if cut <= latest]
        turn = _first(starts, lambda cut: self.meets_target(top, cut))
        group = _first(inside, lambda cut: self.meets_target(top, cut))
        if turn is not None:
            return turn if group is None or self._fills(top, turn) else group
        if starts and not inside_turns and self.fits(top, starts[-1]):
            return starts[-1]
        return latest if group is None else group

    def first_hiding_cut(self) -> int | None:
        """Return the first cut that hides a message after the covered range, turn starts first."""
        cuts = (self._turn_cuts(), self._group_cuts(self.tail))
        hiding = (_first(starts, lambda cut: self.hides(self.tail, cut)) for starts in cuts)
        return next((cut for cut in hiding if cut is not None), None)

    def plan_for(
        self, shown: Sequence[Entry], steps: tuple[str, ...], *, shrunk: bool
    ) -> CompactionPlan:
        """Return the plan after which these messages are shown, possibly at a lower cost."""
        left = {entry.seq for entry in shown}
        gone = [entry.seq for entry in self.history if entry.seq not in left]
        freed = tokens_of(self.history) - tokens_of(shown)
        hidden = enclosing_range(gone, self.covered)
        if not gone or hidden is None:
            return CompactionPlan(steps, freed, summarises=False)
        return CompactionPlan(
            steps,
            freed,
            hidden,
            kept=tuple(entry.seq for entry in shown if hidden.holds(entry.seq)),
            shrunk=shrunk,
            released=tuple(seq for seq in gone if self.covered and self.covered.holds(seq)),
        )

    def _fills(self, top: int, bottom: int) -> bool:
        """Whether what two cuts show uses most of what the target leaves for history."""
        return tokens_of(self.shown(top, bottom)) >= MIN_FILL * self.budget.history_target

    def _turn_cuts(self) -> list[int]:
        """Return the starts of the turns after the covered range, the first maybe partial."""
        indices = range(self.tail, len(self.history))
        return [i for i in indices if i == self.tail or self.history[i].role is Role.USER]

    def _group_cuts(self, start: int) -> list[int]:
        """Return the legal cuts from `start` on that leave the last call group."""
        indices = range(min(start, self.last), self.last + 1)
        return [index for index in indices if is_group_boundary(self.history, index)]

    def _stays(self, between: Sequence[Entry], keeps_users: bool) -> set[int]:
        """Return the seqs that stay of the messages between two cuts."""
        stays = {item.seq for item in between if item.seq in self.pinned} if self.pinned else set()
        if self.covered is not None:
            newest = next((i.seq for i in reversed(self.history) if i.role is Role.USER), 0)
            stays |= {newest} if self.covered.holds(newest) else set()
        if not (self.policy.preserve_user_messages and keeps_users):
            return stays
        left = self.budget.history_target // 2
        for item in reversed(between) if left > 0 else ():
            if item.role is not Role.USER or item.seq in self.pinned:
                continue
            left -= item.tokens
            if left < 0:
                break
            stays.add(item.seq)
        return stays


def enclosing_range(gone: Sequence[int], covered: Span | None) -> Span | None:
    """Return the smallest range that holds these seqs and the covered range."""
    if not gone:
        return covered
    if covered is None:
        return Span(gone[0], gone[-1] + 1)
    return Span(min(gone[0], covered.start), max(gone[-1] + 1, covered.end))


def _first(cuts: Sequence[int], condition: Callable[[int], bool]) -> int | None:
    index = bisect_left(cuts, True, key=condition)
    return cuts[index] if index < len(cuts) else None
