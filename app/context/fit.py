"""Makes a payload fit in the context window.

Tool results over their budget are cleared, and a compaction that is due is made, which changes the
conversation. What is too long after that is reduced for this payload alone, without a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from app.common.errors import ServiceUnavailable, ValidationError
from app.compaction.planning import CompactionInput, history_budget, summary_reserve
from app.compaction.reduction import (
    REPEATED_CLEARED,
    RESULTS_CLEARED,
    plan_clearing,
    reduced_to_fit,
    tool_output_limits,
    tool_output_tokens,
)
from app.compaction.run import SUMMARISER_UNAVAILABLE
from app.compaction.service import BUILT_IN, excluded_seqs, find_repeated
from app.compaction.shown_history import NOTE_TOKENS, ShownHistory
from app.compaction.strategies import STRATEGIES
from app.context.choose_view import noted, render, render_view, show_newest_user
from app.context.epoch_reasons import EpochChoice, choose_epoch
from app.context.state import (
    DEGRADED_ONE_BUILD,
    REASONING_DROPPED,
    BuildDependencies,
    BuildState,
    Overflow,
    Retry,
)
from app.conversations.due import exceeds_messages
from app.conversations.partial_messages import (
    MEDIA_LEFT_OUT,
    MESSAGES_SHORTENED,
    cut_for,
    limits_of_largest,
    limits_of_oversized,
    reader_tool_tokens,
)
from app.conversations.pressure import is_suspended
from app.conversations.receipt import PENDING, ChainStage, CompactionPlan, NoCompaction
from app.conversations.turns import Entry, entry
from app.conversations.view import MediaCut, ShortenedMessage, Span, Summary, View, spans_through
from app.conversations.view_changes import base_view, with_shortened, without_item
from app.formats import PROVIDERS
from app.formats.message import Role
from app.models.budget import Pressure, pressure_status
from app.models.tokens import media_limits
from app.policy.policy import StrategyName

EXTRACTIVE_SUMMARY = "extractive_summary"
"""In `degraded`: the summary was made for this payload alone, without a model."""
_RENDERING_MARGIN = 16
"""How many tokens more are saved than a rendered payload has above the limit."""
_MAX_ROUNDS = 12


@dataclass(frozen=True, slots=True)
class Fitted:
    """A rendered payload that fits, and its epoch."""

    state: BuildState
    epoch: EpochChoice


async def fit(deps: BuildDependencies, state: BuildState) -> Fitted | Retry | Overflow:
    """Return a payload that fits.

    Where changed sections and tools should be items, but have no place, or the payload does not
    extend the last epoch, a new epoch begins with them as its prompt.
    """
    fitted = await _fit(deps, state)
    extends = state.continued_epoch is None or isinstance(fitted, Retry)
    if isinstance(fitted, Fitted) and fitted.state.rendered is not None:
        begins = fitted.epoch.break_reason and (fitted.epoch.leaves_prefix or state.has_new_change)
        extends = extends or not (begins or fitted.state.rendered.assembler.misplaced)
    return fitted if extends else Retry(replace(state.attempt, must_begin_epoch=True))


async def _fit(deps: BuildDependencies, state: BuildState) -> Fitted | Retry | Overflow:
    """Return a payload that fits, as an epoch or a part of the last one.

    A rendered text may mention tools that the payload needs, or cost more than its estimate: then
    it is rendered or reduced again.
    """
    epoch: EpochChoice | None = None
    reduced = await _fit_by_counts(deps, state)
    for _ in range(_MAX_ROUNDS):
        if not isinstance(reduced, BuildState):
            return reduced
        epoch = choose_epoch(reduced, epoch)
        state = reduced = await render(deps, reduced, epoch.start.view, epoch.kept_tools)
        if not epoch.matches(state):
            continue
        if (cut := _media_cut(state)) is not None:
            reduced = state.with_view(replace(state.view, media_cut=cut)).degrade(MEDIA_LEFT_OUT)
        elif state.fits:
            return await _clear_repeated_results(deps, state, epoch) or Fitted(state, epoch)
        else:
            # Plans use the tokens of entries: set them to the cost of their rendered items. What
            # the payload costs beyond these is the overshoot.
            estimated = _with_rendered_costs(state)
            overshoot = state.tokens.total - estimated.tokens.total + _RENDERING_MARGIN
            reduced = await _reduce(deps, estimated, overshoot, _has_reasoning(state))
    return Overflow(state, state.view_entries)


async def _fit_by_counts(
    deps: BuildDependencies, state: BuildState
) -> BuildState | Retry | Overflow:
    """Return a state that fits by the counts of its entries.

    Tool output over its budget is cleared in any case. A view that is too long is compacted where
    its policy allows that, and reduced without a model otherwise.
    """
    state = await _render_fitting(deps, state)
    if await _clear_tool_results(deps, state):
        return state.retry()
    if not state.fits and (shortened := await _shorten_oversized(deps, state)) is not None:
        state = await _render_fitting(deps, shortened)  # texts in part add the tools that they name
    compacted = await _compact(deps, state)
    if isinstance(compacted, Retry) or compacted.fits:
        return compacted
    return await _reduce(deps, compacted, 0, _has_reasoning(compacted))


async def _render_fitting(deps: BuildDependencies, state: BuildState) -> BuildState:
    """Render a view that fits, so that its pressure is that of the payload as sent."""
    if state.rendered is None and state.fits:
        state = await render_view(deps, state)
    if state.rendered is not None:
        state = await noted(state, state.tools.agent_tools)
    return state


def _has_reasoning(state: BuildState) -> bool:
    return state.rendered is not None and state.rendered.assembler.has_reasoning


def _with_rendered_costs(state: BuildState) -> BuildState:
    """Drop the rendered history; each entry costs what its rendered items did."""
    assert state.rendered is not None
    costs = state.rendered.assembler.costs_by_seq
    entries = [
        entry(item.seq, item.role, costs.get(item.seq, item.tokens), joins=item.joins)
        for item in state.entries
    ]
    return replace(state, rendered=None, items=None, entries=entries)


def _media_cut(state: BuildState) -> MediaCut | None:
    """Return which media a rendered payload has to leave out, None where it need not."""
    assert state.rendered is not None and state.items is not None
    sent, resolved = state.rendered.assembler.media, state.resolved
    limits = media_limits(resolved.model or "", state.format, state.limits.context_window)
    if limits is None or not sent:
        return None
    tools = resolved.wire_tools(state.format, state.tools) or b""
    system = (*(section.content for section in resolved.sections), *state.system_dynamic_texts)
    size = sum(map(len, state.items.wire_items)) + len(tools) + sum(map(len, system))
    cut = cut_for(sent, size, limits)
    return cut if cut != state.view.media_cut else None


# --- clearing and compacting ----------------------------------------------------------------------


async def _clear_tool_results(deps: BuildDependencies, state: BuildState) -> bool:
    """Clear tool results over their budget; return whether that changed the conversation."""
    resolved, attempt = state.resolved, state.attempt
    limits, policy = resolved.compaction_limits(), resolved.policy.tool_output
    is_kept = not policy.enabled or resolved.policy.strategy is StrategyName.FULL_HISTORY
    if is_kept or attempt.is_dry_run:
        return False
    budget, min_cleared = tool_output_limits(policy, limits.context_window)
    if state.rendered is not None:
        output_tokens = state.rendered.output_tokens
    else:
        output_tokens = sum(tool_output_tokens(item, state.view) for item in state.entries)
    if output_tokens <= budget or is_suspended(state.stored, state.policy_tokens.total, limits):
        return False
    state = await _find_excluded_seqs(deps, state)
    plan = plan_clearing(_shown(state), output_tokens - budget, min_cleared)
    return plan is not None and await _clear_by(deps, state, plan)


async def _clear_repeated_results(
    deps: BuildDependencies, state: BuildState, epoch: EpochChoice
) -> Retry | None:
    """Clear repeated results where the prefix breaks anyway; None where nothing changed.

    Where the prefix breaks because another payload stream cleared results, nothing is cleared: two
    streams would break each other's prefix for ever. Nor is anything cleared where the view was
    reduced for this payload alone, because that view is not stored.
    """
    limits, policy = state.resolved.compaction_limits(), state.resolved.policy
    output, item = policy.tool_output, state.view.provider_item
    is_kept = not (output.enabled and output.clear_repeated) or state.attempt.is_dry_run
    if is_kept or policy.strategy is StrategyName.FULL_HISTORY or item is not None:
        return None
    is_free = epoch.leaves_prefix and epoch.break_reason not in (RESULTS_CLEARED, REASONING_DROPPED)
    is_reduced = not {*state.degraded}.issubset((*DEGRADED_ONE_BUILD, REPEATED_CLEARED))
    if not is_free or is_reduced or is_suspended(state.stored, state.policy_tokens.total, limits):
        return None
    state = await _find_excluded_seqs(deps, state)
    shown = _shown(state)
    async with deps.database.session() as session:
        spans = spans_through(state.view.spans, state.stored.head_seq)
        repeated = await find_repeated(session, state.conversation_id, shown, spans)
    plan = CompactionPlan((ChainStage.CLEAR_TOOL_RESULTS,), 0, repeated_results=repeated)
    if not repeated or not await _clear_by(deps, state, plan):
        return None
    return Retry(replace(state.attempt, break_reason=epoch.break_reason))


async def _clear_by(deps: BuildDependencies, state: BuildState, plan: CompactionPlan) -> bool:
    """Clear results by a plan; return whether that, or something else, changed the conversation."""
    policy, stored = state.resolved.policy, state.stored
    view = replace(state.view, media_cut=None)
    if policy.strategy is StrategyName.SLIDING_WINDOW:  # the spans are of one payload
        async with deps.database.session() as session:
            key, active_id = state.conversation_id, stored.compaction_id
            active = await session.contexts.find_receipt(key, active_id)
        base = base_view(stored, active.view if active else None, policy)
        view = replace(view, spans=base.spans)
    return await deps.compaction.clear_tool_results(replace(input_of(state), view=view), plan)


async def _find_excluded_seqs(deps: BuildDependencies, state: BuildState) -> BuildState:
    """Add the seqs of shown results of tools that the policy excludes from clearing."""
    tools = state.resolved.policy.tool_output.exclude_tools
    if not tools or state.excluded_seqs is not None:
        return state
    entries = list(state.entries)  # a copy: the cached ones may grow
    async with deps.database.session() as session:
        spans = spans_through(state.view.spans, state.stored.head_seq)
        key, view = state.conversation_id, state.view
        excluded = await excluded_seqs(session, key, entries, view, spans, tools)
    return replace(state, entries=entries, excluded_seqs=excluded)


async def _compact(deps: BuildDependencies, state: BuildState) -> BuildState | Retry:
    """Compact once in a build, if it is due."""
    if not _is_compaction_due(state):
        return state
    attempt, stored = state.attempt, state.stored
    version = (stored.head_seq, stored.view_version, state.resolved.policy_hash, state.input.pins)
    once = replace(state, attempt=replace(attempt, may_compact=False))
    try:
        result = await deps.compaction.compact_for_build(
            attempt.tenant_id, attempt.conversation_id, attempt.settings, stored, version
        )
    except (ServiceUnavailable, ValidationError):
        return once.degrade(SUMMARISER_UNAVAILABLE)
    if isinstance(result, NoCompaction):
        return once.degrade("compaction_pending") if result is PENDING else once
    if result is None:  # the view changed meanwhile
        return state.retry()
    compacted = replace(once, attempt=replace(once.attempt, compaction=result))
    return compacted.degrade(*result.degraded).retry()


def _is_compaction_due(state: BuildState) -> bool:
    resolved, limits, stored = state.resolved, state.resolved.policy_limits, state.stored
    policy, strategy = resolved.policy.compaction, resolved.policy.strategy
    is_able = state.attempt.may_compact and policy.enabled and STRATEGIES[strategy].compacts
    if not is_able or limits is None:
        return False
    if strategy is StrategyName.PROVIDER and PROVIDERS[state.format].compacts(resolved.model or ""):
        return False
    used = state.policy_tokens.total
    pressure = pressure_status(used, limits).pressure
    if pressure is Pressure.BLOCKED or used > limits.capacity:
        return True
    inline = policy.mode == "inline" and not stored.is_suspended
    if inline and limits.due_at is not None and exceeds_messages(policy, stored):
        return True
    is_due = pressure is Pressure.COMPACT or (inline and pressure is Pressure.DUE)
    return is_due and policy.auto


# --- reducing for this payload alone --------------------------------------------------------------


async def _reduce(
    deps: BuildDependencies, state: BuildState, overshoot: int, has_reasoning: bool
) -> BuildState | Overflow:
    """Make the view fit, `overshoot` tokens below the limit; else leave out reasoning.

    Summaries that are longer than this context window allows are summarised again. Last, a
    provider's compaction item is left out. Reasoning is left out before the newest message is.
    """
    reduced = await _reduce_view(deps, state, overshoot)
    if isinstance(reduced, Overflow) and state.view.summarised is not None:
        whole, shown_inside = state.view.summarised, state.view.kept_seqs
        plan = CompactionPlan((EXTRACTIVE_SUMMARY,), 0, whole, shown_inside)
        summary = await _summarise(deps, state, plan, whole)
        view = replace(state.view, summaries=(summary,), retain=None)
        state = _unrendered(state, view).degrade(EXTRACTIVE_SUMMARY)
        reduced = await _reduce_view(deps, state, overshoot)
    if isinstance(reduced, Overflow) and state.view.provider_item is not None:
        state = _unrendered(state, without_item(state.view))
        reduced = await _reduce_view(deps, await show_newest_user(deps, state), overshoot)
    if isinstance(reduced, BuildState) and reduced.view.shows(state.stored.head_seq):
        return reduced
    if has_reasoning and (smaller := _with_less_reasoning(state)) is not None:
        return smaller
    return reduced


def _unrendered(state: BuildState, view: View) -> BuildState:
    return replace(state, view=view, rendered=None, items=None)


def _with_less_reasoning(state: BuildState) -> BuildState | None:
    """Leave out the reasoning of earlier turns, or else of earlier steps, or else all of it.

    The last step keeps its own the longest: its results go back with it. None where there is no
    more to leave out.
    """
    kept = max(state.min_reasoning_after, state.view.reasoning_after)
    newest = {item.role: item.seq for item in state.entries}
    floors = (newest.get(Role.USER, 0), newest.get(Role.ASSISTANT, 0) - 1, state.stored.head_seq)
    floor = min((seq for seq in floors if seq > kept), default=None)
    if floor is None:
        return None
    return replace(_unrendered(state, state.view), min_reasoning_after=floor)


async def _reduce_view(
    deps: BuildDependencies, state: BuildState, overshoot: int
) -> BuildState | Overflow:
    """Reduce the view as its strategy plans it, then by the stages that need no summary.

    Where these do not suffice, the texts of what always stays are shortened.
    """
    policy = state.resolved.policy
    if policy.strategy is StrategyName.FULL_HISTORY or not policy.compaction.enabled:
        return Overflow(state, state.view_entries)
    state = _unrendered(await _find_excluded_seqs(deps, state), state.view)
    shown = _shown(state, overshoot)
    if isinstance(plan := STRATEGIES[policy.strategy].plan(shown), CompactionPlan):
        state = await _carry_out(deps, state, plan)
    reduced = await _reduced_by_stages(deps, state, overshoot)
    if isinstance(reduced, Overflow):
        shortened = await _shorten_largest(deps, state, reduced.entries, overshoot)
        if shortened is not None:
            return await _reduced_by_stages(deps, shortened, overshoot)
    return reduced


async def _reduced_by_stages(
    deps: BuildDependencies, state: BuildState, overshoot: int
) -> BuildState | Overflow:
    shown = _shown(state, overshoot)
    shown = replace(shown, budget=replace(shown.budget, summary=state.summary_tokens))
    reduced = reduced_to_fit(shown)
    if reduced is None:
        kept = [item for item in shown.entries if item.seq in shown.protected.unhidden]
        return Overflow(state, kept or state.view_entries)
    return (await _carry_out(deps, state, reduced)).degrade(*reduced.stages)


async def _carry_out(
    deps: BuildDependencies, state: BuildState, plan: CompactionPlan
) -> BuildState:
    """Compact this payload stream as planned; its extractive summary is stored with its epoch."""
    if not plan.stages:
        return state
    summaries, retain = state.view.summaries, state.view.retain
    if plan.hidden is not None and plan.summarises:
        summaries, retain = (await _summarise(deps, state, plan, plan.hidden),), None
        state = state.degrade(EXTRACTIVE_SUMMARY)
        if plan.hides_preserved:
            state = state.degrade("preserved_ranges_summarised")
    if plan.results_cleared_through > state.view.results_cleared_through:
        state = state.degrade(RESULTS_CLEARED)
    return state.with_view(input_of(state).view_after(plan, summaries, retain or ""))


async def _summarise(
    deps: BuildDependencies, state: BuildState, plan: CompactionPlan, hidden: Span
) -> Summary:
    """Return the summary of a range without a model."""
    run = deps.compaction.start(input_of(state), "", BUILT_IN)
    summary, _ = await run.summarise(plan, hidden, summary_reserve(state.limits))
    return summary


def input_of(state: BuildState) -> CompactionInput:
    """Return the input for planning a compaction of this view."""
    return CompactionInput(
        state.attempt.tenant_id,
        state.input.conversation,
        state.resolved,
        state.view,
        tuple(state.plan_entries),
    )


# --- shortening -----------------------------------------------------------------------------------


def _shown(state: BuildState, overshoot: int = 0) -> ShownHistory:
    """Return what the view shows, its budget `overshoot` tokens smaller than the context window."""
    resolved, limits, summary = state.resolved, state.limits, state.summary_tokens
    reserve = max(summary_reserve(limits), summary)
    fixed = resolved.raw_fixed.fixed + state.added_tool_tokens + state.added_system_tokens
    budget = history_budget(limits, resolved.policy, fixed, reserve, resolved.factor)
    budget = replace(budget, capacity=budget.capacity - overshoot, current_summary=summary)
    return ShownHistory(state.view_entries, state.view.hidden, budget, resolved.policy)


async def _shorten_oversized(deps: BuildDependencies, state: BuildState) -> BuildState | None:
    """Shorten the messages that would not fit beside a summary of everything else.

    It comes before a compaction, so that the pressure is that of the payload as it is sent.
    """
    budget = _shown(state, reader_tool_tokens(state.resolved, state.tools.agent_tools)).budget
    available_tokens = budget.capacity - budget.fixed - budget.summary
    limits = limits_of_oversized(state.plan_entries, available_tokens)
    return await _with_shortened(deps, state, limits)


async def _shorten_largest(
    deps: BuildDependencies, state: BuildState, entries: Sequence[Entry], overshoot: int
) -> BuildState | None:
    """Shorten the largest of these messages until they fit alone; None if that is impossible."""
    budget = _shown(state, overshoot).budget
    available_tokens = budget.capacity - budget.fixed - state.summary_tokens
    available_tokens -= NOTE_TOKENS + reader_tool_tokens(state.resolved, state.tools.agent_tools)
    return await _with_shortened(deps, state, limits_of_largest(entries, available_tokens))


async def _with_shortened(
    deps: BuildDependencies, state: BuildState, max_tokens_by_seq: Mapping[int, int]
) -> BuildState | None:
    """Shorten messages to these tokens; None where none can be shortened."""
    shortened = await shorten_messages(deps, state, max_tokens_by_seq)
    view = with_shortened(state.view, shortened)
    return state.with_view(view).degrade(MESSAGES_SHORTENED) if shortened else None


async def shorten_messages(
    deps: BuildDependencies, state: BuildState, max_tokens_by_seq: Mapping[int, int]
) -> list[ShortenedMessage]:
    """Return the messages shortened to these tokens, without those that cannot be shortened."""
    return await deps.compaction.shorten(
        state.conversation_id,
        state.resolved,
        max_tokens_by_seq,
        as_chat=PROVIDERS[state.format].stores_items,
    )
