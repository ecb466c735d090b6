"""Visibility: one state for every message, and the compaction that explains it.

[transcript.visibility]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from app.compaction.planning import tree_chunks
from app.compaction.reduction import plan_clearing, spans_after_halving
from app.compaction.strategies import STRATEGIES
from app.compaction.strategies.kinds import next_merge
from app.conversations.compaction_receipt import Compaction, Trigger
from app.conversations.plans import CompactionPlan, HistoryBudget
from app.conversations.turns import Entry, entry, never_cleared
from app.conversations.view import Span, Summary, View, overlap, spans_beside
from app.conversations.views import shown_entries, view_after, with_omission_note
from app.conversations.visibility import State, Visibility, visibilities
from app.conversations.windows.active_window import ActiveWindow
from app.formats.message import Role
from app.policy.policy import Policy, StrategyName, TreeSummaryPolicy
from tests.domain.histories import QUICK, entries, pinned_at

U, A, T = Role.USER, Role.ASSISTANT, Role.TOOL
AT = datetime(2026, 1, 5, tzinfo=UTC)
FORCED = StrategyName.SANDWICH, StrategyName.TREE_SUMMARY, StrategyName.RETAIN_SUMMARY


def log(count: int) -> list[Entry]:
    """Return this many user messages."""
    return [entry(seq, U, 50) for seq in range(1, count + 1)]


def receipt(
    name: str,
    view: View,
    before: Compaction | None = None,
    made: Sequence[Summary] = (),
    trigger: Trigger = Trigger.FORCED,
) -> Compaction:
    """Return the receipt of a compaction that led from one view to another."""
    return Compaction(
        compaction_id=name,
        parent_id=before.compaction_id if before is not None else None,
        trigger=trigger,
        strategy="sandwich",
        policy_strategy="sandwich",
        strategies_run=("sandwich",),
        hidden_span=view.hidden or Span(1, view.results_cleared_through + 1),
        view=view,
        made=tuple(made),
    )


def view_of(hidden: Span | None, *summaries: Summary, kept: Sequence[int] = ()) -> View:
    """Return a view that hides a range, with its summaries."""
    return View(spans=spans_beside(hidden, kept), summaries=summaries)


def states(found: dict[int, Visibility]) -> list[State]:
    """Return the states in log order."""
    return [found[seq].state for seq in sorted(found)]


def causes(found: dict[int, Visibility]) -> list[str | None]:
    """Return the compactions in log order."""
    return [found[seq].compaction_id for seq in sorted(found)]


# --- one by one -----------------------------------------------------------------------------


def test_a_cause_is_unknown_until_its_receipt_is_read() -> None:
    """Who hid a message is said once the receipt is read, not before."""
    first = receipt("first", replace(view_of(Span(1, 3)), results_cleared_through=5))
    second = receipt("second", replace(view_of(Span(1, 4)), results_cleared_through=5), first)
    results = [entry(seq, T, 900) for seq in range(1, 7)]
    part = visibilities(results, second.view, [second])
    assert causes(part) == [None] * 6
    assert [mark.is_explained for mark in part.values()] == [False] * 5 + [True]
    whole = visibilities(results, second.view, [second, first])
    assert causes(whole) == ["first", "first", "second", "first", "first", None]
    assert states(part) == states(whole)


def test_outside_the_active_window() -> None:
    """Compactions do not change that; restored messages have the time of their restoration.

    [window.cut]
    """
    window = ActiveWindow(8).with_restored([Span(2, 4)], AT)
    view = View(spans=window.spans, window=window.spans)
    found = visibilities(log(9), view, (), window.restored)
    outside, verbatim = State.OUTSIDE, State.VERBATIM
    assert states(found) == [outside, verbatim, verbatim, *[outside] * 4, verbatim, verbatim]
    assert [seq for seq, mark in found.items() if mark.restored_at == AT] == [2, 3]


# --- whole stories --------------------------------------------------------------------------


SMALL_TREE = TreeSummaryPolicy(chunk_size=3)


@dataclass
class Story:
    """A log that grows, with the receipts of what was made of it, newest first."""

    history: list[Entry]
    state: int = 0
    view: View = field(default_factory=View)
    receipts: list[Compaction] = field(default_factory=list)
    policy: Policy = field(default_factory=lambda: Policy(tree_summary=SMALL_TREE))

    @property
    def log(self) -> list[Entry]:
        """Return this many user messages."""
        return self.history[: self.state]

    @property
    def visible(self) -> list[Entry]:
        """Those of them that the view shows."""
        return [item for item in self.log if self.view.shows(item.seq)]

    def apply(self, view: View, made: Sequence[Summary], trigger: Trigger) -> None:
        """Write a receipt, and show its view from now on."""
        before = self.receipts[0] if self.receipts else None
        name = f"r{len(self.receipts)}"
        self.receipts.insert(0, receipt(name, view, before, made, trigger))
        self.view = view

    def compact(self, strategy: StrategyName, target: int) -> None:
        """Compact as a strategy plans it."""
        room = HistoryBudget(capacity=10**6, target=target, fixed=0, summary=64)
        shown = shown_entries(self.visible, self.view)
        plan = STRATEGIES[strategy].plan(shown, self.view.hidden, room, self.policy, deep=True)
        if not isinstance(plan, CompactionPlan):
            return
        made: list[Summary] = []
        nodes = list(self.view.summaries)
        if plan.hidden is not None and plan.summarises:
            made = self._tree(plan, nodes) if plan.chunks else [Summary(plan.hidden, "so far", 9)]
            nodes = nodes if plan.chunks else made
        whole = never_cleared(self.visible)
        self.apply(view_after(self.view, plan, nodes, None, whole), made, Trigger.FORCED)

    def _tree(self, plan: CompactionPlan, nodes: list[Summary]) -> list[Summary]:
        made: list[Summary] = []
        released = [Span(seq, seq + 1) for seq in plan.released_seqs]
        for chunk in tree_chunks(plan, self.view, 3):
            sources = (*released, chunk) if not made else (chunk,)
            made.append(Summary(chunk, "node", 9, 1, sources))
            nodes.append(made[-1])
        while fold := next_merge(nodes, 3, 10**6):
            parts = nodes[slice(*fold)]
            span = Span(parts[0].span.start, parts[-1].span.end)
            made.append(Summary(span, "fold", 9, parts[0].level + 1, tuple(p.span for p in parts)))
            nodes[slice(*fold)] = made[-1:]
        return made

    def cut(self) -> None:
        """Leave the oldest half of the turns out."""
        spans = spans_after_halving(shown_entries(self.visible, self.view), self.view.hidden)
        if spans is not None:
            view = replace(self.view, spans=overlap(spans, self.view.window))
            self.apply(with_omission_note(view), (), Trigger.EMERGENCY)

    def clear(self) -> None:
        """Clear tool results."""
        plan = plan_clearing(self.visible, self.view, 100, 1)
        if isinstance(plan, CompactionPlan):
            whole = never_cleared(self.visible)
            view = view_after(self.view, plan, self.view.summaries, None, whole)
            self.apply(view, (), Trigger.TOOL_OUTPUT)


@st.composite
def stories(draw: st.DrawFn) -> Story:
    """Draw a log, its pins, and the reductions while it grows, with one strategy."""
    parts = draw(st.lists(entries(4), min_size=3, max_size=7))
    sizes = [item for part in parts for item in part]
    history = [entry(seq, item.role, item.tokens) for seq, item in enumerate(sizes, start=1)]
    pins = draw(st.lists(st.integers(1, len(history)), max_size=3))
    users = draw(st.booleans())
    story = Story(pinned_at(history, pins))
    story.policy = story.policy.model_copy(update={"preserve_user_messages": users})
    strategy = draw(st.sampled_from(FORCED))
    for part in parts:
        story.state += len(part)
        match draw(st.sampled_from(["compact", "compact", "cut", "clear"])):
            case "compact":
                story.compact(strategy, draw(st.sampled_from([100, 400, 2000])))
            case "cut":
                story.cut()
            case _:
                story.clear()
    return story


@QUICK
@given(stories())
def test_exactly_the_shown_messages_are_verbatim_or_cleared(story: Story) -> None:
    """Every message has one state."""
    found = visibilities(story.log, story.view, story.receipts)
    assert list(found) == [item.seq for item in story.log]
    costs = {item.seq: item.tokens for item in shown_entries(story.log, story.view)}
    shown = {State.VERBATIM, State.CLEARED}
    assert {seq for seq, mark in found.items() if mark.state in shown} == set(costs)
    for item in story.visible:
        is_placeholder = item.role is T and costs[item.seq] < item.tokens
        assert (found[item.seq].state is State.CLEARED) == is_placeholder
    told = [summary.span for summary in story.view.summaries]
    for seq, mark in found.items():
        if mark.state is State.SUMMARISED:
            assert any(span.holds(seq) for span in told)


@QUICK
@given(stories())
def test_every_cause_hid_or_cleared_its_message(story: Story) -> None:
    """It hid and summarised the message, or was the first to hide or clear it."""
    found = visibilities(story.log, story.view, story.receipts)
    by_id = {item.compaction_id: item for item in story.receipts}
    for seq, mark in found.items():
        assert mark.is_explained
        if mark.compaction_id is None:
            continue
        this = by_id[mark.compaction_id]
        before = by_id[this.parent_id].view if this.parent_id is not None else View()
        match mark.state:
            case State.SUMMARISED:
                assert not this.view.shows(seq)
                assert any(
                    part.holds(seq) for made in this.made for part in (made.span, *made.sources)
                )
            case State.LEFT_OUT:
                assert not this.view.shows(seq)
                assert before.shows(seq)
            case _:
                assert mark.state is State.CLEARED
                assert this.view.clears_result(seq)
                assert not before.clears_result(seq)


@QUICK
@given(stories(), st.integers(0, 5))
def test_older_receipts_change_no_known_cause(story: Story, read: int) -> None:
    """The causes by the newest receipts stay, and shown messages need none."""
    part = visibilities(story.log, story.view, story.receipts[:read])
    for seq, mark in visibilities(story.log, story.view, story.receipts).items():
        if part[seq].is_explained:
            assert part[seq] == mark
        else:
            assert part[seq].state is mark.state or mark.state is State.LEFT_OUT
