"""Makes a payload fit in the context window.

Tool results over their budget are cleared, and a compaction that is due is made, which changes the
conversation. What is too long after that is reduced for this payload alone, without a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from app.common.errors import ServiceUnavailable, ValidationError
from app.compaction.planning import unsummarised_spans
from app.compaction.reduction import (
    RESULTS_CLEARED,
    Truncation,
    excluded_seqs,
    min_cleared_tokens,
    plan_clearing,
    tool_output_budget,
    truncate,
)
from app.compaction.strategies import STRATEGIES
from app.compaction.summaries.extractive import SummaryScope
from app.compaction.summaries.model_summary import SummaryTask
from app.compaction.summaries.prompt import SummaryRequest
from app.compaction.summaries.statements.summary_text import Closing
from app.compaction.summariser import summarise_paged
from app.compaction.summary_budget import (
    NOTE_TOKENS,
    history_budget,
    summary_reserve,
    summary_text_limit,
)
from app.context.epoch import EpochChoice, choose_epoch
from app.context.history import noted, render, render_view
from app.context.state import BuildDependencies, BuildState, Changed, Overflow
from app.context.view import show_newest_user
from app.conversations.budget_status import is_suspended
from app.conversations.compaction_results import CompactionPending
from app.conversations.messages.shortened_texts import reader_tool_tokens, shortened_messages
from app.conversations.plans import CompactionPlan, HistoryBudget, NoCompaction
from app.conversations.provider_items import has_compaction
from app.conversations.text_shortening import (
    MESSAGES_SHORTENED,
    limits_of_largest,
    limits_of_oversized,
)
from app.conversations.thresholds import exceeds_messages
from app.conversations.turns import Entry, never_hidden
from app.conversations.view import ShortenedMessage, Span, Summary, overlap, spans_through
from app.conversations.views import (
    summary_message_tokens,
    view_after,
    with_omission_note,
    without_item,
)
from app.formats import PROVIDERS
from app.models.budget import Pressure, pressure_status
from app.policy.policy import CompactionMode, StrategyName

EXTRACTIVE_SUMMARY = "extractive_summary"
"""In `degraded`: the summary was made for this payload alone, without a model."""
_RENDERING_MARGIN = 16
"""Tokens to save beyond those that a rendered payload is over."""
MAX_PREVIEWED = 1_000
"""Messages that a preview summarises: reading more takes seconds."""

_MAX_ROUNDS = 12
_Reduction = tuple[BuildState, Sequence[Entry] | None]
"""A reduced state, and the entries that do not fit, None where all do."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A rendered payload that fits, and its epoch."""

    state: BuildState
    epoch: EpochChoice


async def fit(deps: BuildDependencies, state: BuildState) -> Fitted | Changed | Overflow:
    """Return a payload that fits.

    A rendered text may mention tools that the payload needs, or cost more than its estimate: then
    it is rendered or reduced again.
    """
    epoch: EpochChoice | None = None
    reduced = await _reduce_unrendered(deps, state)
    for _ in range(_MAX_ROUNDS):
        if not isinstance(reduced, BuildState):
            return reduced
        epoch = choose_epoch(reduced, epoch)
        state = reduced = await render(deps, reduced, epoch.start.view, epoch.kept_tools)
        if not epoch.matches(state):
            continue
        if (cut := state.media_cut()) is not None:
            reduced = state.with_media_cut(cut)
        elif not state.fits:
            # Plans use the counts of entries: each counts what its items cost, and what the payload
            # costs beyond them is saved as well.
            estimated = state.with_rendered_costs()
            overshoot = state.usage.total - estimated.usage.total + _RENDERING_MARGIN
            reduced = await _reduce(deps, estimated, overshoot, has_reasoning=state.has_reasoning)
        else:
            return Fitted(state, epoch)
    return Overflow(state, state.view_entries)


async def _reduce_unrendered(
    deps: BuildDependencies, state: BuildState
) -> BuildState | Changed | Overflow:
    """Return a state that fits by the counts of its entries.

    Tool output over its budget is cleared in any case. A view that is too long is compacted where
    its policy allows that, and reduced without a model otherwise.
    """
    if state.stored.is_suspended:
        state = await _render_fitting(deps, state)  # its pressure decides on clearing as well
    cleared = await _clear_tool_results(deps, state)
    if isinstance(cleared, Changed):
        return cleared
    state = await _render_fitting(deps, cleared)
    shortened = await _shorten_oversized(deps, state)
    if shortened is not state:
        state = await _render_fitting(deps, shortened)  # previews add the tools that they name
    compacted = await _compact(deps, state)
    if isinstance(compacted, Changed) or compacted.fits:
        return compacted
    return await _reduce(deps, compacted, 0, has_reasoning=compacted.has_reasoning)


