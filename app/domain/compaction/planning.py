"""Compaction: from a plan to a receipt, and from a receipt to a view (D6, D7, E7, E8).

1. A compaction replaces the view by one that hides or clears more. The log never changes.
2. It is worth its while only if it frees enough (D7); a forced one only has to free something.
3. It is applied only to the view it was planned on, and never over a pin (D8).
4. What was hidden without a summary, because it had to be left out in a hurry, is taken into the
   next summary that is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from app.domain.common.messages import Role
from app.domain.common.policy import CompactionMode, Policy, StrategyName, SummaryRole
from app.domain.compaction.strategies import (
    STRATEGIES,
    CompactionPlan,
    HistoryBudget,
    NoCompaction,
    SlidingCut,
)
from app.domain.compaction.summaries import EXTRACTIVE
from app.domain.conversations.compaction_receipt import Compaction, Trigger
from app.domain.conversations.conversation import Conversation, ConversationState
from app.domain.conversations.turns import Entry, entry
from app.domain.conversations.view import (
    SUMMARY_PREFIX,
    WHOLE,
    ShortenedMessage,
    Span,
    Summary,
    View,
    count_in,
    hidden_by,
    minus,
    overlap,
    spans_beside,
    spans_of,
    union,
)
from app.domain.models.budget import Limits
from app.domain.models.tokens import MESSAGE_OVERHEAD, CountText
from app.domain.prompt.resolved_settings import ResolvedSettings
from app.domain.tool_output.preview import GREP, READ_BYTES, READ_LINES

MIN_SUMMARY_TOKENS = 64
MAX_SUMMARY_TOKENS = 2048
SUMMARY_SHARE = 0.1
TREE_SHARE = 0.2
MAX_TREE_TOKENS = 8192
TREE_NODES = 8
"""So many summaries of a tree fit at their largest; more fold into the next level."""
LABEL_TOKENS = 20
"""What the message of a summary costs besides its text."""
NOTE_TOKENS = 32
"""Room for the note that says what was left out."""
RESUME_SHARE = 0.05
"""The share of the window a log grows by before a compaction is tried again (decision 24)."""


@dataclass(frozen=True, slots=True)
class CompactResult:
    """What a compaction did, or why it did nothing (E7); tokens are of the whole payload.

    `estimated` tells of a dry run that no model wrote a summary for: its size is a guess.
    `degraded` names what the compaction had to do without.
    """

    compacted: bool
    reason: str | None
    compaction_id: str | None
    before_tokens: int
    after_tokens: int
    before_msg_count: int
    after_msg_count: int
    strategies_run: tuple[str, ...]
    summary_range: tuple[int, int] | None
    model: str | None
    summary_tokens: int
    cost_usd: float | None
    duration_ms: int
    estimated: bool = False
    degraded: tuple[str, ...] = ()


class CompactionPending:
    """A compaction of this conversation is running; nobody waits for it (decision 15)."""


@dataclass(frozen=True, slots=True)
class CompactionThreshold:
    """Where a compaction becomes due: raw tokens of history and summary, and messages (C3, E6).

    None is never.
    """

    tokens: int | None = None
    messages: int | None = None

    def reached(self, state: ConversationState) -> bool:
        """Whether a head is over the line, and not told to wait (decision 24)."""
        if state.tokens < state.resume_at:
            return False
        shown = state.shown_tokens + state.summary_tokens
        return (self.tokens is not None and shown >= self.tokens) or self.is_crowded(state)

    def is_crowded(self, state: ConversationState) -> bool:
        """Whether a head shows more messages than it may: then any gain is worth it (E6)."""
        messages = state.head_seq - state.hidden_messages
        return self.messages is not None and messages > self.messages


NO_THRESHOLD = CompactionThreshold()


def compaction_threshold(resolved: ResolvedSettings) -> CompactionThreshold:
    """Return where a background compaction is due by this frame, nowhere if it never is."""
    policy, limits = resolved.policy.compaction, resolved.policy_limits
    if not (policy.enabled and policy.auto) or policy.mode is CompactionMode.INLINE:
        return NO_THRESHOLD
    if limits is None or limits.due_at is None:
        return NO_THRESHOLD
    used = limits.due_at * limits.effective_window
    tokens = math.ceil(used / resolved.factor) - resolved.raw_fixed.fixed
    return CompactionThreshold(tokens, policy.max_messages)


def resume_at(state: ConversationState, limits: Limits) -> int:
    """Return how large the log has to grow before it is compacted by itself again."""
    return state.tokens + int(RESUME_SHARE * limits.effective_window)


# --- the room -------------------------------------------------------------------------------


def summary_room(limits: Limits) -> int:
    """Return how many tokens the text of one summary may take in this window."""
    return _summary_reserve(limits) - LABEL_TOKENS


def tree_room(limits: Limits) -> int:
    """Return how many tokens the texts of all summaries of a tree may take together (D3)."""
    return max(MIN_SUMMARY_TOKENS, _tree_reserve(limits) - TREE_NODES * LABEL_TOKENS)


def node_room(limits: Limits) -> int:
    """Return how many tokens the text of one summary of a tree may take."""
    return max(MIN_SUMMARY_TOKENS // 2, tree_room(limits) // TREE_NODES)


def reserve_for(strategy: StrategyName, limits: Limits) -> int:
    """Return what a strategy keeps free for the messages of its summaries, labels included."""
    is_tree = strategy is StrategyName.TREE_SUMMARY
    return _tree_reserve(limits) if is_tree else _summary_reserve(limits)


def _summary_reserve(limits: Limits) -> int:
    share = int(limits.effective_window * SUMMARY_SHARE)
    return max(MIN_SUMMARY_TOKENS, min(share, MAX_SUMMARY_TOKENS))


def _tree_reserve(limits: Limits) -> int:
    share = int(limits.effective_window * TREE_SHARE)
    return max(2 * MIN_SUMMARY_TOKENS, min(share, MAX_TREE_TOKENS))


def expected_tokens(active: Compaction | None, strategy: StrategyName, most_tokens: int) -> int:
    """Return what one summary by a model will probably cost, label included.

    That is what the last ones did that a model wrote by this strategy, else half of its room.
    """
    made = active.made if active is not None and active.strategy == strategy else ()
    if active is not None and made and active.model != EXTRACTIVE:
        return sum(summary.tokens for summary in made) // len(made)
    return most_tokens // 2 + LABEL_TOKENS


def room_for(
    limits: Limits, policy: Policy, fixed: int, summary: int, factor: float
) -> HistoryBudget:
    """Return the room of a history in raw counts, before the model's factor."""
    return HistoryBudget(
        capacity=int(limits.capacity / factor),
        target=int(limits.effective_window * policy.compaction.target / factor),
        fixed=fixed,
        summary=summary,
    )


