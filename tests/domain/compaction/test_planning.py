"""Plans of compactions: when one is due, what it hides, what it shows.

[compaction.state, strategy.min-gain, compaction.forced]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.common.ids import ConversationId
from app.compaction.planning import (
    LABEL_TOKENS,
    MIN_GAIN,
    CompactionInput,
    plan_compaction,
    room_for_summaries,
    summary_limit,
    summary_reserve,
    tree_chunks,
    tree_node_text_limit,
    unsummarised_spans,
)
from app.compaction.run import LEVELS, next_merge
from app.conversations.compaction_receipt import Compaction, CompactionPlan, NoCompaction, Trigger
from app.conversations.conversation import Conversation, ConversationState, StoredSettings
from app.conversations.thresholds import CompactionThreshold, compaction_threshold
from app.conversations.turns import (
    Entry,
    entry,
    group_boundary_after,
    group_boundary_before,
    pinned_seqs,
    protected,
)
from app.conversations.view import Span, Summary, View, spans_beside
from app.conversations.views import (
    base_view,
    kept_seqs,
    kept_with_pins,
    shown_entries,
    summary_message_tokens,
    view_after,
    view_summary_tokens,
)
from app.formats.message import Role
from app.models.budget import Limits, Usage
from app.policy.policy import (
    CompactionPolicy,
    Policy,
    SandwichPolicy,
    StrategyName,
    TreeSummaryPolicy,
)
from app.prompt.resolved_settings import ResolvedSettings
from tests.domain.histories import entries, pinned_at, third
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
FORCED: Options = {"forced": True, "deep": True}
NOW = datetime(2026, 1, 1, tzinfo=UTC)
U, A, T = Role.USER, Role.ASSISTANT, Role.TOOL


def resolved_with(
    policy: Policy | None = None,
    limits: Limits = LIMITS,
    fixed: int = 0,
    factor: float = 1.0,
    agent_tools: Literal["auto", "none"] = "none",
) -> ResolvedSettings:
    """Return resolved settings with this policy and window; sections take `fixed` tokens."""
    return replace(
        resolved_of((), (), None),
        policy=(policy or Policy()).model_copy(update={"agent_tools": agent_tools}),
        limits=limits,
        policy_limits=limits,
        raw_fixed=Usage(system_prompt=fixed),
        factor=factor,
    )


def history(count: int, tokens: int = 50) -> list[Entry]:
    """Return user messages of equal size."""
    return [entry(seq, U, tokens) for seq in range(1, count + 1)]


def talk_of(policy: Policy, items: Sequence[Entry], limits: Limits = LIMITS) -> Talk:
    """Return a conversation of these entries."""
    talk = Talk(resolved_with(policy, limits), [])
    talk.grow(items)
    return talk


# --- when it is worth it --------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, FORCED])
@pytest.mark.parametrize("name", StrategyName)
def test_disabled_compaction_does_nothing_even_when_forced(
    options: Options, name: StrategyName
) -> None:
    """`enabled: false` never compacts and says so, whatever the strategy. [compaction.disabled]"""
    policy = Policy(strategy=name, compaction=CompactionPolicy(enabled=False))
    plan = talk_of(policy, history(60)).plan(options)
    assert plan == NoCompaction("compaction is disabled")


@pytest.mark.parametrize("name", NEVER_COMPACTING)
def test_a_call_cannot_override_a_policy_that_never_compacts(name: StrategyName) -> None:
    """The strategy of one call does not override such a policy. [strategy.sliding-window]"""
    plan = talk_of(Policy(strategy=name), history(60)).plan({**FORCED, "strategy": "sandwich"})
    assert isinstance(plan, NoCompaction)
    assert name in plan.reason


def middle(start: int, end: int, freed: int) -> CompactionPlan:
    """Return the sandwich's plan for this range."""
    return CompactionPlan(("sandwich",), freed, Span(start, end))


def test_a_plan_that_frees_too_little_is_not_run_unless_forced() -> None:
    """Below a tenth of the effective window nothing is done automatically."""
    few, more = talk_of(Policy(), history(13)), talk_of(Policy(), history(14))
    assert few.plan({}) == NoCompaction("too little would be freed")
    assert few.plan(FORCED) == middle(6, 9, 150)
    assert more.plan({}) == middle(6, 10, 200)


@given(entries(), st.sampled_from(COMPACTING))
def test_automatic_plans_free_at_least_min_gain(items: list[Entry], name: StrategyName) -> None:
    """What is run automatically frees a minimum beyond its first summary. [strategy.min-gain]"""
    policy = Policy(
        strategy=name,
        sandwich=SandwichPolicy(preserve_top=1, preserve_bottom=1),
        compaction=CompactionPolicy(target=0.3),
    )
    talk = talk_of(policy, items)
    plan = talk.plan({})
    if isinstance(plan, CompactionPlan):
        now = talk.compaction_input
        reserve = summary_limit(plan, room_for_summaries(now), now) if plan.summarises else 0
        assert plan.freed_tokens - reserve >= MIN_GAIN * LIMITS.effective_window