async def _render_fitting(deps: BuildDependencies, state: BuildState) -> BuildState:
    """Render a view that fits, so that its pressure is that of the payload as sent."""
    if state.rendered is None and state.fits:
        state = await render_view(deps, state)
    if state.items is not None:
        state = await noted(state, state.tools.agent_tools)
    return state


async def _reduce(
    deps: BuildDependencies, state: BuildState, overshoot: int, *, has_reasoning: bool
) -> BuildState | Overflow:
    """Make the view fit, `overshoot` tokens below the limit; else leave out reasoning.

    Summaries that are longer than this window allows are summarised again, as the last step but for
    the message with a provider's compaction item: that stays as long as the rest can give way.
    Reasoning goes before the newest message does.
    """
    reduced, too_large = await _reduce_view(deps, state, overshoot)
    if too_large is not None and state.view.summarised is not None:
        summary = await _summary(deps, state, state.view.summarised, ())
        view = replace(state.view, summaries=(summary,), retain=None)
        state = replace(state.degrade(EXTRACTIVE_SUMMARY).without_rendered(), view=view)
        reduced, too_large = await _reduce_view(deps, state, overshoot)
    if too_large is not None and state.view.provider_item is not None:
        state = replace(state.without_rendered(), view=without_item(state.view))
        released = await show_newest_user(deps, state)
        reduced, too_large = await _reduce_view(deps, released, overshoot)
    if too_large is None and reduced.view.shows(state.stored.head_seq):
        return reduced
    if has_reasoning and (smaller := state.with_less_reasoning()) is not None:
        return smaller
    if too_large is not None:
        return Overflow(reduced, too_large)
    return reduced


async def _reduce_view(deps: BuildDependencies, state: BuildState, overshoot: int) -> _Reduction:
    policy = state.resolved.policy
    if policy.strategy is StrategyName.FULL_HISTORY or not policy.compaction.enabled:
        shortened = await _shorten_largest(
            deps, state, state.plan_entries, overshoot, only_large=True
        )
        return (shortened, None) if shortened is not None else (state, state.view_entries)
    state = (await _find_excluded_seqs(deps, state)).without_rendered()
    budget = _remaining_budget(state, overshoot)
    plan = STRATEGIES[policy.strategy].plan(
        state.view_entries, state.view.hidden, budget, policy, failures=0
    )
    if isinstance(plan, CompactionPlan):
        state = await _apply(deps, state, plan)
        budget = _remaining_budget(state, overshoot)
    truncation = _truncation(state, budget)
    if truncation is None:
        shortened = await _shorten_largest(deps, state, _never_dropped(state), overshoot)
        if shortened is not None:
            state = shortened
            truncation = _truncation(state, budget)
    if truncation is None:
        return state, _never_dropped(state) or state.view_entries
    return _truncate(state, truncation), None


def _truncation(state: BuildState, budget: HistoryBudget) -> Truncation | None:
    """Return the smallest truncation that makes the view fit, None without any."""
    return truncate(
        state.plan_entries,
        state.view.results_cleared_through,
        replace(budget, summary=state.summary_tokens),
        state.view.hidden,
        NOTE_TOKENS,
    )


def _truncate(state: BuildState, truncation: Truncation) -> BuildState:
    through = truncation.results_cleared_through
    uncleared_results = tuple(sorted(seq for seq in state.never_cleared if seq <= through))
    view = replace(state.view, results_cleared_through=through, uncleared_results=uncleared_results)
    if truncation.shown is not None:
        view = with_omission_note(replace(view, spans=overlap(truncation.shown, view.window)))
    return state.degrade(*truncation.steps).with_narrower_view(view)


def _never_dropped(state: BuildState) -> list[Entry]:
    """Return the entries that no reduction drops."""
    kept = never_hidden(state.plan_entries)
    return [item for item in state.view_entries if item.seq in kept]


async def _apply(deps: BuildDependencies, state: BuildState, plan: CompactionPlan) -> BuildState:
    """Compact this payload stream as planned; its extractive summary is stored with its epoch."""
    view = state.view
    summaries = view.summaries
    if plan.hidden is not None and plan.summarises:
        span = plan.hidden
        spans = unsummarised_spans(span, view.summarised, plan.released_seqs, view.window)
        verbatim_seqs = frozenset(plan.unhidden_seqs)
        summaries = (await _summary(deps, state, span, spans, verbatim_seqs),)
        state = state.degrade(EXTRACTIVE_SUMMARY)
        if plan.hides_preserved:
            state = state.degrade("preserved_ranges_summarised")
    if plan.results_cleared_through > view.results_cleared_through:
        state = state.degrade(RESULTS_CLEARED)
    return state.with_narrower_view(
        view_after(view, plan, summaries, view.retain, state.never_cleared)
    )


