"""The pressure of a conversation, and the compactions that follow from it or come of a provider.

1. The budget is read from a conversation's state instead of its log. The estimate is that of the
   next build: from the running token sums of the log, and from what the last build had beyond them.
2. The last usage that the provider reported counts as well, if it is of the current epoch.
3. A due compaction is announced by an event; workers poll for it.
4. An appended compaction item of a provider hides what it stands for. Its receipt is stored in the
   transaction of the append. No model is called for it: a payload that cannot send the item has the
   summary made when it is built.
5. The item is a fact of the log. It counts whatever the policy's strategy is, and whether or not
   the policy compacts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from app.common import json_text
from app.common.errors import ContextError
from app.conversations.conversation import Conversation, ConversationState
from app.conversations.epoch import PROVIDER_COMPACTED, Epoch, model_in, payload_stream_of
from app.conversations.events import EventType
from app.conversations.from_rows import epoch_start_from
from app.conversations.messages.draft import Draft
from app.conversations.receipt import Compaction, CompactResult, Trigger, ViewState, result_of
from app.conversations.settings_resolver import SettingsResolver
from app.conversations.view import Span, overlap, spans_through
from app.conversations.visible import (
    base_view,
    kept_seqs,
    lasting_agent_tools,
    provider_item,
    start_of_last,
    view_behind_item,
    with_view,
)
from app.conversations.windows import ActiveWindows, tokens_in, view_state_of
from app.formats import PROVIDERS
from app.formats.message import FormatName, Role
from app.formats.reasoning import OPENAI, readable_summary
from app.models.budget import (
    ContextBudget,
    Limits,
    Pressure,
    PressureStatus,
    Usage,
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
        usage = usage_of(resolved, conversation, tokens[key])
        budget, pressure = measure(usage, limits), pressure_status(usage.total, limits)
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


def usage_of(resolved: ResolvedSettings, conversation: Conversation, visible_tokens: int) -> Usage:
    """Return the usage of the next build with these tokens of the log, its notes included."""
    usage = stored_usage_of(resolved, conversation, visible_tokens)
    tokens = usage.conversation + conversation.state.unstored_tokens
    return replace(usage, conversation=max(0, tokens))


def stored_usage_of(
    resolved: ResolvedSettings, conversation: Conversation, visible_tokens: int
) -> Usage:
    """Return the usage that follows from the sums of the log alone."""
    state = conversation.state
    lasting = lasting_agent_tools(
        resolved.policy,
        has_placeholders=state.results_cleared_through > 0,
        hides_messages=state.hidden_span is not None,
    )
    return resolved.usage_with_notes(
        visible_tokens, state.summary_tokens, (*state.mentions, *lasting)
    )


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
    """Return the usage in tokens, and whether it makes a compaction due."""
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
    await session.events.add(conversation_id, EventType.DUE, "{}")


async def store_compaction(
    session: Repositories,
    conversation_id: str,
    receipt: Compaction,
    cause: str,
    **after: int,
) -> CompactResult | None:
    """Store a receipt, show its view and announce it; None if the view was changed meanwhile.

    `after` are the `view_version` that it replaces, and the `resume_at_tokens`. Call it in a
    transaction that holds the lock of the conversation's head.
    """
    await session.contexts.add_compaction(conversation_id, receipt)
    visible = ViewState(
        receipt.view,
        receipt.compaction_id,
        receipt.summary_tokens,
        receipt.hidden_tokens,
        receipt.hidden_messages,
        kept_seqs(receipt.view),
    )
    if not await session.contexts.show(conversation_id, visible, cause=cause, **after):
        return None
    result = result_of(receipt)
    data = {**asdict(result), "trigger": receipt.trigger}
    await session.events.add(conversation_id, EventType.COMPACTED, json_text.dumps(data))
    return result


@dataclass(eq=False, repr=False)
class ProviderCompactions:
    """Applies the compaction items of appended messages."""

    _resolver: SettingsResolver
    _active: ActiveWindows
    _new_id: Callable[[], str]

    async def apply(
        self,
        session: Repositories,
        conversation: Conversation,
        draft: Draft,
        seq: int,
        format: FormatName,
    ) -> Conversation:
        """Show the item of the message at a seq, and return the conversation after that.

        Call it in the transaction that stored the message.
        """
        part = draft.compaction
        assert part is not None
        conversation = await self._active.update_locked(session, conversation)
        conversation_id, state = conversation.conversation_id, conversation.state
        policy = self._resolver.policy_of(conversation)
        count = self._resolver.counter(conversation.counter)
        active = await session.contexts.find_compaction(conversation_id, state.compaction_id)
        is_shown = active is not None and active.is_shown_with(policy.strategy)
        before = base_view(state, active.view if active is not None and is_shown else None, policy)
        epoch = await session.usage.last_epoch(conversation_id, (format,))
        model = model_in(epoch.payload_stream) if epoch is not None else conversation.model
        model = model or self._resolver.default_model or ""
        kept_seqs = {item.seq for item in await session.log.pinned(conversation_id)}
        provider = PROVIDERS[format]
        is_openai = provider.accepted_families(model)[:1] in ((), (OPENAI,))
        if not draft.tokens and provider.keeps_user_messages and is_openai:
            # OpenAI's endpoint for compactions returns the user's messages beside the item.
            for span in spans_through(before.spans, seq - 1):
                entries = await session.log.entries(conversation_id, span.start, span.end)
                kept_seqs |= {item.seq for item in entries if item.role is Role.USER}
        item = provider_item(part, seq, format, model, count)
        view = view_behind_item(before, item, kept_seqs, readable_summary(part), count)
        receipt = Compaction(
            compaction_id=self._new_id(),
            parent_id=state.compaction_id,
            trigger=Trigger.PROVIDER,
            strategy=Trigger.PROVIDER,
            policy_strategy=Trigger.PROVIDER,
            strategies_run=(Trigger.PROVIDER,),
            hidden_span=view.hidden or Span(seq, seq),
            view=view,
            made=() if view.summaries == before.summaries else view.summaries,
            model=model or None,
        )
        shown = replace(conversation, state=replace(state, kept_seqs=view.unhidden_seqs))
        visible = await view_state_of(session, self._resolver, shown, receipt)
        after = replace(
            with_view(state, visible, PROVIDER_COMPACTED),
            resume_at_tokens=0,
            is_due=False,
            became_due=False,
            failures=0,
        )
        receipt = replace(
            receipt,
            summary_tokens=visible.summary_tokens,
            hidden_tokens=visible.hidden_tokens,
            hidden_messages=visible.hidden_messages,
            before_tokens=await self._tokens(conversation),
            after_tokens=await self._tokens(replace(conversation, state=after)),
            before_messages=state.shown_messages + len(before.summary_texts()),
            after_messages=after.shown_messages,
        )
        version = state.view_version
        stored = await store_compaction(
            session, conversation_id, receipt, PROVIDER_COMPACTED, view_version=version
        )
        assert stored is not None, "the conversation is locked, and the view shows every pin"
        return replace(conversation, state=after)

    async def _tokens(self, conversation: Conversation) -> int:
        """Return the tokens of the next payload; of its messages, if the settings do not work."""
        shown = conversation.state.shown_tokens
        try:
            resolved = await self._resolver.of(conversation)
        except ContextError:
            return shown + conversation.state.summary_tokens
        return stored_usage_of(resolved, conversation, shown).total