@pytest.mark.parametrize("name", COMPACTING)
def test_a_plan_goes_below_the_target_only_where_that_is_met(name: StrategyName) -> None:
    """Within it, it goes as low as possible."""
    turns = [entry(seq, U if seq % 2 else A, 50) for seq in range(1, 23)]
    within = talk_of(Policy(strategy=name), turns, replace(LIMITS, total=10_000))
    assert within.plan({"forced": True}) == within.plan(FORCED)
    assert isinstance(within.plan(FORCED), CompactionPlan)


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


@given(
    st.integers(0, 3000),
    st.integers(0, 3000),
    st.integers(0, 300),
    st.integers(0, 400),
    st.integers(1000, 1100),
)
def test_the_threshold_agrees_with_the_usage_of_the_payload(
    tokens: int, hidden: int, summary: int, fixed: int, total: int
) -> None:
    """The threshold on the state agrees with the usage that a build measures. [budget.levels]"""
    limits = replace(LIMITS, total=total)
    resolved = resolved_with(limits=limits, fixed=fixed)
    state = ConversationState(
        tokens=tokens, hidden_tokens=min(hidden, tokens), summary_tokens=summary
    )
    used = resolved.usage(state.shown_tokens, summary).total
    assert compaction_threshold(resolved).reached(state) == limits.reached(used, 0.7)


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
    before = base_view(ConversationState(kept_seqs=kept_seqs(view)), view, Policy())
    after_kept, tokens, messages = kept_with_pins(
        before, kept_seqs(before), [item for item in log if item.seq in pins]
    )
    after = base_view(ConversationState(kept_seqs=after_kept), before, Policy())
    gained = sum(item.tokens for item in shown_entries(log, after))
    gained -= sum(item.tokens for item in shown_entries(log, before))
    assert tokens == gained
    assert messages == len(shown_entries(log, after)) - len(shown_entries(log, before))
    assert all(
        after.shows(seq) and not (after.clears_result(seq) and log[seq - 1].role is T)
        for seq in pins
    )


# --- a conversation that is compacted again and again ---------------------------------------