async def _summary(
    deps: BuildDependencies,
    state: BuildState,
    span: Span,
    spans: Sequence[Span],
    verbatim_seqs: frozenset[int] = frozenset(),
) -> Summary:
    """Return the extractive summary of a range: of its summaries, and of the messages in `spans`.

    A preview has a line in place of a long one.
    """
    view, count = state.view, state.resolved.count
    if state.attempt.is_preview and sum(each.end - each.start for each in spans) > MAX_PREVIEWED:
        text = f"[A build would summarise messages {span.start} to {span.end - 1} here.]"
        return Summary(span, text, summary_message_tokens(text, count))
    own = state.stored
    scope = SummaryScope(
        count,
        Closing(span.start, span.end - 1, state.resolved.names_recall),
        earlier_tokens=own.hidden_tokens - own.outside_tokens if view.summaries else 0,
        earlier_start=view.summarised.start if view.summarised is not None else 0,
        first_seq=view.window[0].start if view.window else 1,
    )
    task = SummaryTask(
        SummaryRequest(),
        None,
        summary_text_limit(state.limits),
        deps.summariser.start_run(state.attempt.tenant_id),
        scope,
        state.attempt.conversation_id,
        spans,
        "\n\n".join(summary.text for summary in view.summaries) or None,
        verbatim_seqs=verbatim_seqs,
    )
    result = await summarise_paged(deps.database, deps.summariser, task)
    tokens = summary_message_tokens(result.text, count)
    return Summary(span, result.text, tokens, sections=result.sections)


# --- clearing and compacting ----------------------------------------------------------------------


async def _clear_tool_results(deps: BuildDependencies, state: BuildState) -> BuildState | Changed:
    """Clear tool results over their budget."""
    resolved = state.resolved
    limits, policy = resolved.compaction_limits(), resolved.policy.tool_output
    is_kept = not policy.enabled or resolved.policy.strategy is StrategyName.FULL_HISTORY
    if is_kept or state.attempt.is_preview:
        return state
    budget = tool_output_budget(policy, limits.total)
    if state.output_tokens <= budget:
        return state
    if is_suspended(state.stored, state.policy_usage.total, limits):
        return state
    state = await _find_excluded_seqs(deps, state)
    min_cleared = min_cleared_tokens(policy, limits.total)
    plan = plan_clearing(state.plan_entries, state.view, budget, min_cleared)
    if isinstance(plan, NoCompaction):
        return state
    slides = resolved.policy.strategy is StrategyName.SLIDING_WINDOW
    is_changed = await deps.compaction.clear_tool_results(
        state.attempt.tenant_id,
        state.attempt.conversation_id,
        state.attempt.settings,
        state.stored.view_version,
        plan,
        state.view.spans if slides else None,
    )
    return state.changed() if is_changed else state


async def _find_excluded_seqs(deps: BuildDependencies, state: BuildState) -> BuildState:
    """Add the seqs of shown results of tools that the policy excludes from clearing.

    A cached payload keeps the names of the tools, so that they are read once.
    """
    tools = state.resolved.policy.tool_output.exclude_tools
    if not tools or state.excluded_seqs is not None:
        return state
    rendered, entries = state.rendered, list(state.entries)  # a copy: the cached ones may grow
    tool_names = rendered.tool_names if rendered is not None else {}
    known_through = rendered.tool_names_through if rendered is not None else 0
    last_seq = entries[-1].seq if entries else 0
    unknown = [Span(max(span.start, known_through + 1), span.end) for span in state.view.spans]
    if missing := spans_through(unknown, last_seq):
        async with deps.database.session() as session:
            for span in missing:
                tool_names.update(
                    await session.log.tool_names(
                        state.attempt.conversation_id, span.start, span.end
                    )
                )
    if rendered is not None:
        rendered.tool_names_through = max(rendered.tool_names_through, last_seq)
    excluded = excluded_seqs(entries, state.view, tool_names, tools)
    return replace(state, entries=entries, excluded_seqs=excluded)


