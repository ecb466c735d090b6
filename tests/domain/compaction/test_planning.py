"""Plans of compactions: when one is due, what it hides, what it shows.

[compaction.state, strategy.min-gain, compaction.forced]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.compaction.planning import (
    MIN_GAIN,
    CompactionInput,
    plan_compaction,
    room_for_summaries,
    summary_limit,
)
from app.conversations.conversation import Conversation, ConversationState, StoredSettings
from app.conversations.due import CompactionThreshold, compaction_threshold
from app.conversations.receipt import CompactionPlan, NoCompaction
from app.conversations.turns import Entry, entry, pinned_seqs
from app.conversations.view import Span, Summary, View, spans_beside
from app.conversations.view_changes import base_view, protected_in, protected_with, shown_entries
from app.formats.message import Role
from app.models.budget import Limits, PayloadTokens
from app.policy.policy import CompactionPolicy, Policy, SandwichPolicy, StrategyName
from app.prompt.resolved_settings import ResolvedSettings
from tests.domain.histories import entries, pinned_at
from tests.domain.payload.builders import resolved_of

LIMITS = Limits(1100, 100, 0.8, 0.7, 0.95, 0.98)
"""An effective window of 1000 tokens."""

COMPACTING = (
    StrategyName.SANDWICH,
    StrategyName.TREE_SUMMARY,
    StrategyName.RETAIN_SUMMARY,
    StrategyName.CHAIN,
)
NEVER_COMPACTING = (StrategyName.SLIDING_WINDOW, StrategyName.FULL_HISTORY)
Options = Mapping[str, Any]
FORCED: Options = {"any_gain": True, "minimal": True}
NOW = datetime(2026, 1, 1, tzinfo=UTC)
U, A, T = Role.USER, Role.ASSISTANT, Role.TOOL


def resolved_with(
    policy: Policy | None = None, limits: Limits = LIMITS, fixed: int = 0, factor: float = 1.0
) -> ResolvedSettings:
    """Return resolved settings with this policy and window; sections take `fixed` tokens."""
    return replace(
        resolved_of((), (), None),
        policy=(policy or Policy()).model_copy(update={"agent_tools": "none"}),
        limits=limits,
        policy_limits=limits,
        raw_fixed=PayloadTokens(system_prompt=fixed),
        factor=factor,
    )


def history(count: int, tokens: int = 50) -> list[Entry]:
    """Return user messages of equal size."""
    return [entry(seq, U, tokens) for seq in range(1, count + 1)]


def talk_of(policy: Policy, items: Sequence[Entry], limits: Limits = LIMITS) -> CompactionInput:
    """Return a conversation of these entries, of which nothing is compacted yet."""
    settings, tokens = StoredSettings(), sum(item.tokens for item in items)
    state = ConversationState(head_seq=len(items), tokens=tokens)
    conversation = Conversation("c", None, "tokenizer", settings, settings, "{}", NOW, NOW, state)
    return CompactionInput("t", conversation, resolved_with(policy, limits), View(), tuple(items))


# --- when it is worth it --------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, FORCED])
@pytest.mark.parametrize("name", StrategyName)
def test_disabled_compaction_does_nothing_even_when_forced(
    options: Options, name: StrategyName
) -> None:
    """`enabled: false` never compacts and says so, whatever the strategy. [compaction.disabled]"""
    policy = Policy(strategy=name, compaction=CompactionPolicy(enabled=False))
    plan = plan_compaction(talk_of(policy, history(60)), **options)
    assert plan == NoCompaction("compaction is disabled")


@pytest.mark.parametrize("name", NEVER_COMPACTING)
def test_a_call_cannot_override_a_policy_that_never_compacts(name: StrategyName) -> None:
    """The strategy of one call does not override such a policy. [strategy.sliding-window]"""
    talk = talk_of(Policy(strategy=name), history(60))
    plan = plan_compaction(talk, StrategyName.SANDWICH, **FORCED)
    assert isinstance(plan, NoCompaction)
    assert name in plan.reason


def middle(start: int, end: int, freed: int) -> CompactionPlan:
    """Return the sandwich's plan for this range."""
    return CompactionPlan(("sandwich",), freed, Span(start, end))