@dataclass
class Talk:
    """A conversation whose compactions are applied with summaries as large as allowed."""

    resolved: ResolvedSettings
    log: list[Entry]
    state: ConversationState = field(default_factory=ConversationState)
    active: View | None = None
    receipt: Compaction | None = None
    in_summaries: set[int] = field(default_factory=set)
    """The seqs of the messages that some summary was made of."""
    dropped: set[int] = field(default_factory=set)
    """Those kept beside a summary until they were unpinned, and dropped without a new one."""

    @property
    def view(self) -> View:
        """What is shown now."""
        return base_view(self.state, self.active, self.resolved.policy)

    @property
    def compaction_input(self) -> CompactionInput:
        """What a compaction is planned on now."""
        settings = StoredSettings()
        conversation = Conversation(
            ConversationId("c"), None, "tokenizer", settings, settings, "{}", NOW, NOW, self.state
        )
        view = self.view
        shown = tuple(item for item in self.log if view.shows(item.seq))
        return CompactionInput("t", conversation, self.resolved, view, shown, self.receipt)

    @property
    def used(self) -> int:
        """The tokens of its payload."""
        return self.compaction_input.tokens_in(self.view)

    def grow(self, more: Sequence[Entry]) -> None:
        """Append a drawn history."""
        last = len(self.log)
        self.log += [replace(item, seq=last + item.seq) for item in more]
        self.state = replace(
            self.state, head_seq=len(self.log), tokens=sum(item.tokens for item in self.log)
        )

    def repin(self, seqs: Iterable[int]) -> None:
        """Pin the call groups of these messages and no others, unless they would take too much."""
        protected = pinned_seqs(pinned_at(self.log, seqs))
        pinned = [item for item in pinned_at(self.log, protected) if item.pinned]
        limits = self.resolved.compaction_limits()
        most = (limits.capacity - self.resolved.usage(0, 0).fixed) / 2
        if self.resolved.usage(sum(item.tokens for item in pinned), 0).conversation > most:
            return
        self.log = pinned_at(self.log, protected)
        if self.active is None:
            return
        kept, tokens, messages = kept_with_pins(self.active, self.state.kept_seqs, pinned)
        self.state = replace(
            self.state,
            kept_seqs=kept,
            hidden_tokens=self.state.hidden_tokens - tokens,
            hidden_messages=self.state.hidden_messages - messages,
        )

    def plan(self, options: Options) -> NoCompaction | CompactionPlan:
        """Return the plan for the current state."""
        return plan_compaction(self.compaction_input, **options)

    def apply(self, plan: CompactionPlan, strategy: StrategyName) -> View:
        """Carry a plan out, and return the view of its receipt."""
        view, used = self.view, self.used
        summaries: Sequence[Summary] = view.summaries
        self.dropped |= set() if plan.summarises else set(plan.released_seqs)
        if plan.hidden is not None and plan.summarises:
            summaries = self._tree(plan) if plan.chunks else self._rolled(plan, plan.hidden)
        after = view_after(view, plan, summaries, view.retain, sorted(pinned_seqs(self.log)))
        left = shown_entries(self.log, after)
        self.active = after
        self.state = replace(
            self.state,
            view_version=self.state.view_version + 1,
            compaction_id="c",
            hidden_span=after.hidden,
            kept_seqs=kept_seqs(after),
            summary_tokens=view_summary_tokens(after, third),
            hidden_tokens=self.state.tokens - sum(item.tokens for item in left),
            hidden_messages=self.state.head_seq - len(left),
        )
        self.receipt = Compaction(
            compaction_id="c",
            parent_id=None,
            trigger=Trigger.FORCED,
            policy_strategy=self.resolved.policy.strategy,
            hidden_span=plan.hidden or Span(1, 1),
            view=after,
            strategy=strategy,
            before_tokens=used,
            after_msg_count=self.compaction_input.messages_in(after),
        )
        return after

    def _rolled(self, plan: CompactionPlan, hidden: Span) -> list[Summary]:
        self._note_summarised(
            plan, unsummarised_spans(hidden, self.view.summarised, plan.released_seqs)
        )
        return [summary_of(hidden, self._limit(plan) - LABEL_TOKENS)]

    def _limit(self, plan: CompactionPlan) -> int:
        now = self.compaction_input
        return summary_limit(plan, room_for_summaries(now), now)

    def _tree(self, plan: CompactionPlan) -> list[Summary]:
        tree, most = self.resolved.policy.tree_summary, self._limit(plan)
        room, nodes = tree_node_text_limit(most), list(self.view.summaries)
        chunks = tree_chunks(plan, self.view, tree.chunk_size)
        self._note_summarised(plan, [*chunks, *(Span(seq, seq + 1) for seq in plan.released_seqs)])
        nodes += [summary_of(chunk, room) for chunk in chunks]
        while merge := next_merge(nodes, tree.chunk_size, most):
            first, last = merge
            span = Span(nodes[first].span.start, nodes[last - 1].span.end)
            nodes[first:last] = [summary_of(span, room, min(nodes[first].level + 1, LEVELS))]
        return nodes

    def _note_summarised(self, plan: CompactionPlan, spans: Sequence[Span]) -> None:
        fresh = {seq for span in spans for seq in range(span.start, span.end)} - set(
            plan.unhidden_seqs
        )
        twice = fresh & self.in_summaries
        assert all(map(self.view.shows, twice)), "only what was shown again is summarised again"
        self.in_summaries |= fresh


def summary_of(span: Span, tokens: int, level: int = 1) -> Summary:
    """Return a summary whose text takes exactly so many tokens."""
    text = "sum" * tokens
    return Summary(span, text, summary_message_tokens(text, third), level)


@st.composite
def talks(draw: st.DrawFn) -> Talk:
    """Draw a conversation of any policy that compacts, window and factor, some of it pinned."""
    policy = Policy(
        strategy=draw(st.sampled_from(COMPACTING)),
        sandwich=SandwichPolicy(
            preserve_top=draw(st.integers(0, 4)), preserve_bottom=draw(st.integers(1, 4))
        ),
        tree_summary=TreeSummaryPolicy(chunk_size=draw(st.integers(2, 6))),
        compaction=CompactionPolicy(
            retain_last_turns=draw(st.integers(0, 2)),
            target=draw(st.sampled_from((0.3, 0.5, 0.8))),
        ),
        preserve_user_messages=draw(st.booleans()),
    )
    limits = replace(LIMITS, total=100 + draw(st.integers(1000, 4000)))
    resolved = resolved_with(
        policy, limits, draw(st.integers(0, 150)), draw(st.sampled_from((1.0, 1.2)))
    )
    talk = Talk(resolved, [])
    talk.grow(draw(entries(16)))
    talk.repin(draw(pins(talk)))
    return talk


def pins(talk: Talk) -> st.SearchStrategy[list[int]]:
    """Draw a few seqs of a log to pin, often none."""
    return st.just([]) | st.lists(st.integers(1, len(talk.log)), max_size=3)


