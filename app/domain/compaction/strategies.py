"""Strategies: pure planners that say what the next view of a history should be (D).

1. A planner reads a history and a room, and returns a plan as data. It stores nothing.
2. A history is what the window shows verbatim now, each message at what it costs there. What is
   hidden lies in one range, `covered`; entries inside it are messages that were kept there.
3. The hidden range only ever grows, and is cut between call groups (A4, N10).
4. Some messages stay wherever they stand: pinned call groups (D8), with
   `preserve_user_messages` the newest user messages that together take at most half of what
   the target leaves for history, and the newest user message once it was kept (E6).
5. What was kept in the covered range and no longer has to be is hidden with the rest.
6. Ends that a strategy preserves grow, never shrink, to call groups, and to whole turns where
   that fits the target (decision 14). They shrink only when even trimmed they would not fit the
   capacity, preserved user messages last, pins never (C4). The last call group always stays.
7. Planning again right after applying a plan finds nothing to do (D7).
8. A plan goes down to the target and no further than the next place to cut: what a strategy
   preserves is the least, and as many of the newest messages stay as fit the target. Only a deep
   plan hides all that the strategy does not preserve.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Protocol, assert_never

from app.domain.common.messages import Role
from app.domain.common.policy import ChainStep, Policy, StrategyName
from app.domain.compaction.signals import GROUPS_KEPT_DEEP, MAX_FAILURES, Step, adjust, signals_of
from app.domain.conversations.turns import (
    Entry,
    call_groups,
    group_boundary_after,
    group_boundary_before,
    is_group_boundary,
    pinned_seqs,
)
from app.domain.conversations.view import Span, Summary


@dataclass(frozen=True, slots=True)
class HistoryBudget:
    """What the history has to fit into, in tokens of the effective window.

    `fixed` is taken by sections and tools, `summary` is kept free for a summary's text,
    `capacity` is the most a payload may have, `target` what a compaction aims for (D7).
    `summary_now` is what summaries take as long as no new one is made, by default as much.
    """

    capacity: int
    target: int
    fixed: int
    summary: int
    summary_now: int | None = None

    @property
    def aim(self) -> int:
        """Tokens that the target leaves for history."""
        return min(self.target, self.capacity) - self.fixed - self.summary

    def holds(self, history_tokens: int) -> bool:
        """Whether a history of this size fits beside the fixed regions and a summary."""
        return history_tokens + self.fixed + self.summary <= self.capacity

    def aims_at(self, history_tokens: int) -> bool:
        """Whether a history of this size is within the target of a compaction."""
        return history_tokens <= self.aim

    def is_within(self, history: Iterable[Entry]) -> bool:
        """Whether a history is within the target as it is, without a new summary."""
        return self.without_new_summary.aims_at(_cost(history))

    @property
    def without_new_summary(self) -> HistoryBudget:
        """The room there is as long as no new summary is made."""
        return self if self.summary_now is None else replace(self, summary=self.summary_now)


@dataclass(frozen=True, slots=True)
class NoCompaction:
    """Nothing to do; `reason` says why."""

    reason: str


@dataclass(frozen=True, slots=True)
class SlidingCut:
    """Show only the messages from `tail_start` on, and the pinned ones in `kept` before it."""

    tail_start: int
    kept: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """One compaction as planned: what to clear, what to hide, and what stands for it.

    `hidden` is the whole range afterwards, the former one included, and None when nothing more
    is hidden. `kept` are the seqs inside it that stay verbatim, `released` those that were kept
    in the former range and now are hidden. Tool results up to `trimmed_through` give way to
    placeholders. Without `summarises` what is newly hidden is dropped with a note.

    `chunks` are what a tree summarises one by one; together they cover what is newly hidden
    outside the former range, and the first takes in what was released. `shrunk` tells that
    preserved messages had to be given up to fit (C4). `otherwise` is what to do when no summary
    can be had (E9), and `drops` tells that messages go without the one that the policy wants.
    `freed_tokens` counts what messages no longer cost; the price of a new summary is not
    subtracted.
    """

    steps: tuple[str, ...]
    freed_tokens: int
    hidden: Span | None = None
    kept: tuple[int, ...] = ()
    trimmed_through: int = 0
    summarises: bool = True
    chunks: tuple[Span, ...] = ()
    shrunk: bool = False
    otherwise: CompactionPlan | None = None
    released: tuple[int, ...] = ()
    drops: bool = False


Plan = NoCompaction | SlidingCut | CompactionPlan

MIN_FILL = 0.75
"""A cut at a turn's start has to use this share of the target; else the turn is cut inside."""
_EMPTY = NoCompaction("no messages are shown")
_WITHIN = NoCompaction("already within the target")
_TOO_LARGE = NoCompaction("the last messages alone do not fit")
"""Hiding the rest would lose the newest user message, which alone may fit (E6)."""


