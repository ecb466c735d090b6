"""Strategies: what they keep, that planning again changes nothing, and their targets.

[strategy.idempotent]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from app.compaction.run import LEVELS, next_merge
from app.compaction.shown_history import HistoryBudget, ShownHistory
from app.compaction.strategies import MAX_FAILURES, STRATEGIES
from app.conversations.receipt import ChainStage, CompactionPlan, NoCompaction, SlidingCut
from app.conversations.turns import (
    Entry,
    call_groups,
    entry,
    group_boundary_after,
    group_boundary_before,
    is_group_boundary,
    newest_user_message,
    pinned_seqs,
    protected,
    starts_turn,
)
from app.conversations.view import Span, Summary, View, spans_beside
from app.formats.message import Role
from app.policy.policy import (
    CompactionPolicy,
    Policy,
    SandwichPolicy,
    SlidingWindowPolicy,
    StrategyName,
    ToolOutputPolicy,
    TreeSummaryPolicy,
)
from tests.domain.compaction.generated import A, T, U, budgets, pinned_histories
from tests.domain.histories import entries

SANDWICH = STRATEGIES[StrategyName.SANDWICH]
SLIDING = STRATEGIES[StrategyName.SLIDING_WINDOW]
FULL = STRATEGIES[StrategyName.FULL_HISTORY]
TREE = STRATEGIES[StrategyName.TREE_SUMMARY]
RETAIN = STRATEGIES[StrategyName.RETAIN_SUMMARY]
CHAIN = STRATEGIES[StrategyName.CHAIN]
CLEAR, SUMMARIZE, TRUNCATE = ChainStage

COMPACTING = st.sampled_from(
    (
        StrategyName.SANDWICH,
        StrategyName.TREE_SUMMARY,
        StrategyName.RETAIN_SUMMARY,
        StrategyName.CHAIN,
    )
)


def policies(preserve_users: st.SearchStrategy[bool] | None = None) -> st.SearchStrategy[Policy]:
    """Policies with any preserved ends, chunks and chains."""
    return st.builds(
        Policy,
        sandwich=st.builds(
            SandwichPolicy, preserve_top=st.integers(0, 6), preserve_bottom=st.integers(1, 6)
        ),
        sliding_window=st.builds(SlidingWindowPolicy, keep_last_n=st.integers(1, 12)),
        tree_summary=st.builds(TreeSummaryPolicy, chunk_size=st.integers(2, 8)),
        compaction=st.builds(CompactionPolicy, retain_last_turns=st.integers(0, 4)),
        preserve_user_messages=st.booleans() if preserve_users is None else preserve_users,
    )


def history_of(roles: Sequence[Role], tokens: int = 10, pins: Sequence[int] = ()) -> list[Entry]:
    """Return a history with these roles, each message of this many tokens."""
    return [entry(seq, role, tokens, seq in pins) for seq, role in enumerate(roles, 1)]


def applied(
    history: Sequence[Entry], hidden: Span | None, plan: CompactionPlan
) -> tuple[list[Entry], Span | None]:
    """Return what is shown after a plan, at what it costs there, and the range that is hidden."""
    view = View(spans_beside(plan.hidden or hidden, plan.kept_seqs if plan.hidden else ()))
    hidden_before = [item for item in history if plan.hidden is None or view.shows(item.seq)]
    pinned = pinned_seqs(hidden_before)
    left = [
        replace(item, tokens=item.placeholder_tokens)
        if item.seq <= plan.results_cleared_through and item.seq not in pinned
        else item
        for item in hidden_before
    ]
    return left, view.hidden if plan.hidden is not None else hidden


def cost(history: Sequence[Entry]) -> int:
    """Return the tokens of a history as it is shown."""
    return sum(item.tokens for item in history)


def trimmed_cost(history: Sequence[Entry]) -> int:
    """Return the tokens of a history, all results trimmed."""
    return sum(item.placeholder_tokens for item in history)


def grown(history: list[Entry], more: list[Entry], head_seq: int) -> list[Entry]:
    """Append a drawn history to another, its seqs following on."""
    return history + [replace(item, seq=head_seq + item.seq) for item in more]


# --- every planner --------------------------------------------------------------------------


@given(
    pinned_histories(),
    policies(),
    budgets(),
    COMPACTING,
    st.booleans(),
    st.integers(0, MAX_FAILURES),
)
def test_a_plan_matches_its_result(
    history: list[Entry],
    policy: Policy,
    budget: HistoryBudget,
    name: StrategyName,
    minimal: bool,
    failures: int,
) -> None:
    """Ranges are cut between call groups, and free exactly what they hide or clear."""
    plan = STRATEGIES[name].plan(
        ShownHistory(history, None, budget, policy), minimal=minimal, failures=failures
    )
    if isinstance(plan, CompactionPlan):
        left, _ = applied(history, None, plan)
        assert plan.freed_tokens == cost(history) - cost(left) > 0
        assert left, "something always stays"
        assert plan.stages
        assert plan.summarises == ("truncate" not in plan.stages and plan.hidden is not None)
        assert plan.hidden is not None or (plan.results_cleared_through and not plan.kept_seqs)
        if plan.hidden is not None:
            seqs = [item.seq for item in history]
            assert is_group_boundary(history, seqs.index(plan.hidden.start))
            end = seqs.index(plan.hidden.end) if plan.hidden.end in seqs else len(history)
            assert is_group_boundary(history, end)
            assert {plan.hidden.start, plan.hidden.end - 1}.isdisjoint(plan.kept_seqs)


@given(
    pinned_histories(),
    st.lists(entries(4), max_size=4),
    policies(),
    budgets(),
    COMPACTING,
    st.lists(st.booleans(), min_size=6, max_size=6),
    st.sets(st.integers(1, 40)),
)
def test_plans_in_a_row_keep_what_must_stay(
    history: list[Entry],
    later: list[list[Entry]],
    policy: Policy,
    budget: HistoryBudget,
    name: StrategyName,
    flags: list[bool],
    unpinned: set[int],
) -> None:
    """Pinned groups, the newest user message and the last group stay; ranges only grow.

    A call group is shown whole or not at all, and planning again finds nothing to do.
    [log.safe-cuts, pins.whole-group, strategy.newest-user, strategy.idempotent]
    """
    hidden: Span | None = None
    head_seq, (is_loop, *minimal) = history[-1].seq, flags
    if is_loop:
        later = [[replace(i, role=A) if i.role is U else i for i in more] for more in later]
    for more, is_minimal in zip([[], *later], minimal, strict=False):
        history = grown(history, more, head_seq)
        head_seq += len(more)
        staying = {item.seq: item for item in history if item.seq in pinned_seqs(history)}
        newest, groups = newest_user_message(history), call_groups(history)
        plan = STRATEGIES[name].plan(
            ShownHistory(history, hidden, budget, policy), minimal=is_minimal
        )
        if isinstance(plan, CompactionPlan):
            if hidden is not None and plan.hidden is not None:
                assert plan.hidden.start <= hidden.start
                assert plan.hidden.end >= hidden.end
                stayed = {*plan.kept_seqs, *plan.released_seqs}
                assert stayed >= {item.seq for item in history if hidden.holds(item.seq)}
            assert bool(plan.released_seqs) <= (hidden is not None)
            before = history
            history, hidden = applied(history, hidden, plan)
            left = {item.seq: item for item in history}
            assert all(left.get(seq) == item for seq, item in staying.items())
            assert newest is None or newest in history
            for start, end in groups:
                assert len({item.seq in left for item in before[start:end]}) == 1
            assert before[-1].seq in left
            again = STRATEGIES[name].plan(
                ShownHistory(history, hidden, budget, policy), minimal=is_minimal
            )
            assert isinstance(again, NoCompaction), (plan, again)
        history = [replace(i, pinned=i.pinned and i.seq not in unpinned) for i in history]


@given(pinned_histories(), policies(), budgets(), COMPACTING)
def test_a_plan_reaches_the_target_or_keeps_no_more_than_it_must(
    history: list[Entry], policy: Policy, budget: HistoryBudget, name: StrategyName
) -> None:
    """After a plan the view is within its target, or shows only what has to stay."""
    plan = STRATEGIES[name].plan(ShownHistory(history, None, budget, policy))
    if not isinstance(plan, CompactionPlan) or plan.hidden is None:
        return
    left, _ = applied(history, None, plan)
    assert budget.fits(trimmed_cost(left)), "a plan leaves what fits"
    if budget.meets_target(cost(left)):
        return
    turns = [index for index, item in enumerate(history) if index == 0 or starts_turn(item)]
    groups = call_groups(history)
    match name:
        case StrategyName.SANDWICH:
            top = group_boundary_after(history, policy.sandwich.preserve_top)
            bottom = len(history) - policy.sandwich.preserve_bottom
            must = [*history[:top], *history[max(top, group_boundary_before(history, bottom)) :]]
        case StrategyName.RETAIN_SUMMARY:
            last = policy.compaction.retain_last_turns
            must = history[turns[-last] if 0 < last <= len(turns) else 0 :]
            must = must if last else history[groups[-1][0] :]
        case StrategyName.CHAIN:
            must = history[turns[-1] :]
        case _:
            must = history[groups[-1][0] :]
    stays = {item.seq for item in must} | protected(history).unhidden
    loose = [item for item in left if item.seq not in stays]
    assert not loose or policy.preserve_user_messages
    assert all(item.role is U for item in loose)
    assert cost(loose) <= max(budget.history_target // 2, 0)


# --- what stays inside a hidden range -------------------------------------------------------


def test_preserved_user_messages_take_half_of_what_the_target_leaves() -> None:
    """The newest user messages that fit half of the history's target stay.

    [strategy.preserve-user-messages, pins.limit]
    """
    history = history_of([U, A] * 10)
    budget = HistoryBudget(capacity=1000, target=130, fixed=20, summary=10)
    policy = Policy(preserve_user_messages=True)
    plan = RETAIN.plan(ShownHistory(history, None, budget, policy), minimal=True)
    assert plan == CompactionPlan(
        ("retain_summary",), 130, Span(1, 19), kept_seqs=(9, 11, 13, 15, 17)
    )
    assert isinstance(
        RETAIN.plan(ShownHistory(*applied(history, None, plan), budget, policy), minimal=True),
        NoCompaction,
    )
    plan = RETAIN.plan(ShownHistory(history, None, budget, policy))
    assert plan == CompactionPlan(
        ("retain_summary",), 110, Span(1, 17), kept_seqs=(7, 9, 11, 13, 15)
    )


# --- sandwich, sliding window, full history -------------------------------------------------


@given(pinned_histories(), policies(), budgets())
def test_sliding_window_shows_exactly_the_last_n(
    history: list[Entry], policy: Policy, budget: HistoryBudget
) -> None:
    """The last N messages are shown, grown to a call group and no further, and what stays."""
    last = policy.sliding_window.keep_last_n
    plan = SLIDING.plan(ShownHistory(history, None, budget, policy))
    pinned = protected(history).unhidden
    if isinstance(plan, NoCompaction):
        minimum = group_boundary_before(history, len(history) - last)
        assert all(item.seq in pinned for item in history[:minimum])
        return
    assert isinstance(plan, SlidingCut)
    tail = [item for item in history if item.seq >= plan.tail_start]
    assert not tail[0].joins
    assert len(tail) >= last
    assert all(item.joins for item in tail[1 : len(tail) - last + 1])
    assert plan.kept_seqs == tuple(seq for seq in sorted(pinned) if seq < plan.tail_start)
    kept = [item for item in history if item.seq in plan.kept_seqs]
    assert isinstance(
        SLIDING.plan(ShownHistory([*kept, *tail], None, budget, policy)), NoCompaction
    )


@given(entries(), policies(), budgets(), st.none() | st.just(Span(1, 3)), st.booleans())
def test_full_history_never_plans_anything(
    history: list[Entry], policy: Policy, budget: HistoryBudget, hidden: Span | None, minimal: bool
) -> None:
    """Whatever the budget, full history keeps everything. [strategy.full-history]"""
    assert isinstance(
        FULL.plan(ShownHistory(history, hidden, budget, policy), minimal=minimal), NoCompaction
    )


# --- tree summary ---------------------------------------------------------------------------


@given(pinned_histories(), st.lists(entries(4), max_size=4), policies(), budgets(), st.booleans())
def test_chunks_hold_each_newly_hidden_message_once(
    history: list[Entry],
    later: list[list[Entry]],
    policy: Policy,
    budget: HistoryBudget,
    minimal: bool,
) -> None:
    """Chunks adjoin, end between call groups, and include all that is new. [strategy.tree]"""
    hidden: Span | None = None
    head_seq, size = history[-1].seq, policy.tree_summary.chunk_size
    for more in [[], *later]:
        history = grown(history, more, head_seq)
        head_seq += len(more)
        plan = TREE.plan(ShownHistory(history, hidden, budget, policy), minimal=minimal)
        if not isinstance(plan, CompactionPlan):
            continue
        assert plan.hidden is not None
        assert plan.chunks
        parts = [plan.hidden]
        if hidden is not None:
            parts = [Span(plan.hidden.start, hidden.start), Span(hidden.end, plan.hidden.end)]
        for part in (part for part in parts if part.start < part.end):
            inside = [chunk for chunk in plan.chunks if part.holds(chunk.start)]
            assert [chunk.start for chunk in inside] == [
                part.start,
                *(chunk.end for chunk in inside[:-1]),
            ]
            assert inside[-1].end == part.end
        joins = {item.seq: item.joins for item in history}
        assert not any(joins[chunk.start] for chunk in plan.chunks)
        gone = [i for i in history if plan.hidden.holds(i.seq) and i.seq not in plan.kept_seqs]
        sizes = [sum(chunk.holds(item.seq) for item in gone) for chunk in plan.chunks]
        assert sum(sizes) + len(plan.released_seqs) == len(gone)
        assert plan.hides_preserved or all(count >= size for count in sizes[:-1])
        assert plan.hides_preserved or len(sizes) == 1 or sizes[-1] >= size // 2
        history, hidden = applied(history, hidden, plan)


# --- merging --------------------------------------------------------------------------------


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=60), st.integers(1, 6), st.integers(20, 400)
)
def test_a_tree_only_adds_and_merges(chunks: list[int], fanout: int, max_tokens: int) -> None:
    """Spans adjoin, levels never rise, and nothing is summarised twice below the top level.

    What is too much folds until one node a level is left.

    [strategy.tree]
    """
    tree: list[Summary] = []
    end, summarised = 1, dict[tuple[int, int], int]()

    def add(node: Summary, index: int) -> None:
        tree.insert(index, node)
        for seq in range(node.span.start, node.span.end):
            summarised[seq, node.level] = summarised.get((seq, node.level), 0) + 1

    for size in chunks:
        add(Summary(Span(end, end + size), "", 20), len(tree))
        end += size
        for _ in range(1000):
            if (reduce_levels := next_merge(tree, fanout, max_tokens)) is None:
                break
            parts = tree[slice(*reduce_levels)]
            assert len(parts) > 1
            assert len({part.level for part in parts}) == 1
            del tree[slice(*reduce_levels)]
            level = min(parts[0].level + 1, LEVELS)
            add(
                Summary(Span(parts[0].span.start, parts[-1].span.end), "", 20, level),
                reduce_levels[0],
            )
        else:
            raise AssertionError("folding does not end")
        assert [node.span.start for node in tree] == [1, *(node.span.end for node in tree[:-1])]
        assert tree[-1].span.end == end
        assert all(a.level >= b.level for a, b in pairwise(tree))
        assert all(times == 1 for (_, level), times in summarised.items() if level < LEVELS)
        assert max(node.level for node in tree) <= LEVELS
        counts = [node.level for node in tree]
        assert sum(node.tokens for node in tree) <= max_tokens or len(set(counts)) == len(counts)
        assert all(counts.count(level) < max(fanout, 2) for level in counts if level < LEVELS)


# --- chain ----------------------------------------------------------------------------------


def toolish(groups: int, tokens: int = 1000) -> list[Entry]:
    """Return turns of one call each, with large results."""
    history: list[Entry] = []
    for _ in range(groups):
        for role, size in ((U, 100), (A, 100), (T, tokens), (A, 100)):
            history.append(entry(len(history) + 1, role, size))
    return history


def test_a_chain_clears_nothing_where_tool_output_is_left_alone() -> None:
    """With `tool_output.enabled` false no strategy clears results. [tool-output.disabled]"""
    policy = Policy(tool_output=ToolOutputPolicy(enabled=False))
    budget = HistoryBudget(capacity=10_000, target=4500, fixed=0, summary=0)
    for minimal in (False, True):
        plan = CHAIN.plan(ShownHistory(toolish(8, 300), None, budget, policy), minimal=minimal)
        assert isinstance(plan, CompactionPlan)
        assert plan.stages == ("summarize",)
        assert plan.results_cleared_through == 0


def test_a_chain_that_failed_too_often_truncates_first() -> None:
    """After failures in a row the model is called last, unless the plan is minimal."""
    history = history_of([U, A] * 20)
    budget = HistoryBudget(capacity=1000, target=100, fixed=0, summary=0)
    plan = CHAIN.plan(ShownHistory(history, None, budget, Policy()), failures=MAX_FAILURES)
    assert plan == CompactionPlan(
        ("truncate",), 300, Span(1, 31), summarises=False, drops_without_summary=True
    )
    requested = CHAIN.plan(
        ShownHistory(history, None, budget, Policy()), failures=MAX_FAILURES, minimal=True
    )
    assert isinstance(requested, CompactionPlan)
    assert requested.stages == ("summarize",)
    assert requested.hidden == Span(1, 39)