# --- the plan -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CompactionOptions:
    """What is asked of one compaction beyond the policy.

    `forced` takes any gain, `deep` goes as low as the strategy can, and `lowers` does so where
    the target is met already. `strategy` and `target_tokens` replace the policy's for this
    one (E7).
    """

    forced: bool = False
    deep: bool = False
    lowers: bool = False
    strategy: StrategyName | None = None
    target_tokens: int | None = None


def plan_for(
    entries: Sequence[Entry],
    state: ConversationState,
    resolved: ResolvedSettings,
    used: int,
    wish: CompactionOptions,
    view: View | None = None,
) -> NoCompaction | CompactionPlan:
    """Return what to compact of the visible entries, judged by the policy's own window.

    `used` are the payload's tokens, `view` is what it shows. Over the window any gain is worth
    it: the alternative is to leave messages out.
    """
    policy, limits = resolved.policy, resolved.judging_limits()
    if not policy.compaction.enabled:
        return NoCompaction("compaction is disabled")
    own = STRATEGIES[policy.strategy]
    strategy = STRATEGIES[wish.strategy or policy.strategy]
    if own.trigger(policy) is None:
        strategy = own  # what never compacts by its policy does not do so for one call either
    reserve = max(reserve_for(strategy.name, limits), state.summary_tokens)
    through = 1 if any(item.clearable for item in entries) else state.trimmed_through
    fixed = resolved.raw_fixed.fixed + own_tools_cost(resolved, state, through)
    room = room_for(limits, policy, fixed, reserve, resolved.factor)
    room = replace(room, summary_now=max(NOTE_TOKENS, state.summary_tokens))
    if wish.target_tokens is not None:
        room = replace(room, target=int(wish.target_tokens / resolved.factor))
    is_within = room.is_within(entries)
    deep = wish.target_tokens is None and (wish.deep or (wish.lowers and is_within))
    is_free = wish.forced or used > limits.capacity
    least_gain = policy.compaction.min_gain * limits.effective_window
    if not is_free and not is_within:
        now = sum(item.tokens for item in entries) + room.fixed + state.summary_tokens
        lowered = math.floor(now - least_gain / resolved.factor)
        room = replace(room, target=min(room.target, lowered))
    failures = 0 if wish.forced else state.failures

    def plan_in(room: HistoryBudget) -> NoCompaction | CompactionPlan | SlidingCut:
        return strategy.plan(entries, state.span, room, policy, deep=deep, failures=failures)

    plan = plan_in(room)
    if isinstance(plan, SlidingCut):
        return NoCompaction(f"{strategy.name} keeps no summary: its window moves with each build")
    # Fewer chunks need less room, which leaves fewer messages to summarise.
    while isinstance(plan, CompactionPlan) and plan.chunks and not deep:
        needed = _nodes_cost(plan, state, view, policy, limits)
        again = plan_in(replace(room, summary=needed)) if needed < reserve else plan
        if again is plan or not isinstance(again, CompactionPlan):
            break
        plan, reserve = again, needed
    if isinstance(plan, CompactionPlan) and not is_free:
        gain = plan.freed_tokens - (reserve if plan.summarises and not state.summary_tokens else 0)
        if gain < least_gain:
            return NoCompaction("too little would be freed")
    return plan