class Strategy(Protocol):
    """One way to keep a history inside a window."""

    name: StrategyName

    def trigger(self, policy: Policy) -> float | None:
        """Return the share of the effective window at which a compaction is due (C3)."""
        ...

    def preserved(self, policy: Policy) -> tuple[int | None, int | None]:
        """Return how many messages stay verbatim at the top and bottom; None is all."""
        ...

    def plan(
        self,
        history: Sequence[Entry],
        covered: Span | None,
        room: HistoryBudget,
        policy: Policy,
        *,
        deep: bool = False,
        failures: int = 0,
    ) -> Plan:
        """Return what the next view should be, whatever the pressure is now.

        A `deep` plan keeps only what it must, where another goes down to the target (rule 8);
        `failures` counts the compactions of this conversation that failed in a row.
        """
        ...


class Sandwich:
    """Top, a summary of the middle, bottom; the bottom is as long as fits the target (D1)."""

    name = StrategyName.SANDWICH

    def trigger(self, policy: Policy) -> float | None:
        """Return S0's compression threshold."""
        return policy.sandwich.compression_threshold

    def preserved(self, policy: Policy) -> tuple[int | None, int | None]:
        """Return S0's preserve_top and preserve_bottom."""
        return policy.sandwich.preserve_top, policy.sandwich.preserve_bottom

    def plan(
        self,
        history: Sequence[Entry],
        covered: Span | None,
        room: HistoryBudget,
        policy: Policy,
        *,
        deep: bool = False,
        failures: int = 0,
    ) -> Plan:
        """Return the summary range that leaves both preserved ends verbatim.

        Once a range is covered, what stands before it is the top, be it nothing.
        """
        if not history:
            return _EMPTY
        few = len(history) <= policy.sandwich.preserve_top + policy.sandwich.preserve_bottom
        if covered is None and few and room.holds(_trimmed_cost(history)):
            return NoCompaction("not enough messages")
        if not deep and room.is_within(history):
            return _WITHIN
        scene = _plan_input(history, covered, room, policy)
        top, bottom = self._ends(scene)
        if not deep:
            bottom = scene.target_cut(top, latest=bottom)
        return _summary_plan(scene, top, bottom, self.name)

    def _ends(self, scene: _PlanInput) -> tuple[int, int]:
        """Return the cuts after the top and before the bottom, grown to safe boundaries."""
        history, ends = scene.history, scene.policy.sandwich
        if scene.covered is None:
            top = group_boundary_after(history, ends.preserve_top)
        else:
            top = scene.inner
        bottom = group_boundary_before(history, len(history) - ends.preserve_bottom)
        bottom = max(bottom, top, scene.tail)

        turn = _turn_start(history, bottom, max(top, scene.tail))
        if turn is not None and (scene.covered is not None or scene.hides(top, turn)):
            if not scene.aims(top, turn):
                return top, bottom  # nor does the top grow: the newer messages come first
            bottom = turn
        if scene.covered is None:
            whole = next((i for i in range(top, bottom) if history[i].role is Role.USER), bottom)
            if scene.hides(whole, bottom) and scene.aims(whole, bottom):
                top = whole
        return top, bottom


