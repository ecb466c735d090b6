"""The planners: what they keep, that they come to rest, and how they meet their room (D1, D2)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.messages import Role
from app.domain.policy import Policy, SandwichPolicy, SlidingWindowPolicy, StrategyName
from app.domain.strategies import STRATEGIES, Keep, Room, Slide, Span, Summarise
from app.domain.turns import (
    Entry,
    entry,
    group_boundary_after,
    group_boundary_before,
    is_group_boundary,
)
from tests.domain.histories import entries

SANDWICH = STRATEGIES[StrategyName.SANDWICH]
SLIDING = STRATEGIES[StrategyName.SLIDING_WINDOW]
FULL = STRATEGIES[StrategyName.FULL_HISTORY]
VAST = Room(capacity=10**9, target=10**9, fixed=0, summary=0)
U, A, T = Role.USER, Role.ASSISTANT, Role.TOOL


@st.composite
def rooms(draw: st.DrawFn) -> Room:
    """Draw rooms from far too small to vast; a policy's target may lie above the capacity."""
    capacity = draw(st.integers(10, 6000))
    share = draw(st.integers(10, 99))
    return Room(
        capacity, capacity * share // 95, draw(st.integers(0, 200)), draw(st.integers(0, 64))
    )


def policies() -> st.SearchStrategy[Policy]:
    """Policies with any preserved ends."""
    return st.builds(
        Policy,
        sandwich=st.builds(SandwichPolicy, st.integers(0, 6), st.integers(1, 6)),
        sliding_window=st.builds(SlidingWindowPolicy, st.integers(1, 12)),
    )


def shown(history: Sequence[Entry], span: Span) -> list[Entry]:
    """Return what a history shows once a summary stands for the span."""
    return [item for item in history if not span.start <= item.seq < span.end]


def cost(history: Sequence[Entry]) -> int:
    """Return the tokens of a history, nothing trimmed."""
    return sum(item.tokens for item in history)


def trimmed_cost(history: Sequence[Entry]) -> int:
    """Return the tokens of a history, all results trimmed."""
    return sum(item.trimmed_tokens for item in history)


def grown(history: list[Entry], more: list[Entry]) -> list[Entry]:
    """Append a drawn history to another, its seqs following on."""
    last = history[-1].seq if history else 0
    return history + [entry(last + item.seq, item.role, item.tokens) for item in more]


@pytest.mark.parametrize(
    ("strategy", "trigger", "preserved"),
    [
        (SANDWICH, 0.7, (5, 5)),
        (SLIDING, None, (0, 20)),
        (FULL, None, (None, None)),
    ],
)
def test_name_trigger_and_preserved_ranges_are_inspectable(
    strategy: object, trigger: float | None, preserved: tuple[int | None, int | None]
) -> None:
    """Every planner tells its trigger and preserved ranges; defaults are S0's (D, C3)."""
    chosen = {SANDWICH: SANDWICH, SLIDING: SLIDING, FULL: FULL}[strategy]  # type: ignore[index]
    assert chosen.trigger(Policy()) == trigger
    assert chosen.preserved(Policy()) == preserved
    assert STRATEGIES[chosen.name] is chosen


def test_sandwich_summarises_the_middle_only() -> None:
    """Of twenty single messages the first and last five stay, ten are summarised (D1)."""
    history = [entry(seq, U, 10) for seq in range(1, 21)]
    assert SANDWICH.plan(history, None, VAST, Policy()) == Summarise(Span(6, 16), 100, False)


def test_not_enough_messages_keep_the_full_history() -> None:
    """With no message between the ends the full history stays (D1)."""
    history = [entry(seq, U, 10) for seq in range(1, 11)]
    assert isinstance(SANDWICH.plan(history, None, VAST, Policy()), Keep)


def test_both_ends_grow_to_whole_turns_where_that_fits_the_target() -> None:
    """Ends grow to whole turns if the target allows it, else to call groups (decision 14)."""
    roles = [U, A, U, A, A, A, U, A, U, A, A, A, U, A]
    history = [entry(seq, role, 10) for seq, role in enumerate(roles, 1)]
    policy = Policy(sandwich=SandwichPolicy(3, 3))
    assert SANDWICH.plan(history, None, VAST, policy) == Summarise(Span(7, 9), 20, False)
    tight = Room(capacity=1000, target=70, fixed=0, summary=0)
    assert SANDWICH.plan(history, None, tight, policy) == Summarise(Span(4, 12), 80, False)


@given(entries(), policies(), rooms())
def test_preserved_ends_shrink_only_when_nothing_else_fits(
    history: list[Entry], policy: Policy, room: Room
) -> None:
    """At least the preserved messages stay, unless even trimmed they are too large (D1, C4)."""
    plan = SANDWICH.plan(history, None, room, policy)
    if not isinstance(plan, Summarise):
        return
    kept = shown(history, plan.span)
    top, bottom = policy.sandwich.preserve_top, policy.sandwich.preserve_bottom
    must_stay = [*history[:top], *history[max(top, len(history) - bottom) :]]
    if plan.shrunk:
        least_top = group_boundary_after(history, top)
        least_bottom = group_boundary_before(history, len(history) - bottom)
        least = [*history[:least_top], *history[max(least_top, least_bottom) :]]
        assert not room.holds(trimmed_cost(least))
    else:
        assert all(item in kept for item in must_stay)
    assert room.holds(trimmed_cost(kept)), "a plan leaves what fits"
    assert kept, "the newest message always stays"