def _nodes_cost(
    plan: CompactionPlan,
    state: ConversationState,
    view: View | None,
    policy: Policy,
    limits: Limits,
) -> int:
    """Return the most that the summaries of a tree cost once a plan is carried out."""
    chunks: Sequence[Span] = plan.chunks
    if view is not None:
        chunks = chunks_for(plan, view, policy.tree_summary.chunk_size)
    return state.summary_tokens + len(chunks) * (node_room(limits) + LABEL_TOKENS)


def fresh_spans(
    hidden: Span,
    summarised: Span | None,
    released: Iterable[int],
    window: tuple[Span, ...] = WHOLE,
) -> list[Span]:
    """Return what a new summary of a hidden range has to be made of.

    That is what of the window no summary stands for yet, and the `released` seqs, which were kept
    until now.
    """
    parts = [hidden]
    if summarised is not None:
        parts = [Span(hidden.start, min(summarised.start, hidden.end))]
        parts += [Span(seq, seq + 1) for seq in sorted(released) if summarised.holds(seq)]
        parts.append(Span(max(summarised.end, hidden.start), hidden.end))
    return list(overlap((part for part in parts if part.start < part.end), window))


def chunks_for(plan: CompactionPlan, view: View, chunk_size: int) -> list[Span]:
    """Return the chunks of a tree: the plan's, and what was left out since its last summary.

    A tree grows at its end only, so nothing before its summaries is among them, nor is a chunk
    that would hold kept messages alone, or none of the window.
    """
    start = view.summarised.end if view.summarised is not None else 0
    chunks = [chunk for chunk in plan.chunks if chunk.start >= start]
    if (hidden := view.hidden) is not None:
        missed = range(max(start, hidden.start), hidden.end, chunk_size)
        gaps = (Span(at, min(at + chunk_size, hidden.end)) for at in missed)
        kept = set(plan.kept)
        chunks += [gap for gap in gaps if not kept.issuperset(range(gap.start, gap.end))]
    inside = (chunk for chunk in chunks if overlap((chunk,), view.window))
    return sorted(inside, key=lambda chunk: chunk.start)


# --- the view -------------------------------------------------------------------------------


def base_view(state: ConversationState, active: View | None, policy: Policy) -> View:
    """Return what a head shows when nothing has to be reduced: the active compaction's view.

    A window that was moved since shows less of it, or more: what was outside when the compaction
    ran is shown once it is inside. A summary that is wholly outside is not shown any more (B3).
    """
    window = state.window.spans
    if active is None:
        return View(spans=window, window=window)
    hidden = minus(active.window, active.spans)
    kept = overlap(spans_of(state.kept), window)
    view = replace(
        active,
        spans=union((*minus(window, hidden), *kept)),
        untrimmed=tuple(seq for seq in state.kept if seq <= active.trimmed_through),
        summary_as_system=policy.summary_role is SummaryRole.SYSTEM,
        window=window,
    )
    return view if window == active.window else _in_window(view)


def _in_window(view: View) -> View:
    """Return a view without what tells of messages outside its window alone."""
    told = tuple(summary for summary in view.summaries if overlap((summary.span,), view.window))
    retain = view.retain if told or not view.summaries else None
    return with_note(replace(view, summaries=told, retain=retain))