class SlidingWindow:
    """The last N messages; what came before is not shown (D2)."""

    name = StrategyName.SLIDING_WINDOW

    def trigger(self, policy: Policy) -> float | None:
        """Return None: the window moves by itself (decision 11)."""
        return None

    def preserved(self, policy: Policy) -> tuple[int | None, int | None]:
        """Return nothing at the top, and S0's keep_last_n at the bottom."""
        return 0, policy.sliding_window.keep_last_n

    def plan(
        self,
        history: Sequence[Entry],
        covered: Span | None,
        room: HistoryBudget,
        policy: Policy,
        *,
        deep: bool = False,
        failures: int = 0,
    ) -> Plan:
        """Return the window that shows the last N messages, grown to whole call groups."""
        cut = group_boundary_before(history, len(history) - policy.sliding_window.keep_last_n)
        pinned = pinned_seqs(history)
        kept = tuple(entry.seq for entry in history[:cut] if entry.seq in pinned)
        if len(kept) == cut:
            return NoCompaction("all messages are inside the window")
        return SlidingCut(history[cut].seq, kept)


class FullHistory:
    """Everything, always (D2)."""

    name = StrategyName.FULL_HISTORY

    def trigger(self, policy: Policy) -> float | None:
        """Return None: it never compacts (decision 11)."""
        return None

    def preserved(self, policy: Policy) -> tuple[int | None, int | None]:
        """Return None for both ends: all messages stay."""
        return None, None

    def plan(
        self,
        history: Sequence[Entry],
        covered: Span | None,
        room: HistoryBudget,
        policy: Policy,
        *,
        deep: bool = False,
        failures: int = 0,
    ) -> Plan:
        """Return that nothing is done, even when forced."""
        return NoCompaction("full_history never compacts")


class TreeSummary:
    """As many of the newest turns as fit the target, after summaries of summaries (D3)."""

    name = StrategyName.TREE_SUMMARY

    def trigger(self, policy: Policy) -> float | None:
        """Return S1's threshold."""
        return policy.compaction.threshold_ratio

    def preserved(self, policy: Policy) -> tuple[int | None, int | None]:
        """Return that no more than the newest message is sure to stay."""
        return 0, 1

    def plan(
        self,
        history: Sequence[Entry],
        covered: Span | None,
        room: HistoryBudget,
        policy: Policy,
        *,
        deep: bool = False,
        failures: int = 0,
    ) -> Plan:
        """Return the chunks to summarise so that the longest tail within the target stays.

        What stands before the covered range, such as pins, stays as it does in a sandwich: a
        summary of it would come too late to be in order.
        """
        if not history:
            return _EMPTY
        if not deep and room.is_within(history):
            return _WITHIN
        scene = _plan_input(history, covered, room, policy)
        top = scene.inner if covered is not None else 0
        cut = scene.target_cut(top)
        if deep:
            cut = max(cut, scene.turns_cut(policy.compaction.retain_last_turns))
        plan = _summary_plan(scene, top, cut, self.name)
        if isinstance(plan, CompactionPlan) and not self._chunks(scene, plan):
            # What was released joins the first chunk, so there has to be one.
            further = scene.first_cut(scene.hides_after)
            if further is None:
                return NoCompaction("nothing is left to summarise but what was kept so far")
            plan = _summary_plan(scene, top, further, self.name)
        if isinstance(plan, CompactionPlan):
            plan = replace(plan, chunks=self._chunks(scene, plan))
        return plan

    def _chunks(self, scene: _PlanInput, plan: CompactionPlan) -> tuple[Span, ...]:
        """Cut what is newly hidden, before and after the covered range, into chunks."""
        assert plan.hidden is not None
        parts = [plan.hidden]
        if (covered := scene.covered) is not None:
            parts = [Span(plan.hidden.start, covered.start), Span(covered.end, plan.hidden.end)]
        kept = set(plan.kept)
        return tuple(
            chunk
            for part in parts
            for chunk in _chunked(
                [item for item in scene.history if part.holds(item.seq) and item.seq not in kept],
                part,
                scene.policy.tree_summary.chunk_size,
            )
        )


