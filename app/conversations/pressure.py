"""How full the context window of a conversation is: its budget and pressure.

1. The budget is read from a conversation's state instead of its log. The estimate is that of the
   next build: from the running token sums of the log, and from what the last build had beyond them.
2. The last usage that the provider reported counts as well, if it is of the current epoch.
3. A due compaction is announced by an event; workers poll for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from app.common.errors import ContextError
from app.conversations.conversation import Conversation, ConversationState
from app.conversations.epoch import Epoch, payload_stream_of
from app.conversations.events import EventType
from app.conversations.from_rows import epoch_start_from
from app.conversations.moving_window import tokens_in
from app.conversations.settings_resolver import SettingsResolver
from app.conversations.view import Span, overlap, start_of_last
from app.conversations.view_changes import lasting_agent_tools
from app.models.budget import (
    ContextBudget,
    Limits,
    PayloadTokens,
    Pressure,
    PressureStatus,
    measure,
    pressure_status,
    scaled,
)
from app.models.usage import ReportItem
from app.policy.policy import StrategyName
from app.prompt.resolved_settings import RequestSettings, ResolvedSettings
from app.repositories import Repositories


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    """A budget with its pressure."""

    budget: ContextBudget
    pressure: PressureStatus


async def read_budget(
    session: Repositories, resolver: SettingsResolver, conversation: Conversation
) -> BudgetStatus | None:
    """Return the status for the stored settings, None if the context window is unknown."""
    statuses = await read_budgets(session, resolver, [conversation])
    return statuses.get(conversation.conversation_id)


async def read_budgets(
    session: Repositories, resolver: SettingsResolver, conversations: Sequence[Conversation]
) -> Mapping[str, BudgetStatus]:
    """Return the statuses of conversations whose context window is known, by their ids."""
    known: list[tuple[Conversation, ResolvedSettings]] = []
    for conversation in conversations:
        with suppress(ContextError):
            known.append((conversation, await resolver.of(conversation)))
    known = [(item, resolved) for item, resolved in known if resolved.limits is not None]
    tokens = await read_visible_tokens(session, known)
    statuses: dict[str, BudgetStatus] = {}
    for conversation, resolved in known:
        key, limits = conversation.conversation_id, resolved.required_limits()
        of_build = next_tokens_of(resolved, conversation, tokens[key])
        budget, pressure = measure(of_build, limits), pressure_status(of_build.total, limits)
        statuses[key] = BudgetStatus(budget, pressure)
    return statuses


async def read_visible_tokens(
    session: Repositories, known: Sequence[tuple[Conversation, ResolvedSettings]]
) -> Mapping[str, int]:
    """Return the tokens of each log in its next build, before the factor, by conversation.

    These are the messages not replaced by a summary, or the last N of a sliding window. At most one
    statement reads what is not in the states.
    """
    spans: dict[str, Sequence[Span]] = {
        item.conversation_id: newest
        for item, resolved in known
        if (newest := _newest_spans(resolved, item))
    }
    tokens: Mapping[str, int] = {}
    if spans:
        tokens = await tokens_in(session, spans)
    shown = {item.conversation_id: item.state.shown_tokens for item, _ in known}
    return {key: min(tokens.get(key, most), most) for key, most in shown.items()}


def _newest_spans(resolved: ResolvedSettings, conversation: Conversation) -> Sequence[Span]:
    """Return what a sliding window shows, empty where the state has its tokens."""
    state = conversation.state
    if resolved.policy.strategy is not StrategyName.SLIDING_WINDOW:
        return ()
    window, count = state.window.spans, resolved.policy.sliding_window.keep_last_n
    newest = Span(start_of_last(window, state.head_seq, count), state.head_seq + 1)
    return () if newest.start <= window[0].start else overlap(window, (newest,))


def next_tokens_of(
    resolved: ResolvedSettings, conversation: Conversation, visible_tokens: int
) -> PayloadTokens:
    """Return the tokens of the next build with these of the log, its notes included."""
    stored = stored_tokens_of(resolved, conversation, visible_tokens)
    tokens = stored.conversation + conversation.state.extra_tokens
    return replace(stored, conversation=max(0, tokens))


def stored_tokens_of(
    resolved: ResolvedSettings, conversation: Conversation, visible_tokens: int
) -> PayloadTokens:
    """Return the tokens that follow from the sums of the log alone."""
    state = conversation.state
    lasting = lasting_agent_tools(
        resolved.policy,
        has_placeholders=state.results_cleared_through > 0,
        hides_messages=state.hidden_span is not None,
    )
    mentions = (*state.named_tools, *lasting)
    return resolved.tokens_with_notes(visible_tokens, state.summary_tokens, mentions)


@dataclass(frozen=True, slots=True)
class LastReport:
    """A usage report, the tokens appended after it (before the factor), and the current epoch.

    `has_item` says whether payloads of that epoch begin with a provider's compaction item.
    """

    report: ReportItem
    appended: int
    epoch: int
    has_item: bool = False

    def judged(self, estimate: int, factor: float) -> int:
        """Return the larger of reported and estimated tokens, the estimate for an older epoch.

        Reported are the tokens of the call and those appended since, its output counted once. Of
        payloads with a provider's compaction item they count alone: the estimate guesses its cost.
        """
        if not self.is_current:
            return estimate
        usage = self.report.token_usage
        appended = max(0, scaled(self.appended, factor) - usage.output_tokens)
        tokens = usage.total_tokens + appended
        return tokens if self.has_item and usage.sent_tokens > 0 else max(estimate, tokens)

    @property
    def is_current(self) -> bool:
        """Whether the report is of the current epoch, and so applies to the next payload."""
        return (self.report.epoch or 0) >= self.epoch


async def read_reported(
    session: Repositories, conversation: Conversation, report: ReportItem
) -> LastReport:
    """Return a report with the tokens appended since."""
    conversation_id, state = conversation.conversation_id, conversation.state
    payload_stream = payload_stream_of(RequestSettings(report.format), report.model)
    newest = await session.usage.newest_epoch(conversation_id, payload_stream)
    before = await session.log.total_at(conversation_id, report.through_seq)
    has_item = newest is not None and epoch_start_from(newest.start_json).view.sent_item is not None
    return LastReport(report, state.tokens - before, current_epoch(newest, state), has_item)


def judge(
    resolved: ResolvedSettings,
    conversation: Conversation,
    estimate: int,
    reported: LastReport | None,
) -> tuple[int, bool]:
    """Return the tokens used, and whether they make a compaction due."""
    used = reported.judged(estimate, resolved.factor) if reported is not None else estimate
    limits, policy = resolved.policy_limits or resolved.limits, resolved.policy.compaction
    if limits is None or limits.due_at is None or not (policy.enabled and policy.auto):
        return used, False
    is_due = limits.reached(used, limits.due_at)
    return used, is_due and not is_suspended(conversation.state, used, limits)


def current_epoch(newest_epoch: Epoch | None, state: ConversationState) -> int:
    """Return the number of a stream's current epoch, the next one when the view has changed."""
    if newest_epoch is None:
        return int(state.view_version > 0)
    return newest_epoch.epoch + (newest_epoch.view_version != state.view_version)


def is_suspended(state: ConversationState, used: int, limits: Limits) -> bool:
    """Whether compaction is suspended until the log has grown, as after an undo."""
    if not state.is_suspended:
        return False
    return pressure_status(used, limits).pressure not in (Pressure.COMPACT, Pressure.BLOCKED)


async def is_due_as_reported(
    session: Repositories, resolved: ResolvedSettings, conversation: Conversation
) -> bool:
    """Whether the last usage report alone makes a compaction due."""
    report = await session.usage.newest(conversation.conversation_id)
    if report is None:
        return False
    reported = await read_reported(session, conversation, report)
    return judge(resolved, conversation, 0, reported)[1]


# --- compactions ----------------------------------------------------------------------------------


async def make_compaction_due(session: Repositories, conversation_id: str) -> None:
    """Make a compaction due and announce it, unless one is due already."""
    if await session.jobs.set_due(conversation_id):
        await announce_due_compaction(session, conversation_id)


async def announce_due_compaction(session: Repositories, conversation_id: str) -> None:
    """Store the event of a compaction that became due."""
    await session.events.add(conversation_id, EventType.DUE)
