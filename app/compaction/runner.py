"""One compaction: planned, summarised outside any transaction, then stored.

A compaction is stored only if the view has not changed since it was planned.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from app.common import json_text
from app.common.errors import Conflict, ContextError, ServiceUnavailable, ValidationError
from app.compaction.execution import Execution
from app.compaction.inputs import CompactionInputs
from app.compaction.planning import NOT_SHORTER, CompactionInput
from app.compaction.reduction import RESULTS_CLEARED
from app.compaction.runs import CompactionRun, ExecutedPlan, nothing_done
from app.compaction.schemas import CompactionRequest
from app.compaction.summariser import Summariser
from app.conversations.compaction_receipt import Compaction, Trigger, ViewState
from app.conversations.compaction_results import CompactResult, result_of
from app.conversations.compactions import store_compaction
from app.conversations.events.events import EventType
from app.conversations.lookup import lock_conversation
from app.conversations.observers import UNOBSERVED, Observer
from app.conversations.plans import NoCompaction, tokens_of
from app.conversations.provider_items import UNAVAILABLE
from app.conversations.settings_resolver import SettingsResolver
from app.conversations.thresholds import exceeds_messages, resume_at_tokens
from app.conversations.view import Span, Summary
from app.conversations.views import kept_seqs, view_summary_tokens
from app.conversations.windows.service import ActiveWindows
from app.policy.policy import StrategyName
from app.repositories import Database
from app.work.job import JobStatus

MIN_PAUSE_SECONDS = 30.0
MAX_PAUSE_SECONDS = 3600.0
SUMMARISER_UNAVAILABLE = "summariser_unavailable"
"""In `degraded`: messages were left out without the summary that the policy asks for."""
DRY_RUN = "dry run"
_COUNTED = ("calls", "input_tokens", "output_tokens", "cached_tokens")
_CHANGED = "The context changed while it was being compacted; try again"

_log = logging.getLogger("app.compaction")


@dataclass(eq=False, repr=False)
class CompactionRunner:
    """Runs compactions; the caller holds the lease of the conversation."""

    database: Database
    _resolver: SettingsResolver
    summariser: Summariser
    _active: ActiveWindows
    new_id: Callable[[], str]
    _now_ms: Callable[[], float]
    _observer: Observer = UNOBSERVED

    def __post_init__(self) -> None:
        self.inputs = CompactionInputs(self.database, self._resolver, self._active)

    async def postpone(self, source: CompactionInput) -> None:
        """Pause automatic compactions after a failure, longer after each one in a row.

        [compaction.backs-off]
        """
        seconds = min(MIN_PAUSE_SECONDS * 2 ** min(source.state.failures, 16), MAX_PAUSE_SECONDS)
        async with self.database.session() as session:
            await session.jobs.postpone(source.conversation.conversation_id, seconds)

    def start(
        self, source: CompactionInput, trigger: Trigger, request: CompactionRequest | None = None
    ) -> CompactionRun:
        """Return a new run, whose deadline begins now."""
        calls = self.summariser.start_run(source.tenant_id)
        return CompactionRun(source, trigger, request or CompactionRequest(), calls, self._now_ms())

    def _execution(self, run: CompactionRun) -> Execution:
        return Execution(self.database, self.summariser, run)

    async def compact(
        self,
        source: CompactionInput,
        trigger: Trigger,
        request: CompactionRequest | None = None,
        job_id: str | None = None,
    ) -> CompactResult:
        """Plan a compaction, make its summaries and apply it.

        A job is done in the transaction that shows its result.
        """
        run = replace(self.start(source, trigger, request), job_id=job_id)
        return await self._observed(run, self._plan_and_apply(run))

    async def apply(self, run: CompactionRun, receipt: Compaction) -> CompactResult:
        """Store the receipt of a run that made no summary, and show its view."""
        return await self._observed(run, self._store(run, receipt))

    async def _observed(
        self, run: CompactionRun, compacting: Awaitable[CompactResult]
    ) -> CompactResult:
        """Report a run and its result to the observer; its model calls cost, however it ends."""
        try:
            with self._observer.compacting(
                run.conversation_id, run.trigger, run.strategy
            ) as observe:
                result = await compacting
                observe(result)
            return result
        finally:
            agent_id = run.source.conversation.agent_id
            await run.calls.record(self.database, run.conversation_id, agent_id)

    async def _plan_and_apply(self, run: CompactionRun) -> CompactResult:
        plan = run.plan()
        if isinstance(plan, NoCompaction):
            return nothing_done(run, plan.reason)
        await self._add_event(run, EventType.STARTED, {"steps": plan.steps})
        try:
            executed = await self._execution(run).carry_out(plan)
        except (ServiceUnavailable, ValidationError) as error:
            await self._record_failure(run, error)
            raise
        receipt = self.receipt(run, executed)
        if receipt.after_tokens >= receipt.before_tokens:
            await self._add_failed(run, "no_gain")
            return nothing_done(run, NOT_SHORTER, plan.steps)
        try:
            return await self._store(run, receipt)
        except Conflict:
            await self._add_failed(run, "context_changed")
            raise

    async def dry_run(self, source: CompactionInput, request: CompactionRequest) -> CompactResult:
        """Return what a compaction would do, without calling a model or storing anything.

        Without a model the result is exact. Of what a model will write half of the most that it
        may take is expected. [compaction.dry-run]
        """
        run = self.start(source, Trigger.FORCED, request)
        plan = run.plan()
        if isinstance(plan, NoCompaction):
            return nothing_done(run, plan.reason)
        model, hidden = run.choose_model(self.summariser), plan.hidden
        if model is None or hidden is None or not plan.summarises:
            receipt = self.receipt(run, await self._execution(run).carry_out(plan))
        else:
            old = source.view.summaries if plan.chunks else ()
            start = old[-1].span.end if old else hidden.start
            view = run.view_after(plan, (*old, Summary(Span(start, hidden.end), "")), None)
            receipt = self.receipt(run, ExecutedPlan(plan, view))
            tokens = receipt.summary_tokens + run.summary_limit(plan) // 2
            receipt = replace(
                receipt,
                model=model,
                cost_usd=None,
                summary_tokens=tokens,
                after_tokens=source.tokens_in(view, tokens),
            )
        if receipt.after_tokens >= receipt.before_tokens:
            return nothing_done(run, NOT_SHORTER, plan.steps)
        return replace(
            result_of(receipt),
            compacted=False,
            reason=DRY_RUN,
            compaction_id=None,
            estimated=receipt.model == model is not None,
        )

    async def summarise_behind_item(
        self, source: CompactionInput, request: CompactionRequest | None = None
    ) -> bool:
        """Add a summary to the receipt of a view with a provider's item. [compaction.provider-item]

        What is shown stays the same, so epochs with the item go on. Returns False if the view was
        changed meanwhile.
        """
        receipt, item = source.active, source.view.provider_item
        if receipt is None or item is None:
            return False
        run = self.start(source, Trigger.PROVIDER, request)
        conversation_id, calls = run.conversation_id, run.calls
        try:
            executed = await self._execution(run).summarise_behind_item(item)
            made = executed.view
            view = replace(receipt.view, summaries=made.summaries, retain=made.retain)
            costs = [cost for cost in (receipt.cost_usd, calls.cost_usd) if cost is not None]
            receipt = replace(
                receipt,
                view=view,
                made=(*receipt.made, *executed.made),
                prompt_hash=calls.prompt_hash,
                cost_usd=sum(costs) if costs else None,
                **{name: getattr(receipt, name) + getattr(calls, name) for name in _COUNTED},
            )
            async with self.database.transaction() as session:
                locked = await lock_conversation(session, source.tenant_id, conversation_id, None)
                if locked.state.view_version != source.state.view_version:
                    return False
                await session.contexts.add_summary(conversation_id, receipt)
            return True
        finally:
            await calls.record(self.database, conversation_id, source.conversation.agent_id)

    # --- what is stored -------------------------------------------------------------------

    def receipt(self, run: CompactionRun, executed: ExecutedPlan) -> Compaction:
        """Return the receipt of a plan that was carried out."""
        source, view, calls = run.source, executed.view, run.calls
        state, resolved = source.state, source.resolved
        shown = source.shown_in(view)
        lacks_summary = executed.lacks_summary or executed.plan.drops_without_summary
        # A summary is made because the provider has no compaction. [strategy.provider]
        replaces_provider = (
            run.strategy is StrategyName.PROVIDER and run.trigger is Trigger.PROACTIVE
        )
        return Compaction(
            compaction_id=self.new_id(),
            parent_id=state.compaction_id,
            trigger=run.trigger,
            strategy=run.strategy,
            policy_strategy=resolved.policy.strategy
            if view.provider_item is None
            else Trigger.PROVIDER,
            strategies_run=executed.plan.steps,
            hidden_span=executed.plan.hidden
            or view.hidden
            or Span(1, view.results_cleared_through + 1),
            view=view,
            made=tuple(executed.made),
            summary_tokens=view_summary_tokens(view, resolved.count),
            hidden_tokens=state.tokens - tokens_of(shown),
            hidden_messages=state.head_seq - len(shown),
            before_tokens=source.tokens_in(source.view),
            after_tokens=source.tokens_in(view),
            before_msg_count=source.messages_in(source.view),
            after_msg_count=source.messages_in(view),
            model=calls.model if executed.made else None,
            prompt_hash=calls.prompt_hash if executed.made else None,
            cost_usd=calls.cost_usd,
            **{name: getattr(calls, name) for name in _COUNTED},
            target_tokens=run.request.target_tokens,
            duration_ms=round(self._now_ms() - run.started_ms),
            degraded=(
                *((SUMMARISER_UNAVAILABLE,) if lacks_summary else ()),
                *((UNAVAILABLE,) if replaces_provider else ()),
            ),
        )

    def clearing_receipt(self, run: CompactionRun, executed: ExecutedPlan) -> Compaction:
        """Return the receipt of a clearing, which hides no messages.

        Its `hidden_tokens` include those that the placeholders save.
        """
        source = run.source
        freed_tokens = tokens_of(source.shown) - tokens_of(source.shown_in(executed.view))
        return replace(
            self.receipt(run, executed),
            hidden_tokens=source.state.hidden_tokens + freed_tokens,
            hidden_messages=source.state.hidden_messages,
        )

    async def _store(self, run: CompactionRun, receipt: Compaction) -> CompactResult:
        """Store a receipt and show its view.

        Raises NotFound for a conversation that was deleted meanwhile, and Conflict if the view was
        changed after the compaction was planned.
        """
        conversation_id = run.conversation_id
        visible = ViewState(
            receipt.view,
            receipt.compaction_id,
            receipt.summary_tokens,
            receipt.hidden_tokens,
            receipt.hidden_messages,
            kept_seqs(receipt.view),
        )
        is_clearing, state = run.trigger is Trigger.TOOL_OUTPUT, run.source.state
        async with self.database.transaction() as session:
            await lock_conversation(session, run.source.tenant_id, conversation_id, None)
            result = await store_compaction(
                session,
                conversation_id,
                receipt,
                visible,
                RESULTS_CLEARED if is_clearing else "compaction",
                view_version=state.view_version,
                resume_at_tokens=state.resume_at_tokens
                if is_clearing
                else _resume_at_tokens(run, receipt),
            )
            if result is None:
                raise Conflict(_CHANGED)
            if run.job_id is not None:
                text = json_text.dumps(asdict(result))
                if not await session.jobs.change(
                    conversation_id, run.job_id, JobStatus.DONE, result=text
                ):
                    raise Conflict(_CHANGED)
            await run.calls.record_in(session, conversation_id, run.source.conversation.agent_id)
        run.calls.unrecorded.clear()
        return result

    async def _add_event(
        self, run: CompactionRun, event: EventType, data: Mapping[str, Any]
    ) -> None:
        """Add an event of a compaction to the conversation."""
        text = json_text.dumps({"trigger": run.trigger, **data})
        async with self.database.session() as session:
            await session.events.add(run.conversation_id, event, text)

    async def _add_failed(self, run: CompactionRun, reason: str) -> None:
        data = {"reason": reason, "calls": run.calls.calls}
        await self._add_event(run, EventType.FAILED, data)

    async def _record_failure(self, run: CompactionRun, error: ContextError) -> None:
        """Write a failure to the events and the log; store it unless a caller gets the error."""
        reason = error.facts.get("reason", error.code)
        logged = {"trigger": run.trigger, "reason": reason, "calls": run.calls.calls}
        failure = json_text.dumps({**logged, "code": error.code, "detail": error.detail})
        async with self.database.session() as session:
            await session.events.add(run.conversation_id, EventType.FAILED, failure)
            if run.trigger is not Trigger.FORCED:
                await session.jobs.record_failure(run.conversation_id, failure)
        _log.warning("compaction_failed", extra={"data": logged})


def _resume_at_tokens(run: CompactionRun, receipt: Compaction) -> int:
    """Return how many tokens the log needs before it is compacted automatically again.

    The messages that have to stay can be more than `max_messages`: then no compaction helps.
    """
    state, resolved = run.source.state, run.source.resolved
    state_after = replace(
        state, hidden_messages=receipt.hidden_messages, hidden_tokens=receipt.hidden_tokens
    )
    policy = resolved.policy.compaction
    if not exceeds_messages(policy, replace(state_after, resume_at_tokens=0)):
        return 0
    return resume_at_tokens(state_after, resolved.compaction_limits(), policy)