class RetainSummary:
    """A summary of everything but the last turns, and of as many more as fit (D4, E4)."""

    name = StrategyName.RETAIN_SUMMARY

    def trigger(self, policy: Policy) -> float | None:
        """Return S1's threshold."""
        return policy.compaction.threshold_ratio

    def preserved(self, policy: Policy) -> tuple[int | None, int | None]:
        """Return the least that retain_last_turns keeps: a message of each turn."""
        return 0, max(1, policy.compaction.retain_last_turns)

    def plan(
        self,
        history: Sequence[Entry],
        covered: Span | None,
        room: HistoryBudget,
        policy: Policy,
        *,
        deep: bool = False,
        failures: int = 0,
    ) -> Plan:
        """Return the summary range that leaves the last turns verbatim."""
        if not history:
            return _EMPTY
        if not deep and room.is_within(history):
            return _WITHIN
        scene = _plan_input(history, covered, room, policy)
        cut = scene.turns_cut(policy.compaction.retain_last_turns)
        if not deep:
            cut = scene.target_cut(0, latest=cut)
        return _summary_plan(scene, 0, cut, self.name)


class Chain:
    """Old tool results are cleared, then a summary is made, then messages are dropped (D5)."""

    name = StrategyName.CHAIN

    def trigger(self, policy: Policy) -> float | None:
        """Return S1's threshold."""
        return policy.compaction.threshold_ratio

    def preserved(self, policy: Policy) -> tuple[int | None, int | None]:
        """Return that no more than the newest message is sure to stay."""
        return 0, 1

    def plan(
        self,
        history: Sequence[Entry],
        covered: Span | None,
        room: HistoryBudget,
        policy: Policy,
        *,
        deep: bool = False,
        failures: int = 0,
    ) -> Plan:
        """Return what the steps come to, each run only if the history is still over the target.

        Who asks for a deep plan wants a summary, however many failed before. Where tool output
        is left alone (F1), clearing is no step.
        """
        if not history:
            return _EMPTY
        start = _ChainProgress(
            _plan_input(history, covered, room.without_new_summary, policy), room
        )
        failures = 0 if deep else failures
        steps = [
            step
            for step in policy.chain
            if policy.tool_output.enabled or step is not ChainStep.CLEAR_TOOL_RESULTS
        ]
        plan = _chain_plan(start, steps, deep, failures)
        if isinstance(plan, CompactionPlan) and plan.summarises:
            rest = [step for step in steps if step is not ChainStep.SUMMARIZE]
            without = _chain_plan(start, rest, deep, failures)
            plan = replace(plan, otherwise=without if isinstance(without, CompactionPlan) else None)
        elif isinstance(plan, CompactionPlan) and failures >= MAX_FAILURES:
            # Messages are left out before the summariser is asked again.
            wants = ChainStep.SUMMARIZE in _before(steps, ChainStep.TRUNCATE)
            plan = replace(plan, drops=plan.hidden is not None and wants)
        return plan


STRATEGIES: dict[StrategyName, Strategy] = {
    strategy.name: strategy
    for strategy in (
        Sandwich(),
        SlidingWindow(),
        FullHistory(),
        TreeSummary(),
        RetainSummary(),
        Chain(),
    )
}


# --- the tree -------------------------------------------------------------------------------


def next_fold(
    summaries: Sequence[Summary], levels: int, fanout: int, most_tokens: int
) -> tuple[int, int] | None:
    """Return which summaries `[i, j)` of a tree to summarise into one of the next level (D3).

    1. A level below the top one that has `fanout` nodes folds its oldest `fanout`, lowest level
       first.
    2. While the summaries take more than `most_tokens`, the lowest level that has two nodes
       folds whole, even at the top, so that they fit and nothing is summarised twice at a level.
    3. Otherwise nothing folds. With one node a level nothing does, whatever it takes.

    Levels never rise towards newer nodes, before and after.
    """
    fanout = max(fanout, 2)
    runs: list[tuple[int, int, int]] = []
    for level, nodes in groupby(summaries, key=lambda node: node.level):
        start = runs[-1][2] if runs else 0
        runs.append((level, start, start + len(list(nodes))))
    runs.sort()
    for level, start, end in runs:
        if level < levels and end - start >= fanout:
            return start, start + fanout
    if sum(node.tokens for node in summaries) > most_tokens:
        return next(((start, end) for _, start, end in runs if end - start > 1), None)
    return None