def unhidden(state: ConversationState) -> ConversationState:
    """Return the head as it is once its compaction is no longer shown."""
    return replace(
        state,
        view_version=state.view_version + 1,
        view_cause="policy_changed",
        compaction_id=None,
        span=None,
        kept=(),
        trimmed_through=0,
        summary_tokens=0,
        hidden_tokens=state.outside_tokens,
        hidden_messages=state.outside_messages,
        resume_at=0,
        failures=0,
    )


def view_after(
    view: View,
    plan: CompactionPlan,
    summaries: Sequence[Summary],
    retain: str | None,
    whole: Iterable[int],
) -> View:
    """Return the view that a plan makes of another, once its summaries are there.

    Of what it still shows, the seqs in `whole` are not cleared: pins and excluded results.
    """
    through = max(view.trimmed_through, plan.trimmed_through)
    hidden = plan.hidden or view.hidden
    kept = plan.kept if plan.hidden is not None else view.kept
    spans = spans_beside(hidden, kept, view.window)
    after = replace(
        view,
        spans=spans,
        summaries=tuple(_inside(summaries, hidden_by(spans, view.window))),
        retain=retain,
        trimmed_through=through,
    )
    stays = sorted(seq for seq in {*kept, *whole} if seq <= through and after.shows(seq))
    after = shorten(replace(after, untrimmed=tuple(stays)), ())
    if plan.hidden is None:
        return after
    return with_note(after, untold=0 if plan.summarises else len(plan.released))


def _inside(summaries: Iterable[Summary], hidden: Span | None) -> Iterator[Summary]:
    """Yield the summaries of what is hidden: what is shown at its edges has none (N10)."""
    for summary in summaries:
        start, end = summary.span.start, summary.span.end
        if hidden is not None:
            start, end = max(start, hidden.start), min(end, hidden.end)
            if start < end:
                yield replace(summary, span=Span(start, end))


def with_note(view: View, untold: int = 0) -> View:
    """Return the view with a note of the messages that no summary tells of, if there are any.

    `untold` are more of them: those that were kept while the summary around them was made.
    """
    hidden = view.hidden
    if hidden is None:
        return replace(view, note=None)
    kept = view.kept
    inside = overlap((hidden,), view.window)
    told = overlap((summary.span for summary in view.summaries), inside)
    left_out = untold + count_in(inside) - len(kept)
    left_out -= count_in(told) - sum(span.holds(seq) for span in told for seq in kept)
    messages = "1 earlier message was" if left_out == 1 else f"{left_out} earlier messages were"
    note = f"[{messages} left out to fit the window.]"
    return replace(view, note=note if left_out > 0 else None)


def kept_of(view: View) -> tuple[int, ...]:
    """Return the seqs a head keeps for a view: those shown in its hidden range, and not cleared."""
    return tuple(sorted({*view.kept, *filter(view.shows, view.untrimmed)}))


def newly_kept(
    view: View, kept: Sequence[int], pinned: Iterable[Entry]
) -> tuple[tuple[int, ...], int, int]:
    """Return what a head keeps once messages are pinned, with the tokens and messages it gains.

    `view` is the active compaction's own, `kept` what the head keeps already.
    """
    hidden, have = view.hidden, set(kept)
    tokens = messages = 0
    for item in pinned:
        if item.seq in have or not overlap((Span(item.seq, item.seq + 1),), view.window):
            continue
        if hidden is not None and hidden.holds(item.seq):
            tokens, messages = tokens + item.tokens, messages + 1
        elif view.trims(item.seq) and item.role is Role.TOOL:
            tokens += item.tokens - entry(item.seq, item.role, item.tokens).trimmed_tokens
        else:
            continue
        have.add(item.seq)
    return tuple(sorted(have)), tokens, messages


def as_shown(entries: Iterable[Entry], view: View) -> list[Entry]:
    """Return the entries a view shows, each at what it costs there.

    One kept in the hidden range is not cleared any more: it is hidden once it need not be kept.
    """
    hidden = view.hidden
    return [
        _at_cost(item, view, hidden) for item in as_shortened(entries, view) if view.shows(item.seq)
    ]


def as_shortened(entries: Iterable[Entry], view: View) -> Iterable[Entry]:
    """Return the entries with those that a view shortens at what is left of them."""
    if not view.shortened:
        return entries
    left = {short.seq: short.tokens for short in view.shortened}
    return [
        replace(item, tokens=left[item.seq], trimmed_tokens=left[item.seq])
        if item.seq in left
        else item
        for item in entries
    ]