def test_a_plan_that_frees_too_little_is_not_run_unless_forced() -> None:
    """Below a tenth of the effective window nothing is done automatically."""
    few, more = talk_of(Policy(), history(13)), talk_of(Policy(), history(14))
    assert plan_compaction(few) == NoCompaction("too little would be freed")
    assert plan_compaction(few, **FORCED) == middle(6, 9, 150)
    assert plan_compaction(more) == middle(6, 10, 200)


@given(entries(), st.sampled_from(COMPACTING))
def test_automatic_plans_free_at_least_min_gain(items: list[Entry], name: StrategyName) -> None:
    """What is run automatically frees a minimum beyond its first summary. [strategy.min-gain]"""
    policy = Policy(
        strategy=name,
        sandwich=SandwichPolicy(preserve_top=1, preserve_bottom=1),
        compaction=CompactionPolicy(target=0.3),
    )
    talk = talk_of(policy, items)
    plan = plan_compaction(talk)
    if isinstance(plan, CompactionPlan):
        reserve = summary_limit(plan, room_for_summaries(talk), talk) if plan.summarises else 0
        assert plan.freed_tokens - reserve >= MIN_GAIN * LIMITS.effective_window


@pytest.mark.parametrize("name", COMPACTING)
def test_a_plan_goes_below_the_target_only_where_that_is_met(name: StrategyName) -> None:
    """Within it, it goes as low as possible."""
    turns = [entry(seq, U if seq % 2 else A, 50) for seq in range(1, 23)]
    within = talk_of(Policy(strategy=name), turns, replace(LIMITS, context_window=10_000))
    assert plan_compaction(within, any_gain=True) == plan_compaction(within, **FORCED)
    assert isinstance(plan_compaction(within, **FORCED), CompactionPlan)


# --- when it is due -------------------------------------------------------------------------


def test_a_compaction_is_due_at_the_threshold_in_raw_tokens_of_history() -> None:
    """A state reaches the threshold exactly when its payload reaches the strategy's trigger.

    [budget.full-formula, usage.frozen-factor]
    """
    resolved = resolved_with(fixed=100)
    assert compaction_threshold(resolved) == CompactionThreshold(600, None)
    assert compaction_threshold(resolved_with(fixed=100, factor=1.25)) == CompactionThreshold(
        460, None
    )
    line = compaction_threshold(resolved)
    assert not line.reached(ConversationState(tokens=599))
    assert line.reached(ConversationState(tokens=600))
    assert line.reached(ConversationState(tokens=900, hidden_tokens=380, summary_tokens=80))
    assert not line.reached(ConversationState(tokens=900, hidden_tokens=381, summary_tokens=80))


def hiding(span: Span | None, *summarised: Span, kept: tuple[int, ...] = ()) -> View:
    """Return a view that hides a range, with a summary for each of these spans."""
    summaries = tuple(Summary(part, "s") for part in summarised)
    return View(spans=spans_beside(span, kept), summaries=summaries)


# --- pins that come later -------------------------------------------------------------------


@given(entries(), st.data())
def test_tokens_added_by_pins_match_the_payload(log: list[Entry], data: st.DataObject) -> None:
    """The state's totals change by exactly what the view shows more. [pins.verbatim]"""
    seqs = st.integers(1, len(log))
    start, end = sorted((data.draw(seqs), data.draw(seqs)))
    kept = tuple(data.draw(st.sets(seqs, max_size=3)))
    view = replace(hiding(Span(start, end + 1), kept=kept), results_cleared_through=data.draw(seqs))
    pins = pinned_seqs(pinned_at(log, data.draw(st.lists(seqs, max_size=4))))
    before = base_view(ConversationState(protected_seqs=protected_in(view)), view, Policy())
    after_kept, tokens, messages = protected_with(
        before, protected_in(before), [item for item in log if item.seq in pins]
    )
    after = base_view(ConversationState(protected_seqs=after_kept), before, Policy())
    gained = sum(item.tokens for item in shown_entries(log, after))
    gained -= sum(item.tokens for item in shown_entries(log, before))
    assert tokens == gained
    assert messages == len(shown_entries(log, after)) - len(shown_entries(log, before))
    assert all(
        after.shows(seq) and not (after.clears_result(seq) and log[seq - 1].role is T)
        for seq in pins
    )
