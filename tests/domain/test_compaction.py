"""Compaction as a decision: when it is worth it, what it covers, what it shows (D6, D7, E7)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.budget import Limits
from app.domain.compaction import (
    LEAST_SUMMARY_TOKENS,
    MOST_SUMMARY_TOKENS,
    base_view,
    fresh_spans,
    keep_left_out,
    plan_compaction,
    room_for,
    summary_cost,
    summary_room,
    summary_view,
)
from app.domain.messages import Role
from app.domain.policy import CompactionPolicy, Policy, SandwichPolicy, StrategyName, SummaryRole
from app.domain.prompt import View
from app.domain.records import Head
from app.domain.strategies import ENDLESS, Keep, Room, Span, Summarise
from app.domain.tokens import count_payload_messages
from app.domain.turns import Entry, entry
from tests.domain.histories import CHAT, entries, third

LIMITS = Limits(1100, 100, 0.8, 0.7, 0.95, 0.98)
VAST = Room(10**9, 10**9, 0, 64)


def history(count: int, tokens: int = 50) -> list[Entry]:
    """Return user messages of equal size."""
    return [entry(seq, Role.USER, tokens) for seq in range(1, count + 1)]


def planned(
    policy: Policy, items: list[Entry], *, forced: bool, covered: Span | None = None
) -> object:
    """Return what would be compacted of these."""
    return plan_compaction(items, covered, VAST, policy, LIMITS, forced=forced)


@pytest.mark.parametrize("forced", [True, False])
def test_disabled_compaction_does_nothing_even_when_forced(forced: bool) -> None:
    """`enabled: false` never compacts and says so (E1)."""
    policy = Policy(compaction=CompactionPolicy(enabled=False))
    assert planned(policy, history(30), forced=forced) == Keep("compaction is disabled")


@pytest.mark.parametrize("name", [StrategyName.SLIDING_WINDOW, StrategyName.FULL_HISTORY])
def test_strategies_without_a_summary_never_compact(name: StrategyName) -> None:
    """A sliding window moves by itself, full history never compacts, forced or not (D2)."""
    plan = planned(Policy(strategy=name), history(60), forced=True)
    assert isinstance(plan, Keep)
    assert name in plan.reason


def test_a_plan_that_frees_too_little_is_not_run_unless_forced() -> None:
    """Below `min_gain` of the effective window nothing is done automatically (D7)."""
    policy = Policy(sandwich=SandwichPolicy(5, 5))
    assert planned(policy, history(13), forced=False) == Keep("too little would be freed")
    assert planned(policy, history(13), forced=True) == Summarise(Span(6, 9), 150, False)
    assert planned(policy, history(14), forced=False) == Summarise(Span(6, 10), 200, False)


def test_extending_needs_no_room_for_a_second_summary() -> None:
    """A summary that is there already costs nothing more when its range grows (D6)."""
    shown = [item for item in history(20) if not 6 <= item.seq < 13]
    plan = planned(Policy(), shown, forced=False, covered=Span(6, 13))
    assert plan == Summarise(Span(6, 16), 150, False)


@given(entries(), st.integers(0, 1000), st.booleans())
def test_automatic_plans_free_at_least_the_least_gain(
    items: list[Entry], percent: int, covered: bool
) -> None:
    """What is run automatically frees `min_gain` beyond its summary (D7)."""
    policy = Policy(
        sandwich=SandwichPolicy(1, 1), compaction=CompactionPolicy(min_gain=percent / 1001)
    )
    span = Span(2, 3) if covered and len(items) > 3 else None
    left = [item for item in items if span is None or not 2 <= item.seq < 3]
    room = Room(10**9, 10**9, 0, 64)
    plan = plan_compaction(left, span, room, policy, LIMITS, forced=False)
    if isinstance(plan, Summarise):
        gain = plan.freed_tokens - (64 if span is None else 0)
        assert gain >= policy.compaction.min_gain * LIMITS.effective_window


@given(st.integers(1, 50), st.integers(1, 50), st.integers(0, 50), st.integers(0, 50))
def test_fresh_spans_are_what_no_summary_stands_for(
    start: int, length: int, before: int, after: int
) -> None:
    """The parts to summarise anew and the covered range make up the new range (N10)."""
    covered = Span(start, start + length)
    span = Span(max(1, start - before), start + length + after)
    fresh = fresh_spans(span, covered)
    seqs = {seq for part in fresh for seq in range(part.start, part.end)}
    assert seqs == set(range(span.start, span.end)) - set(range(covered.start, covered.end))
    assert fresh_spans(span, None) == (span,)


@given(st.integers(2, 10**6), st.integers(0, 60))
def test_summaries_take_a_tenth_of_the_window_within_bounds(total: int, margin: int) -> None:
    """The room of a summary is a share of the effective window, never absurd (D7)."""
    limits = replace(LIMITS, total=total, max_output_tokens=1, margin=margin / 1000)
    room = summary_room(limits)
    assert LEAST_SUMMARY_TOKENS <= room <= MOST_SUMMARY_TOKENS
    assert room == LEAST_SUMMARY_TOKENS or room <= limits.effective_window / 10


@given(st.integers(200, 10**6), st.sampled_from((0.0, 0.05)), st.sampled_from((1.0, 1.2)))
def test_rooms_are_in_raw_counts(total: int, margin: float, factor: float) -> None:
    """A room corrected for the model's factor is within the capacity (decision 12, C4)."""
    limits = replace(LIMITS, total=total, max_output_tokens=100, margin=margin)
    room = room_for(limits, Policy(), 7, 9, factor)
    assert room.capacity * factor <= limits.capacity
    assert room.target <= room.capacity
    assert (room.fixed, room.summary) == (7, 9)