def shorten(view: View, shorts: Iterable[ShortenedMessage]) -> View:
    """Return the view with more messages shortened, or shorter, and those not shown left out."""
    by_seq = {short.seq: short for short in (*view.shortened, *shorts) if view.shows(short.seq)}
    return replace(view, shortened=tuple(by_seq[seq] for seq in sorted(by_seq)))


def _at_cost(item: Entry, view: View, hidden: Span | None) -> Entry:
    if view.trims(item.seq):
        return replace(item, tokens=item.trimmed_tokens)
    if hidden is not None and hidden.holds(item.seq):
        return replace(item, trimmed_tokens=item.tokens)
    return item


def shown_cost(summary: str, count: CountText) -> int:
    """Return the tokens of the message that carries a summary's text."""
    return MESSAGE_OVERHEAD + count(f"{SUMMARY_PREFIX}{summary}]")


def summary_cost(view: View, count: CountText) -> int:
    """Return the tokens of the messages that stand for what a view hides, 0 without any."""
    return sum(MESSAGE_OVERHEAD + count(text) for text in view.summary_texts())


def own_tools_cost(
    resolved: ResolvedSettings,
    state: ConversationState,
    trimmed_through: int | None = None,
    *,
    shortens: bool = False,
) -> int:
    """Return what the agent's own tools cost in a payload, at the most, before the factor (L1).

    That is, if all that was ever cut is shown; `trimmed_through` is that of the view in question,
    `shortens` tells whether it shortens messages.
    """
    mentions = own_mentions(state, trimmed_through)
    readers = (READ_LINES, GREP, READ_BYTES) if shortens else ()
    return resolved.extra_tokens(resolved.agent_tools((*mentions, *readers)))


def own_mentions(state: ConversationState, trimmed_through: int | None = None) -> tuple[str, ...]:
    """Return the own tools that a payload may mention, if all that was ever cut is shown."""
    through = state.trimmed_through if trimmed_through is None else trimmed_through
    return (*state.mentions, READ_LINES) if through else state.mentions


@dataclass(frozen=True, slots=True)
class CompactionInput:
    """What a compaction is planned on: the conversation, its frame, what it shows.

    `active` is the receipt of the compaction that made the view, None where nothing is compacted.
    """

    tenant_id: str
    conversation: Conversation
    resolved: ResolvedSettings
    view: View
    entries: tuple[Entry, ...]
    active: Compaction | None = None

    @property
    def state(self) -> ConversationState:
        """The head it was read with."""
        return self.conversation.state

    @property
    def shown(self) -> list[Entry]:
        """The entries at what they cost now."""
        return as_shown(self.entries, self.view)

    def tokens_in(self, view: View) -> int:
        """Return the tokens of a payload that shows this view of the same log, at the most."""
        shown = sum(entry.tokens for entry in as_shown(self.entries, view))
        tools = own_tools_cost(
            self.resolved, self.state, view.trimmed_through, shortens=bool(view.shortened)
        )
        return self.resolved.usage(shown, summary_cost(view, self.resolved.count), tools).total

    def is_settled(self, strategy: StrategyName) -> bool:
        """Whether a compaction by this strategy went down to the target, and nothing came since.

        Asked for again it has nothing to do (D7).
        """
        if self.active is None or self.active.strategy != strategy:
            return False
        if self.active.trigger in (Trigger.TOOL_OUTPUT, Trigger.EMERGENCY):
            return False
        limits = self.resolved.judging_limits()
        target = limits.effective_window * self.resolved.policy.compaction.target
        has_grown = self.messages_in(self.view) > self.active.after_msg_count
        return self.active.before_tokens > target and not has_grown

    def messages_in(self, view: View) -> int:
        """Return the messages of such a payload, those that stand for others among them."""
        return len(as_shown(self.entries, view)) + len(view.summary_texts())


# --- the receipt ----------------------------------------------------------------------------


def result_of(receipt: Compaction) -> CompactResult:
    """Return what a caller is told of a compaction that was applied."""
    has_summary = bool(receipt.view.summaries)
    return CompactResult(
        compacted=True,
        reason=None,
        compaction_id=receipt.compaction_id,
        before_tokens=receipt.before_tokens,
        after_tokens=receipt.after_tokens,
        before_msg_count=receipt.before_msg_count,
        after_msg_count=receipt.after_msg_count,
        strategies_run=receipt.strategies_run,
        summary_range=(receipt.span.start, receipt.span.end) if has_summary else None,
        model=receipt.model,
        summary_tokens=receipt.summary_tokens,
        cost_usd=receipt.cost_usd,
        duration_ms=receipt.duration_ms,
        degraded=receipt.degraded,
    )
