"""Makes a view fit in the context window, by steps that need no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from app.compaction.planning import unsummarised_spans
from app.compaction.reduction.truncation import RESULTS_CLEARED, Truncation, truncate_with_note
from app.compaction.strategies import STRATEGIES
from app.compaction.summaries.extractive import SummaryScope
from app.compaction.summaries.prompt import SummaryRequest
from app.compaction.summaries.statements.summary_text import Closing
from app.compaction.summariser import SummaryTask, summarise_paged
from app.compaction.summary_budget import NOTE_TOKENS, summary_text_limit
from app.context.pipeline.compaction import clear_tool_results, compact, find_excluded_seqs
from app.context.pipeline.overflow import refusal
from app.context.pipeline.rendering import noted, render_view
from app.context.pipeline.shortening import remaining_budget, shorten_largest, shorten_oversized
from app.context.pipeline.state import BuildDependencies, BuildState
from app.context.pipeline.view import show_newest_user
from app.conversations.plans import CompactionPlan, HistoryBudget
from app.conversations.turns import Entry, never_hidden
from app.conversations.view import Span, Summary, overlap
from app.conversations.views import (
    summary_message_tokens,
    view_after,
    with_omission_note,
    without_item,
)
from app.policy.policy import StrategyName

EXTRACTIVE_SUMMARY = "extractive_summary"
"""In `degraded`: the summary was made for this payload alone, without a model."""
_RENDERING_MARGIN = 16
"""Tokens to save beyond those that a rendered payload is over."""
MAX_PREVIEWED = 1_000
"""Messages that a preview summarises: reading more takes seconds."""


_Reduction = tuple[BuildState, Sequence[Entry] | None]
"""A reduced state, and the entries that do not fit, None where all do."""


async def reduce(deps: BuildDependencies, state: BuildState) -> BuildState:
    """Return a state that fits by the counts of its entries.

    Tool output over its budget is cleared in any case. A view that is too long is compacted where
    its policy allows that, and reduced without a model otherwise. Raises Restart when the
    conversation was changed, and ContextOverflow when nothing fits.
    """
    if state.input.conversation.state.is_suspended:
        state = await _render_fitting(deps, state)  # its pressure decides on clearing as well
    state = await clear_tool_results(deps, state)
    state = await _render_fitting(deps, state)
    shortened = await shorten_oversized(deps, state)
    if shortened is not state:
        state = await _render_fitting(deps, shortened)  # previews add the tools that they name
    state = await compact(deps, state)
    if state.fits:
        return state
    return await _reduce(deps, state, 0, has_reasoning=_has_reasoning(state))


async def _render_fitting(deps: BuildDependencies, state: BuildState) -> BuildState:
    """Render a view that fits, so that its pressure is that of the payload as sent."""
    if state.rendered is None and state.fits:
        state = await render_view(deps, state)
    if state.items is not None:
        state = await noted(state, state.tools.agent_tools)
    return state


async def reduce_rendered(deps: BuildDependencies, state: BuildState) -> BuildState:
    """Reduce a state whose rendered payload does not fit.

    Plans use the counts of entries, so each entry counts what its items cost. What the payload
    costs beyond them is saved as well.
    """
    estimated = state.with_rendered_costs()
    overshoot = state.usage.total - estimated.usage.total + _RENDERING_MARGIN
    return await _reduce(deps, estimated, overshoot, has_reasoning=_has_reasoning(state))


def _has_reasoning(state: BuildState) -> bool:
    return state.rendered is not None and state.rendered.assembler.has_reasoning


async def _reduce(
    deps: BuildDependencies, state: BuildState, overshoot: int, *, has_reasoning: bool
) -> BuildState:
    """Make the view fit, `overshoot` tokens below the limit; else leave out reasoning.

    Summaries that are longer than this window allows are summarised again, as the last step but for
    the message with a provider's compaction item: that stays as long as the rest can give way.
    Reasoning goes before the newest message does.
    """
    reduced, too_large = await _reduce_view(deps, state, overshoot)
    if too_large is not None and state.view.summarised is not None:
        state = await _summarise_again(deps, state, state.view.summarised)
        reduced, too_large = await _reduce_view(deps, state, overshoot)
    if too_large is not None and state.view.provider_item is not None:
        state = replace(state.without_rendered(), view=without_item(state.view))
        released = await show_newest_user(deps, state)
        reduced, too_large = await _reduce_view(deps, released, overshoot)
    if too_large is None and reduced.view.shows(state.input.conversation.state.head_seq):
        return reduced
    if has_reasoning and (smaller := state.with_less_reasoning()) is not None:
        return smaller
    if too_large is not None:
        raise await refusal(deps, reduced, too_large)
    return reduced


async def _reduce_view(deps: BuildDependencies, state: BuildState, overshoot: int) -> _Reduction:
    policy = state.resolved.policy
    if policy.strategy is StrategyName.FULL_HISTORY or not policy.compaction.enabled:
        shortened = await shorten_largest(
            deps, state, state.plan_entries, overshoot, only_large=True
        )
        return (shortened, None) if shortened is not None else (state, state.view_entries)
    state = (await find_excluded_seqs(deps, state)).without_rendered()
    budget = remaining_budget(state, overshoot)
    plan = STRATEGIES[policy.strategy].plan(
        state.view_entries, state.view.hidden, budget, policy, failures=0
    )
    if isinstance(plan, CompactionPlan):
        state = await _apply(deps, state, plan)
        budget = remaining_budget(state, overshoot)
    truncation = _truncation(state, budget)
    if truncation is None:
        shortened = await shorten_largest(deps, state, _never_dropped(state), overshoot)
        if shortened is not None:
            state = shortened
            truncation = _truncation(state, budget)
    if truncation is None:
        return state, _never_dropped(state) or state.view_entries
    return _truncate(state, truncation), None


def _truncation(state: BuildState, budget: HistoryBudget) -> Truncation | None:
    """Return the smallest truncation that makes the view fit, None without any."""
    return truncate_with_note(
        state.plan_entries,
        state.view.results_cleared_through,
        replace(budget, summary=state.summary_tokens),
        NOTE_TOKENS,
        state.view.hidden,
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


async def _summarise_again(deps: BuildDependencies, state: BuildState, span: Span) -> BuildState:
    """Replace the summaries by one of them that is as long as this window allows."""
    summary = await _summary(deps, state, span, ())
    view = replace(state.view, summaries=(summary,), retain=None)
    return replace(state.degrade(EXTRACTIVE_SUMMARY).without_rendered(), view=view)


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
    task = SummaryTask(
        state.attempt.conversation_id,
        spans,
        "\n\n".join(summary.text for summary in view.summaries) or None,
        SummaryRequest(),
        None,
        summary_text_limit(state.limits),
        deps.summariser.start_run(state.attempt.tenant_id),
        _scope(state, span),
        verbatim_seqs,
    )
    result = await summarise_paged(deps.database, deps.summariser, task)
    tokens = summary_message_tokens(result.text, count)
    return Summary(span, result.text, tokens, sections=result.sections)


def _scope(state: BuildState, span: Span) -> SummaryScope:
    view, own = state.view, state.input.conversation.state
    return SummaryScope(
        state.resolved.count,
        Closing(span.start, span.end - 1, state.resolved.names_recall),
        earlier_tokens=own.hidden_tokens - own.outside_tokens if view.summaries else 0,
        earlier_start=view.summarised.start if view.summarised is not None else 0,
        first_seq=view.window[0].start if view.window else 1,
    )