def minimum_shown(talk: Talk) -> set[int]:
    """Return the seqs that the strategy must keep, pins left out."""
    policy, shown, covered = (
        talk.resolved.policy,
        talk.compaction_input.shown,
        talk.state.hidden_span,
    )
    tail = [item for item in shown if covered is None or item.seq >= covered.end]
    state = [item for item in shown if covered is not None and item.seq < covered.start]
    starts = [
        index
        for index, item in enumerate(tail)
        if index == 0 or (item.role is U and not item.joins)
    ]
    last_group = tail[group_boundary_before(tail, len(tail) - 1) :]
    match policy.strategy:
        case StrategyName.SANDWICH:
            ends = policy.sandwich
            if covered is None:
                state = shown[: group_boundary_after(shown, ends.preserve_top)]
            bottom = shown[group_boundary_before(shown, len(shown) - ends.preserve_bottom) :]
            left = [*state, *bottom]
        case StrategyName.TREE_SUMMARY:
            left = [*state, *last_group]
        case StrategyName.RETAIN_SUMMARY:
            turns = policy.compaction.retain_last_turns
            left = tail[starts[-turns] :] if 0 < turns <= len(starts) else tail
            left = left if turns else last_group
        case _:
            left = tail[starts[-1] :] if starts else []
    return {item.seq for item in left}


def advance(talk: Talk, options: Options) -> None:
    """Compact with these options and check the result."""
    plan = talk.plan(options)
    if isinstance(plan, NoCompaction):
        return
    before, minimum, used = talk.view, minimum_shown(talk), talk.used
    after = talk.apply(plan, options.get("strategy") or talk.resolved.policy.strategy)
    check_view(talk, before, after)
    if not options:
        check_usage(talk, minimum)
        limits = talk.resolved.compaction_limits()
        min_gain = MIN_GAIN * limits.effective_window
        assert used - talk.used >= min_gain - 4 * talk.resolved.factor, "rounded up in each part"
    again = talk.plan(options)
    assert isinstance(again, NoCompaction), (plan, again)


def check_view(talk: Talk, before: View, after: View) -> None:
    """Check the view that a compaction makes."""
    shown = shown_entries(talk.log, after)
    assert shown_entries(talk.log, talk.view) == shown, "the head says the same as the receipt"
    assert talk.view.summary_texts() == after.summary_texts()
    for item in talk.log:
        assert not item.pinned or item in shown, "a pin is neither hidden nor cleared"
        if not before.shows(item.seq):
            assert not after.shows(item.seq), "what was hidden stays hidden"
    places = [summary.span for summary in after.summaries]
    assert all(a.end <= b.start for a, b in pairwise(places))
    gone = {item.seq for item in talk.log if not after.shows(item.seq)}
    summarised = {seq for span in places for seq in range(span.start, span.end)}
    assert (after.note is None) == (gone <= summarised)
    assert gone & summarised <= talk.in_summaries | talk.dropped, "a summary covers its whole range"
    assert talk.state.shown_tokens == sum(item.tokens for item in shown)
    assert talk.state.head_seq - talk.state.hidden_messages == len(shown)


def check_usage(talk: Talk, minimum: set[int]) -> None:
    """Check that usage is within the target, or that only what must stay is shown."""
    resolved, limits, hidden = (
        talk.resolved,
        talk.resolved.compaction_limits(),
        talk.state.hidden_span,
    )
    must = [
        item
        for item in shown_entries(talk.log, talk.view)
        if item.seq in minimum
        or item.seq in protected(talk.log).unhidden
        or (item.role is U and resolved.policy.preserve_user_messages)
        or (hidden is not None and hidden.holds(item.seq))
    ]
    tokens, reserve = (
        sum(item.tokens for item in must),
        summary_reserve(limits),
    )
    if resolved.usage(tokens, max(reserve, talk.state.summary_tokens)).total > limits.capacity:
        return  # not even that fits: the steps without a model take over
    most = resolved.usage(tokens, talk.state.summary_tokens).total
    target = resolved.policy.compaction.target * limits.effective_window
    rounding = 0 if resolved.factor == 1 else 3
    assert talk.used <= max(target, most) + rounding


WISHES = st.sampled_from(({}, FORCED)) | st.sampled_from(COMPACTING).map(
    lambda name: {**FORCED, "strategy": name}
)


@given(talks(), st.data())
@settings(max_examples=75, deadline=None)
def test_compactions_in_a_row_keep_every_invariant(talk: Talk, data: st.DataObject) -> None:
    """Each is idempotent, reaches its target and shows every pin. [strategy.idempotent]"""
    for _ in range(data.draw(st.integers(1, 5))):
        advance(talk, data.draw(WISHES))
        if data.draw(st.booleans()):
            talk.repin(data.draw(pins(talk)))
        talk.grow(data.draw(entries(6)))