def test_views_of_a_head() -> None:
    """A head without a compaction shows all; with one, its ends around the summary (D1, D6)."""
    assert base_view(Head(), None, Policy()) == View(spans=(Span(1, ENDLESS),))
    head = Head(compaction_id="c", span=Span(3, 9))
    shown = base_view(head, "so far", Policy())
    assert shown == summary_view(Span(3, 9), "so far", Policy())
    assert shown.spans == (Span(1, 3), Span(9, ENDLESS))
    assert not any(shown.shows(seq) for seq in range(3, 9))
    assert summary_view(Span(1, 9), "x", Policy()).spans == (Span(9, ENDLESS),)


def test_the_summary_role_is_the_users_unless_asked_for() -> None:
    """A summary is untrusted text: a user message unless `summary_role` says system (D1, N13)."""
    for role in SummaryRole:
        view = summary_view(Span(1, 2), "x", Policy(summary_role=role))
        assert view.summary_as_system is (role is SummaryRole.SYSTEM)


@given(st.text(max_size=200), st.none() | st.just("[2 earlier messages were left out.]"))
def test_the_cost_of_a_summary_is_that_of_its_message(summary: str, note: str | None) -> None:
    """What planning reckons for a summary is what its item costs (C1)."""
    view = replace(summary_view(Span(1, 2), summary, Policy()), note=note)
    item = {"role": "user", "content": view.summary_text()}
    assert summary_cost(view, third) == count_payload_messages(CHAT, [item], third)
    assert summary_cost(View(spans=(Span(1, ENDLESS),)), third) == 0


def test_what_was_left_out_stays_out() -> None:
    """A later summary takes in what an earlier reduction left out, and shows none of it (D6)."""
    whole = (Span(1, ENDLESS),)
    assert keep_left_out(whole, Span(6, 40)) == (Span(6, 40), (Span(1, 6),))
    assert keep_left_out((Span(20, ENDLESS),), Span(25, 40)) == (Span(25, 40), (Span(20, 25),))
    lone = (Span(9, 10), Span(30, ENDLESS))
    assert keep_left_out(lone, Span(35, 40)) == (Span(30, 40), (Span(9, 10),))
    assert keep_left_out(lone, Span(9, 40)) == (Span(9, 40), ())