def _chunked(entries: Sequence[Entry], part: Span, size: int) -> list[Span]:
    """Cut a part of a range into chunks of about `size` of its entries, between call groups.

    The chunks cover the part without a gap; a small rest joins the one before.
    """
    starts: list[int] = []
    count = size
    for entry in entries:
        if count >= size and entry.role is not Role.TOOL:
            starts.append(entry.seq)
            count = 0
        count += 1
    if len(starts) > 1 and count < size // 2:
        starts.pop()
    bounds = [part.start, *starts[1:], part.end]
    return [Span(*pair) for pair in pairwise(bounds)] if starts else []


# --- what stays between two cuts ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _PlanInput:
    """What a planner looks at, and what stays of it wherever it is cut (rule 4).

    `inner` is the index of the first entry in the covered range or after it, `tail` of the
    first after it, `last` of the last call group after it. A later bottom never shows more.
    """

    history: Sequence[Entry]
    covered: Span | None
    room: HistoryBudget
    policy: Policy
    pinned: frozenset[int]
    inner: int
    tail: int
    last: int

    def shown(self, top: int, bottom: int, *, keeps_users: bool = True) -> list[Entry]:
        """Return what is shown once the messages from `top` to `bottom` are hidden."""
        between = self.history[top:bottom]
        stays = self._stays(between, keeps_users)
        middle = [item for item in between if item.seq in stays] if stays else []
        return [*self.history[:top], *middle, *self.history[bottom:]]

    def hides(self, top: int, bottom: int) -> bool:
        """Whether there is a message between two cuts that would not stay."""
        return len(self.shown(top, bottom)) < len(self.history)

    def hides_after(self, bottom: int) -> bool:
        """Whether a cut hides a message after the covered range."""
        return self.hides(self.tail, bottom)

    def aims(self, top: int, bottom: int) -> bool:
        """Whether what two cuts show is within the target."""
        return self.room.aims_at(_cost(self.shown(top, bottom)))

    def fills(self, top: int, bottom: int) -> bool:
        """Whether what two cuts show uses most of what the target leaves for history."""
        return _cost(self.shown(top, bottom)) >= MIN_FILL * self.room.aim

    def holds(self, top: int, bottom: int) -> bool:
        """Whether what two cuts show fits once its tool results are trimmed."""
        return self.room.holds(_trimmed_cost(self.shown(top, bottom)))

    def fitted(self, top: int, bottom: int) -> tuple[list[Entry], bool] | None:
        """Return what two cuts show, and whether it was made less to fit when trimmed (C4).

        Preserved messages are given up from the oldest; None when the last call group and the
        pins do not fit.
        """
        if self.holds(top, bottom):
            return self.shown(top, bottom), False
        cut = _first(self._group_cuts(bottom), lambda cut: self.holds(0, cut))
        if cut is not None:
            return self.shown(0, cut), True
        least = self.shown(0, self.last, keeps_users=False)
        return (least, True) if self.room.holds(_trimmed_cost(least)) else None

    def turns_cut(self, turns: int) -> int:
        """Return the cut that leaves the last turns, at least the last call group."""
        starts = self._turn_cuts()
        if turns == 0:
            return self.last
        return starts[-turns] if turns <= len(starts) else self.tail

    def target_cut(self, top: int, *, latest: int | None = None, inside_turns: bool = True) -> int:
        """Return the cut that leaves the longest tail within the target, beside a top.

        Turn starts come first, as long as they leave most of the target in use (rule 8). The last
        turn is cut inside only if that is allowed, or if it does not fit. No cut is after
        `latest`, which by default leaves the last call group.
        """
        latest = self.last if latest is None else latest
        starts = [cut for cut in self._turn_cuts() if top <= cut <= latest]
        inside = [cut for cut in self._group_cuts(max(top, self.tail)) if cut <= latest]
        turn = _first(starts, lambda cut: self.aims(top, cut))
        group = _first(inside, lambda cut: self.aims(top, cut))
        if turn is not None:
            return turn if group is None or self.fills(top, turn) else group
        if starts and not inside_turns and self.holds(top, starts[-1]):
            return starts[-1]
        return latest if group is None else group

    def first_cut(self, wanted: Callable[[int], bool]) -> int | None:
        """Return the first cut for which something holds, turn starts first.

        What holds at a cut has to hold at all later ones.
        """
        cut = _first(self._turn_cuts(), wanted)
        return cut if cut is not None else _first(self._group_cuts(self.tail), wanted)

    def _turn_cuts(self) -> list[int]:
        """Return the starts of the turns after the covered range, its first one maybe partial."""
        indices = range(self.tail, len(self.history))
        return [i for i in indices if i == self.tail or self.history[i].role is Role.USER]

    def _group_cuts(self, start: int) -> list[int]:
        """Return the legal cuts from `start` on that leave the last call group."""
        indices = range(min(start, self.last), self.last + 1)
        return [index for index in indices if is_group_boundary(self.history, index)]

    def _stays(self, between: Sequence[Entry], keeps_users: bool) -> set[int]:
        """Return the seqs that stay of the messages between two cuts (rule 4)."""
        stays = {item.seq for item in between if item.seq in self.pinned} if self.pinned else set()
        if self.covered is not None:
            newest = next((i.seq for i in reversed(self.history) if i.role is Role.USER), 0)
            stays |= {newest} if self.covered.holds(newest) else set()
        left = self.room.aim // 2 if self.policy.preserve_user_messages and keeps_users else 0
        for item in reversed(between) if left > 0 else ():
            if item.role is not Role.USER or item.seq in self.pinned:
                continue
            left -= item.tokens
            if left < 0:
                break
            stays.add(item.seq)
        return stays