async def _compact(deps: BuildDependencies, state: BuildState) -> BuildState | Changed:
    """Compact once in a build, if it is due."""
    if not _is_compaction_due(state):
        return state
    attempt, conversation_state = state.attempt, state.stored
    version = (
        conversation_state.head_seq,
        conversation_state.view_version,
        state.resolved.policy_hash,
        state.input.pins,
    )
    state = replace(state, attempt=replace(attempt, may_compact=False))
    try:
        result = await deps.compaction.compact_for_build(
            attempt.tenant_id,
            attempt.conversation_id,
            attempt.settings,
            conversation_state,
            version,
        )
    except (ServiceUnavailable, ValidationError):
        return state.degrade("summariser_unavailable")
    if isinstance(result, CompactionPending):
        return state.degrade("compaction_pending")
    if isinstance(result, NoCompaction):
        return state
    if result is None:  # the view changed meanwhile
        return replace(state, attempt=attempt).changed()
    compacted = replace(state, attempt=replace(state.attempt, compaction=result))
    return compacted.degrade(*result.degraded).changed()


def _is_compaction_due(state: BuildState) -> bool:
    resolved, limits = state.resolved, state.resolved.policy_limits
    policy = resolved.policy.compaction
    if not state.attempt.may_compact or limits is None or not policy.enabled:
        return False
    if not STRATEGIES[resolved.policy.strategy].compacts:
        return False
    is_provider = resolved.policy.strategy is StrategyName.PROVIDER
    if is_provider and has_compaction(state.format, resolved.model or ""):
        return False
    usage = state.policy_usage
    pressure = pressure_status(usage.total, limits).pressure
    if pressure is Pressure.BLOCKED or usage.total > limits.capacity:
        return True
    conversation_state = state.stored
    inline = policy.mode is CompactionMode.INLINE and not conversation_state.is_suspended
    if inline and limits.due_at is not None and exceeds_messages(policy, conversation_state):
        return True
    due_levels = (Pressure.DUE, Pressure.COMPACT) if inline else (Pressure.COMPACT,)
    return pressure in due_levels and policy.auto


# --- shortening -----------------------------------------------------------------------------------


def _remaining_budget(state: BuildState, overshoot: int = 0) -> HistoryBudget:
    """Return the budget of the history, `overshoot` tokens smaller than the window allows."""
    resolved, limits, summary = state.resolved, state.limits, state.summary_tokens
    reserve = max(summary_reserve(StrategyName.SANDWICH, limits), summary)
    fixed = resolved.raw_fixed.fixed + state.added_tool_tokens + state.added_system_tokens
    budget = history_budget(limits, resolved.policy, fixed, reserve, resolved.factor)
    return replace(budget, capacity=budget.capacity - overshoot, current_summary=summary)


async def _shorten_oversized(deps: BuildDependencies, state: BuildState) -> BuildState:
    """Shorten the messages that would not fit beside a summary of everything else.

    It comes before a compaction, so that the pressure is that of the payload as it is sent.
    """
    if state.fits:
        return state
    budget = _remaining_budget(state, reader_tool_tokens(state.resolved, state.tools.agent_tools))
    available_tokens = budget.capacity - budget.fixed - budget.summary
    return (
        await _with_shortened(
            deps, state, limits_of_oversized(state.plan_entries, available_tokens)
        )
        or state
    )


async def _shorten_largest(
    deps: BuildDependencies,
    state: BuildState,
    entries: Sequence[Entry],
    overshoot: int,
    *,
    only_large: bool = False,
) -> BuildState | None:
    """Shorten the largest of these messages until they fit alone; None if that is impossible.

    With `only_large`, messages of less than half of the available tokens stay as they are.
    """
    budget = _remaining_budget(state, overshoot)
    available_tokens = budget.capacity - budget.fixed - state.summary_tokens
    available_tokens -= NOTE_TOKENS + reader_tool_tokens(state.resolved, state.tools.agent_tools)
    shortenable = None
    if only_large:
        shortened_seqs = {item.seq for item in state.view.shortened}
        shortenable = {
            item.seq for item in entries if 2 * item.tokens > available_tokens
        } | shortened_seqs
    return await _with_shortened(
        deps, state, limits_of_largest(entries, available_tokens, shortenable)
    )


async def _with_shortened(
    deps: BuildDependencies, state: BuildState, max_tokens_by_seq: Mapping[int, int]
) -> BuildState | None:
    """Shorten messages to these tokens; None where none can be shortened."""
    if not max_tokens_by_seq or not state.resolved.policy.messages.offload_oversized:
        return None
    shortened = await shorten_messages(deps, state, max_tokens_by_seq)
    return state.degrade(MESSAGES_SHORTENED).with_shortened(shortened) if shortened else None


async def shorten_messages(
    deps: BuildDependencies, state: BuildState, max_tokens_by_seq: Mapping[int, int]
) -> list[ShortenedMessage]:
    """Return the messages shortened to these tokens, without those that cannot be shortened."""
    return await shortened_messages(
        deps.database,
        state.attempt.conversation_id,
        max_tokens_by_seq,
        state.resolved,
        as_chat=PROVIDERS[state.format].is_stored,
    )