@given(entries(), policies(), rooms())
def test_spans_are_contiguous_and_cut_between_call_groups(
    history: list[Entry], policy: Policy, room: Room
) -> None:
    """A range starts and ends at legal cuts, and frees exactly what it hides (A4, N10)."""
    plan = SANDWICH.plan(history, None, room, policy)
    if not isinstance(plan, Summarise):
        return
    seqs = [item.seq for item in history]
    assert plan.span.start in seqs
    assert is_group_boundary(history, seqs.index(plan.span.start))
    end = seqs.index(plan.span.end) if plan.span.end in seqs else len(history)
    assert is_group_boundary(history, end)
    assert plan.freed_tokens == cost(history) - cost(shown(history, plan.span))


@given(entries(), policies(), rooms())
def test_planning_again_after_applying_does_nothing(
    history: list[Entry], policy: Policy, room: Room
) -> None:
    """Right after a plan is applied there is nothing to do, grown turns included (D7)."""
    plan = SANDWICH.plan(history, None, room, policy)
    if isinstance(plan, Summarise):
        again = SANDWICH.plan(shown(history, plan.span), plan.span, room, policy)
        assert isinstance(again, Keep), (plan, again)


@given(entries(), st.lists(entries(4), min_size=1, max_size=4), policies(), rooms())
def test_ranges_only_grow_and_come_to_rest_each_time(
    history: list[Entry], later: list[list[Entry]], policy: Policy, room: Room
) -> None:
    """Each range contains the one before, extends it without a gap, and is at rest (D6, D7)."""
    covered: Span | None = None
    spans: list[Span] = []
    for more in [[], *later]:
        history = grown(history, more)
        plan = SANDWICH.plan(history, covered, room, policy)
        if not isinstance(plan, Summarise):
            continue
        if covered is not None:
            assert plan.span.start <= covered.start
            assert plan.span.end >= covered.end
            assert plan.shrunk or plan.span.start == covered.start
        covered = plan.span
        spans.append(covered)
        history = shown(history, covered)
        assert isinstance(SANDWICH.plan(history, covered, room, policy), Keep)
    assert all(a != b for a, b in pairwise(spans))


@given(entries(), policies(), rooms())
def test_a_plan_reaches_the_target_or_keeps_no_more_than_it_must(
    history: list[Entry], policy: Policy, room: Room
) -> None:
    """After a plan the view is within its target, or shows the preserved ends alone (D7)."""
    plan = SANDWICH.plan(history, None, room, policy)
    if not isinstance(plan, Summarise):
        return
    top = group_boundary_after(history, policy.sandwich.preserve_top)
    bottom = group_boundary_before(history, len(history) - policy.sandwich.preserve_bottom)
    least = cost([*history[:top], *history[max(top, bottom) :]])
    kept = cost(shown(history, plan.span))
    assert room.aims_at(kept) or kept <= least


@given(entries(), policies(), rooms())
def test_sliding_window_shows_exactly_the_last_n(
    history: list[Entry], policy: Policy, room: Room
) -> None:
    """The last N messages are shown, grown to a call group and no further (D2)."""
    last = policy.sliding_window.keep_last_n
    plan = SLIDING.plan(history, None, room, policy)
    if isinstance(plan, Keep):
        least = group_boundary_before(history, len(history) - last)
        assert least == 0
        return
    assert isinstance(plan, Slide)
    kept = [item for item in history if item.seq >= plan.tail_start]
    assert kept[0].role is not T
    assert len(kept) >= last
    assert all(item.role is T for item in kept[1 : len(kept) - last + 1])
    again = SLIDING.plan(kept, None, room, policy)
    assert again in (plan, Keep("all messages are inside the window"))


@given(entries(), policies(), rooms(), st.none() | st.just(Span(1, 3)))
def test_full_history_never_plans_anything(
    history: list[Entry], policy: Policy, room: Room, covered: Span | None
) -> None:
    """Whatever the room, full history keeps everything (D2)."""
    assert isinstance(FULL.plan(history, covered, room, policy), Keep)


@given(entries(), policies(), rooms(), st.sampled_from(list(StrategyName)))
def test_planners_are_pure(
    history: list[Entry], policy: Policy, room: Room, name: StrategyName
) -> None:
    """A planner gives the same plan again and leaves its history alone (D)."""
    before = list(history)
    first = STRATEGIES[name].plan(history, None, room, policy)
    assert STRATEGIES[name].plan(tuple(history), None, room, policy) == first
    assert history == before