def _plan_input(
    history: Sequence[Entry], covered: Span | None, room: HistoryBudget, policy: Policy
) -> _PlanInput:
    inner = sum(entry.seq < covered.start for entry in history) if covered is not None else 0
    tail = sum(entry.seq < covered.end for entry in history) if covered is not None else 0
    last = max(tail, group_boundary_before(history, len(history) - 1))
    return _PlanInput(history, covered, room, policy, pinned_seqs(history), inner, tail, last)


def _first(cuts: Sequence[int], wanted: Callable[[int], bool]) -> int | None:
    """Return the first cut for which something holds that then holds for all later ones."""
    index = bisect_left(cuts, True, key=wanted)
    return cuts[index] if index < len(cuts) else None


def _turn_start(history: Sequence[Entry], index: int, least: int) -> int | None:
    """Return the start of the turn that `index` stands in, when it is not before `least`."""
    while index >= least and index < len(history):
        if history[index].role is Role.USER:
            return index
        index -= 1
    return None


def _cost(history: Iterable[Entry]) -> int:
    return sum(entry.tokens for entry in history)


def _trimmed_cost(history: Iterable[Entry]) -> int:
    return sum(entry.trimmed_tokens for entry in history)


# --- from what is shown to a plan -----------------------------------------------------------


def _summary_plan(
    scene: _PlanInput, top: int, bottom: int, name: StrategyName
) -> NoCompaction | CompactionPlan:
    """Return the plan that has a summary stand for what lies between two cuts."""
    fitted = scene.fitted(top, bottom)
    if fitted is None:
        return _TOO_LARGE
    shown, shrunk = fitted
    if len(shown) == len(scene.history):
        return NoCompaction("no messages between the preserved ends")
    return _compact(scene, shown, (name.value,), shrunk=shrunk)


def _compact(
    scene: _PlanInput, shown: Sequence[Entry], steps: tuple[str, ...], *, shrunk: bool
) -> CompactionPlan:
    """Return the plan after which these messages are shown, maybe at a lower cost."""
    left = {entry.seq for entry in shown}
    gone = [entry.seq for entry in scene.history if entry.seq not in left]
    freed = _cost(scene.history) - _cost(shown)
    hidden = _hull(gone, scene.covered)
    if not gone or hidden is None:
        return CompactionPlan(steps, freed, summarises=False)
    return CompactionPlan(
        steps,
        freed,
        hidden,
        kept=tuple(entry.seq for entry in shown if hidden.holds(entry.seq)),
        shrunk=shrunk,
        released=tuple(seq for seq in gone if scene.covered and scene.covered.holds(seq)),
    )


def _hull(gone: Sequence[int], covered: Span | None) -> Span | None:
    """Return the range that holds what goes and what was hidden before."""
    if not gone:
        return covered
    if covered is None:
        return Span(gone[0], gone[-1] + 1)
    return Span(min(gone[0], covered.start), max(gone[-1] + 1, covered.end))


# --- the steps of a chain -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ChainProgress:
    """How far the steps of a chain have come: what they leave, and which of them ran.

    `room` is what is left beside a new summary or note; the scene's is wider until then.
    """

    scene: _PlanInput
    room: HistoryBudget
    steps: tuple[str, ...] = ()
    trimmed_through: int = 0
    shrunk: bool = False

    def ran(self, step: Step, shown: Sequence[Entry], *, shrunk: bool = False) -> _ChainProgress:
        """Return the progress once a step left these messages."""
        scene = self.scene
        left = {entry.seq for entry in shown}
        gone = [entry.seq for entry in scene.history if entry.seq not in left]
        after = _plan_input(shown, _hull(gone, scene.covered), scene.room, scene.policy)
        steps = tuple(dict.fromkeys((*self.steps, step.name.value)))
        return replace(self, scene=after, steps=steps, shrunk=self.shrunk or shrunk)


def _chain_plan(
    start: _ChainProgress, names: Sequence[ChainStep], deep: bool, failures: int
) -> NoCompaction | CompactionPlan:
    """Run the steps, adjusted to what is left each time, until they change nothing (rule 7)."""
    progress, before = start, None
    while progress != before:
        before = progress
        for step in adjust(names, signals_of(progress.scene.history, failures)):
            if deep or not progress.scene.room.aims_at(_cost(progress.scene.history)):
                progress = _after(step, progress, deep)
    if not progress.steps:
        within = start.scene.room.aims_at(_cost(start.scene.history))
        return NoCompaction(
            "already within the target" if within else "no step of the chain frees more"
        )
    plan = _compact(start.scene, progress.scene.history, progress.steps, shrunk=progress.shrunk)
    summarises = ChainStep.SUMMARIZE in progress.steps
    return replace(plan, trimmed_through=progress.trimmed_through, summarises=summarises)


def _before(steps: Sequence[ChainStep], step: ChainStep) -> Sequence[ChainStep]:
    return steps[: steps.index(step)] if step in steps else ()


def _after(step: Step, progress: _ChainProgress, deep: bool) -> _ChainProgress:
    match step.name:
        case ChainStep.CLEAR_TOOL_RESULTS:
            return _cleared(step, progress, deep)
        case ChainStep.SUMMARIZE | ChainStep.TRUNCATE:
            narrow = replace(progress, scene=replace(progress.scene, room=progress.room))
            cut = _cut_down(step, narrow, deep)
            return progress if cut is narrow else cut
        case _:
            assert_never(step.name)


def _cleared(step: Step, progress: _ChainProgress, deep: bool) -> _ChainProgress:
    """Clear tool results, oldest first, never protected ones nor those of the newest groups."""
    scene = progress.scene
    groups = [start for start, end in call_groups(scene.history) if end - start > 1]
    kept = GROUPS_KEPT_DEEP if deep else step.groups_kept
    until = groups[-kept] if len(groups) > kept else 0
    left, cost, through = list(scene.history), _cost(scene.history), 0
    for index, entry in enumerate(scene.history[:until]):
        if not deep and scene.room.aims_at(cost):
            break
        if entry.clearable and entry.seq not in scene.pinned:
            cost -= entry.tokens - entry.trimmed_tokens
            left[index] = replace(entry, tokens=entry.trimmed_tokens)
            through = entry.seq
    if not through:
        return progress
    through = max(progress.trimmed_through, through)
    return replace(progress.ran(step, left), trimmed_through=through)


def _cut_down(step: Step, progress: _ChainProgress, deep: bool) -> _ChainProgress:
    """Hide all but a tail within the target, or but the last turns."""
    scene = progress.scene
    cut = scene.target_cut(0, inside_turns=step.inside_turns)
    if deep:
        cut = max(cut, scene.turns_cut(scene.policy.compaction.retain_last_turns))
    fitted = scene.fitted(0, cut)
    if fitted is None or len(fitted[0]) == len(scene.history):
        return progress
    shown, shrunk = fitted
    return progress.ran(step, shown, shrunk=shrunk)
