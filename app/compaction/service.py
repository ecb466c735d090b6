"""Compactions that a caller requests, that a build needs, or that are due: when, and their storing.

1. One compaction of a conversation runs at a time, in whichever process: it holds a lease. A forced
   one waits for another to end; a build does not. A worker holds the lease of what it claimed: its
   work runs at least once and is applied at most once. [compaction.at-most-once]
2. A compaction is planned, summarised outside any transaction, then stored, if the view has not
   changed since it was planned. A failure leaves the view as it was.
3. A clearing of tool results is a receipt as well. It changes the view, which would discard the
   result of a running compaction: it is skipped then. It changes neither `due_at` nor the failures.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from cachetools import LRUCache

from app.common import json_text
from app.common.errors import Conflict, ContextError, NotFound, ServiceUnavailable, ValidationError
from app.compaction.planning import NOT_SHORTER, CompactionInput, summary_reserve
from app.compaction.reduction import RESULTS_CLEARED, repeated_results, with_excluded
from app.compaction.run import (
    COUNTED,
    SUMMARISER_UNAVAILABLE,
    CompactionRequest,
    CompactionRun,
    Executed,
)
from app.compaction.shown_history import ShownHistory, tokens_of
from app.compaction.summaries.summariser import Summariser
from app.conversations.conversation import BreakReason, ConversationState
from app.conversations.due import compaction_threshold, exceeds_messages, resume_at_tokens
from app.conversations.events import EventType
from app.conversations.moving_window import ActiveWindows
from app.conversations.partial_messages import (
    limits_of_oversized,
    reader_tool_tokens,
    shortened_messages,
)
from app.conversations.pressure import is_due_as_reported
from app.conversations.receipt import (
    PENDING,
    UNOBSERVED,
    CompactionPlan,
    CompactResult,
    NoCompaction,
    Observer,
    Receipt,
    Trigger,
    result_of,
    unchanged,
)
from app.conversations.settings_resolver import SettingsResolver
from app.conversations.stored_receipts import announce, store_receipt
from app.conversations.turns import OPEN_CALLS_SHARE, Entry, open_call_seqs, with_pins
from app.conversations.view import (
    RepeatedResult,
    ShortenedMessage,
    Span,
    View,
    spans_of,
    spans_through,
)
from app.conversations.view_changes import (
    base_view,
    lacks_summary,
    view_summary_tokens,
    with_item_sent,
    with_shortened,
    without_compaction,
)
from app.formats.message import Role, ToolCall
from app.jobs.leases import Leases
from app.jobs.repository import Job, JobStatus
from app.models.usage import EXTRACTIVE
from app.prompt.resolved_settings import RequestSettings, ResolvedSettings
from app.repositories import Database, Repositories

MAX_WAIT_SECONDS = 300.0
"""How long a forced compaction waits for another one to end."""
MIN_PAUSE_SECONDS = 30.0
MAX_PAUSE_SECONDS = 3600.0
DRY_RUN = "dry run"
BUILT_IN = CompactionRequest(model=EXTRACTIVE)
"""The request of a compaction without a model."""
_MAX_FRUITLESS_PLANS = 10_000
_CHANGED = "The context changed while it was being compacted; try again"

_log = logging.getLogger("app.compaction")


@dataclass(eq=False, repr=False)
class CompactionService:
    """Compacts conversations, one compaction at a time for each."""

    database: Database
    resolver: SettingsResolver
    summariser: Summariser
    active: ActiveWindows
    leases: Leases
    new_id: Callable[[], str]
    now_ms: Callable[[], float]
    observer: Observer = UNOBSERVED
    _fruitless_plans: LRUCache[str, Hashable] = field(
        init=False, default_factory=lambda: LRUCache(_MAX_FRUITLESS_PLANS)
    )

    # --- forced ---------------------------------------------------------------------------

    async def compact(
        self,
        tenant_id: str,
        conversation_id: str,
        request: CompactionRequest,
        job_id: str | None = None,
    ) -> CompactResult:
        """Compact now, however full the context window is. [compaction.forced]

        A job has its lease, and is done in the transaction that shows its result. Raises NotFound,
        ValidationError for a model that may not summarise (also where there is nothing to do),
        ContextLimitUnknown, or ServiceUnavailable with the state unchanged.
        """
        self.summariser.choose_model(request.model, None, None)
        run = self.start(await self._read(tenant_id, conversation_id), Trigger.FORCED, request)
        _ = run.model
        if request.dry_run:
            return await self._dry_run(run)
        if job_id is not None:
            return await self._compact(run, job_id)
        async with self.leases.wait(conversation_id, MAX_WAIT_SECONDS):
            source = await self._read(tenant_id, conversation_id)
            return await self._compact(self.start(source, Trigger.FORCED, request))

    async def _dry_run(self, run: CompactionRun) -> CompactResult:
        """Return what a compaction would do, without calling a model or storing anything.

        Without a model the result is exact. What a model will write is estimated by the summary
        that is made without one. [compaction.dry-run]
        """
        plan, model = run.plan(), run.model
        if isinstance(plan, NoCompaction):
            return _nothing_done(run, plan.reason)
        run = replace(run, request=run.request.model_copy(update={"model": EXTRACTIVE}))
        receipt = run.receipt(await run.carry_out(plan), "", 0.0)
        if receipt.after_tokens >= receipt.before_tokens:
            return _nothing_done(run, NOT_SHORTER, plan.stages)
        result = replace(
            result_of(receipt), compacted=False, reason=DRY_RUN, compaction_id=None, duration_ms=0
        )
        if model is None or result.model is None:
            return result
        return replace(result, estimated=True, model=model, cost_usd=None)

    # --- in the background --------------------------------------------------------------------

    async def start_job(
        self, tenant_id: str, conversation_id: str, request: CompactionRequest
    ) -> Job:
        """Store a compaction for the workers and return its job.

        Raises NotFound, and ValidationError for a model that may not summarise.
        """
        self.summariser.choose_model(request.model, None, None)
        job_id, text = self.new_id(), request.model_dump_json()
        async with self.database.transaction() as session:
            await session.conversations.get(tenant_id, conversation_id)
            await session.jobs.add(tenant_id, conversation_id, job_id, "compact", text)
            job = await session.jobs.find(tenant_id, job_id)
        if job is None:  # the conversation was deleted meanwhile
            raise NotFound.conversation(conversation_id)
        return job

    async def job(self, tenant_id: str, job_id: str) -> Job:
        """Return a job; raises NotFound for what this tenant does not have."""
        async with self.database.session() as session:
            job = await session.jobs.find(tenant_id, job_id)
        if job is None:
            raise NotFound(f"No job {job_id}", {"job_id": job_id})
        return job

    async def work(self, tenant_id: str, conversation_id: str, job_id: str | None) -> None:
        """Run a job that a worker claimed, or without one the compaction that is due.

        Raises only what should be retried, such as a database that does not answer.
        """
        if job_id is not None:
            await self._run_job(tenant_id, conversation_id, job_id)
            return
        try:
            await self._compact_if_due(tenant_id, conversation_id)
        except NotFound:
            return  # deleted meanwhile
        except Conflict:  # the view was changed meanwhile: a worker checks again whether it is due
            async with self.database.session() as session:
                await session.jobs.set_due(conversation_id)

    async def _run_job(self, tenant_id: str, conversation_id: str, job_id: str) -> None:
        async with self.database.session() as session:
            job = await session.jobs.find(tenant_id, job_id)
        if job is None or JobStatus(job.status).is_final:
            return
        request = CompactionRequest.model_validate_json(job.request)
        try:
            result = await self.compact(tenant_id, conversation_id, request, job_id)
            status, ended = JobStatus.DONE, {"result": json_text.dumps(asdict(result))}
        except ContextError as error:
            problem = {"code": error.code, "detail": error.detail, **error.facts}
            status, ended = JobStatus.FAILED, {"error": json_text.dumps(problem)}
        async with self.database.session() as session:
            await session.jobs.change(conversation_id, job_id, status, **ended)

    async def _compact_if_due(self, tenant_id: str, conversation_id: str) -> None:
        source = await self._read(tenant_id, conversation_id)
        state, resolved = source.state, source.resolved
        if state.is_backing_off:
            return
        is_due = compaction_threshold(resolved).reached(state)
        if not is_due:
            async with self.database.session() as session:
                is_due = await is_due_as_reported(session, resolved, source.conversation)
        if is_due:
            run = self.start(source, Trigger.BACKGROUND)
            try:
                result = await self._compact(run)
            except (ServiceUnavailable, ValidationError):
                return
            if result.compacted:
                return
            # Nothing can be compacted until the log has grown.
            limits, policy = resolved.compaction_limits(), resolved.policy.compaction
            resume_at = resume_at_tokens(state, limits, policy)
            async with self.database.session() as session:
                await session.contexts.suspend_compaction(conversation_id, resume_at)
        async with self.database.session() as session:
            await session.jobs.clear_due(conversation_id, state.head_seq)

    # --- for builds -----------------------------------------------------------------------

    async def compact_for_build(
        self,
        tenant_id: str,
        conversation_id: str,
        settings: RequestSettings,
        state: ConversationState,
        plan_key: Hashable,
    ) -> CompactResult | NoCompaction | None:
        """Compact during a build; None when the view was changed meanwhile.

        After a failure there is no attempt for some time. `plan_key` identifies the input of the
        plan: an attempt that compacted nothing is not repeated until it changes, because builds
        are frequent.
        """
        if state.is_backing_off:
            raise ServiceUnavailable("The summariser failed a moment ago")
        if self._fruitless_plans.get(conversation_id) == plan_key:
            return NoCompaction("nothing could be compacted, and nothing has changed since")
        try:
            async with self.leases.held(conversation_id) as is_held:
                if not is_held:
                    return PENDING
                source = await self._read(tenant_id, conversation_id, settings)
                if source.state.view_version != state.view_version:
                    return None
                result = await self._compact(self.start(source, Trigger.BUILD))
        except Conflict:
            return None
        if result.compacted:
            return result
        self._fruitless_plans[conversation_id] = plan_key
        return NoCompaction(result.reason or "")

    async def summarise_before_item(
        self, tenant_id: str, conversation_id: str, settings: RequestSettings, view_version: int
    ) -> tuple[str, ...]:
        """Make the summary that a build needs because it cannot send a provider's item.

        What is shown stays the same, so epochs with the item go on [compaction.provider-item].
        Without a usable model the `extractive` summariser does. Returns what it had to do without.
        """
        source = await self._read(tenant_id, conversation_id, settings)
        if source.state.view_version != view_version or not lacks_summary(source.view):
            return ()
        if not source.state.is_backing_off:
            try:
                await self._add_summary(self.start(source, Trigger.PROVIDER))
                return ()
            except (ServiceUnavailable, ValidationError):
                await self._postpone(source)
        await self._add_summary(self.start(source, Trigger.PROVIDER, BUILT_IN))
        return (SUMMARISER_UNAVAILABLE,)

    async def _add_summary(self, run: CompactionRun) -> None:
        """Add a summary to the receipt of a provider's item, unless the view was changed."""
        source, conversation_id, calls = run.source, run.conversation_id, run.calls
        receipt, item = source.active, source.view.provider_item
        if receipt is None or item is None:
            return
        try:
            executed = await run.summarise_before_item(item.seq)
            made = executed.view
            receipt = replace(
                receipt,
                view=replace(receipt.view, summaries=made.summaries, retain=made.retain),
                made=(*receipt.made, *executed.made),
                prompt_hash=calls.prompt_hash,
                **{name: getattr(calls, name) for name in COUNTED},
            )
            async with self.database.transaction() as session:
                locked = await session.conversations.get(
                    source.tenant_id, conversation_id, lock=True
                )
                if locked.state.view_version == source.state.view_version:
                    await session.contexts.add_summary(conversation_id, receipt)
        finally:
            await calls.record(self.database, conversation_id, source.conversation.agent_id)

    async def store_smaller_view(self, source: CompactionInput, view: View) -> CompactResult:
        """Store this smaller view as a compaction, without a model.

        The receipt counts the payloads of the build, whether or not they have a provider's item.
        """
        before, after = source.tokens_in(source.view), source.tokens_in(view)
        source = replace(source, view=with_item_sent(source.view))
        run = self.start(source, Trigger.OVERFLOW)
        stages = (Trigger.OVERFLOW.value,)
        plan = CompactionPlan(stages, 0, hidden=view.hidden, summarises=False)
        receipt = self._receipt(run, Executed(plan, with_item_sent(view)))
        receipt = replace(receipt, before_tokens=before, after_tokens=after)
        return await self._observed(run, self._store(run, receipt))

    async def clear_tool_results(self, source: CompactionInput, plan: CompactionPlan) -> bool:
        """Clear tool results by a plan that was made on a build's view, without a model.

        Returns False while a compaction runs; otherwise True: the view was changed, by this call or
        by another.
        """
        try:
            async with self.leases.held(source.conversation.conversation_id) as is_held:
                if not is_held:
                    return False
                run = self.start(source, Trigger.TOOL_OUTPUT)
                view, state = source.view_after(plan), source.state
                freed = tokens_of(source.shown) - tokens_of(source.shown_in(view))
                receipt = replace(  # it hides no messages, but placeholders save tokens
                    self._receipt(run, Executed(plan, view)),
                    hidden_tokens=state.hidden_tokens + freed,
                    hidden_messages=state.hidden_messages,
                )
                await self._observed(run, self._store(run, receipt))
        except Conflict:
            pass
        return True

    # --- the input ------------------------------------------------------------------------

    async def _read(
        self,
        tenant_id: str,
        conversation_id: str,
        settings: RequestSettings | None = None,
        spans: Sequence[Span] | None = None,
    ) -> CompactionInput:
        """Return the input of a compaction, with the shown messages or those in `spans`.

        `settings` are those of a build. A summary of another strategy than the policy's is no
        longer shown: the compaction starts from the log. [strategy.change-drops-summary]
        """
        model, entries = settings.model if settings else None, list[Entry]()
        async with self.database.session() as session:
            conversation = await session.conversations.get(tenant_id, conversation_id, model)
        moved = await self.active.updated(tenant_id, conversation)
        conversation = replace(conversation, state=moved.state)
        async with self.database.session() as session:
            resolved = await self.resolver.of(conversation, settings)
            state, policy = conversation.state, resolved.policy
            active = await session.contexts.find_receipt(conversation_id, state.compaction_id)
            if active is not None and not active.is_shown_with(policy.strategy):
                await session.contexts.show_whole_log(conversation_id, state.view_version)
                conversation = replace(conversation, state=without_compaction(state))
                state, active = conversation.state, None
            view = base_view(state, active.view if active else None, policy)
            spans = spans_through(spans or view.spans, state.head_seq)
            for span in spans:
                entries += await session.log.entries(conversation_id, span.start, span.end)
            tools = policy.tool_output.exclude_tools
            excluded = await excluded_seqs(session, conversation_id, entries, view, spans, tools)
        entries = with_excluded(entries, excluded) if excluded else entries
        limits = resolved.policy_limits or resolved.limits
        max_tokens = limits.capacity // OPEN_CALLS_SHARE if limits is not None else 0
        staying = open_call_seqs(entries, state.calls.open.values(), max_tokens)
        entries = with_pins(entries, staying) if staying else entries
        return await self._with_shortened(
            CompactionInput(tenant_id, conversation, resolved, view, tuple(entries), active)
        )

    async def _with_shortened(self, source: CompactionInput) -> CompactionInput:
        """Return the input with oversized messages shortened, as in every build."""
        resolved, view = source.resolved, source.view
        limits = resolved.policy_limits or resolved.limits
        if limits is None or source.tokens_in(view) <= limits.capacity:
            return source
        reserve = max(summary_reserve(limits), view_summary_tokens(view, resolved.count))
        # Tokens of the counter, before the factor of the model's calibration.
        available_tokens = int(limits.capacity / resolved.factor) - resolved.raw_fixed.fixed
        available_tokens -= reserve + reader_tool_tokens(resolved)
        max_tokens = limits_of_oversized(source.shown, available_tokens)
        shortened = await self.shorten(source.conversation.conversation_id, resolved, max_tokens)
        return replace(source, view=with_shortened(view, shortened)) if shortened else source

    async def shorten(
        self,
        conversation_id: str,
        resolved: ResolvedSettings,
        max_tokens: Mapping[int, int],
        *,
        as_chat: bool = True,
    ) -> list[ShortenedMessage]:
        """Return the messages shortened to these tokens by seq, as far as the policy allows it."""
        if not max_tokens or not resolved.policy.messages.offload_oversized:
            return []
        spans = [Span(seq, seq + 1) for seq in max_tokens]
        async with self.database.session() as session:
            rows = await session.contexts.rows(conversation_id, spans, as_chat=as_chat)
        return await asyncio.to_thread(shortened_messages, rows, max_tokens, resolved)

    # --- one run --------------------------------------------------------------------------

    def start(
        self, source: CompactionInput, trigger: str, request: CompactionRequest | None = None
    ) -> CompactionRun:
        """Return a new run, whose deadline begins now."""
        calls, request = self.summariser.start_run(source.tenant_id), request or CompactionRequest()
        own = self.database, self.summariser
        return CompactionRun(*own, source, trigger, request, calls, self.now_ms())

    def _receipt(self, run: CompactionRun, executed: Executed) -> Receipt:
        return run.receipt(executed, self.new_id(), self.now_ms())

    async def _observed(
        self, run: CompactionRun, compacting: Awaitable[CompactResult]
    ) -> CompactResult:
        """Report a run and its result to the observer; its model calls cost, however it ends."""
        conversation = run.source.conversation
        try:
            with self.observer.compacting(run.trigger, run.strategy) as observe:
                result = await compacting
                observe(result)
            return result
        finally:
            await run.calls.record(self.database, run.conversation_id, conversation.agent_id)

    async def _compact(self, run: CompactionRun, job_id: str | None = None) -> CompactResult:
        """Plan a compaction, make its summaries and store it."""
        return await self._observed(run, self._run(run, job_id))

    async def _run(self, run: CompactionRun, job_id: str | None) -> CompactResult:
        plan = run.plan()
        if isinstance(plan, NoCompaction):
            return _nothing_done(run, plan.reason)
        await self._announce(run, EventType.STARTED, stages=plan.stages)
        try:
            receipt = self._receipt(run, await run.carry_out(plan))
            if receipt.after_tokens < receipt.before_tokens:
                return await self._store(run, receipt, job_id)
        except Conflict:
            await self._announce(run, EventType.FAILED, "context_changed")
            raise
        except (ServiceUnavailable, ValidationError) as error:
            reason = error.facts.get("reason", error.code)
            text = await self._announce(
                run, EventType.FAILED, reason, code=error.code, detail=error.detail
            )
            if run.trigger is not Trigger.FORCED:  # there the caller gets the error
                async with self.database.session() as session:
                    await session.jobs.record_failure(run.conversation_id, text)
                await self._postpone(run.source)
            data = {"trigger": run.trigger, "reason": reason, "calls": run.calls.calls}
            _log.warning("compaction_failed", extra={"data": data})
            raise
        await self._announce(run, EventType.FAILED, "no_gain")
        return _nothing_done(run, NOT_SHORTER, plan.stages)

    async def _announce(
        self, run: CompactionRun, event: EventType, reason: str | None = None, **data: object
    ) -> str:
        """Add an event of a compaction to the conversation, and return its data."""
        failed = {} if reason is None else {"reason": reason, "calls": run.calls.calls}
        told = {"trigger": run.trigger, **failed, **data}
        async with self.database.session() as session:
            await session.events.add(run.conversation_id, event, **told)
        return json_text.dumps(told)

    async def _store(
        self, run: CompactionRun, receipt: Receipt, job_id: str | None = None
    ) -> CompactResult:
        """Store a receipt and show its view.

        Raises NotFound for a conversation that was deleted meanwhile, and Conflict if the view was
        changed after the compaction was planned.
        """
        conversation_id, state, calls = run.conversation_id, run.source.state, run.calls
        cause: BreakReason = "compaction"
        resume_at = _resume_at_tokens(run, receipt)
        if run.trigger is Trigger.TOOL_OUTPUT:
            cause, resume_at = RESULTS_CLEARED, state.resume_at_tokens
        async with self.database.transaction() as session:
            await session.conversations.get(run.source.tenant_id, conversation_id, lock=True)
            after = {"view_version": state.view_version, "resume_at_tokens": resume_at}
            if not await store_receipt(session, conversation_id, receipt, cause, **after):
                raise Conflict(_CHANGED)
            result = await announce(session, conversation_id, receipt)
            if job_id is not None:
                done, text = JobStatus.DONE, json_text.dumps(asdict(result))
                if not await session.jobs.change(conversation_id, job_id, done, result=text):
                    raise Conflict(_CHANGED)
            await calls.record_in(session, conversation_id, run.source.conversation.agent_id)
        calls.unrecorded.clear()
        return result

    async def _postpone(self, source: CompactionInput) -> None:
        """Pause automatic compactions after a failure, longer after each one in a row.

        [compaction.backs-off]
        """
        seconds = min(MIN_PAUSE_SECONDS * 2 ** min(source.state.failures, 16), MAX_PAUSE_SECONDS)
        async with self.database.session() as session:
            await session.jobs.postpone(source.conversation.conversation_id, seconds)


async def excluded_seqs(
    session: Repositories,
    conversation_id: str,
    entries: Sequence[Entry],
    view: View,
    spans: Sequence[Span],
    tools: Collection[str],
) -> frozenset[int]:
    """Return the seqs of shown results of these tools, which are not cleared yet."""
    names: dict[int, str] = {}
    for span in spans if tools else ():
        names |= await session.log.tool_names(conversation_id, span.start, span.end)
    return frozenset(
        item.seq
        for item in entries
        if item.role is Role.TOOL
        and names.get(item.seq) in tools
        and not view.clears_result(item.seq)
    )


async def find_repeated(
    session: Repositories, conversation_id: str, shown: ShownHistory, spans: Sequence[Span]
) -> tuple[RepeatedResult, ...]:
    """Return the shown results that later ones repeat; a failed call repeats nothing."""
    calls: dict[int, ToolCall] = {}
    if sum(item.clearable for item in shown.entries) < 2:
        return ()
    for span in spans:
        calls |= await session.log.calls(conversation_id, span.start, span.end)
    found = repeated_results(shown, calls)
    rows = await session.contexts.rows(
        conversation_id, spans_of(item.newer_seq for item in found), as_chat=False
    )
    failed = {row.seq for row in rows if row.message().is_error}
    if failed:
        calls = {seq: call for seq, call in calls.items() if seq not in failed}
        found = repeated_results(shown, calls)
    return found


def _nothing_done(run: CompactionRun, reason: str, stages: tuple[str, ...] = ()) -> CompactResult:
    """Return the result of a compaction that changed nothing."""
    source = run.source
    result = unchanged(reason, source.tokens_in(source.view), source.messages_in(source.view))
    return replace(result, stages=stages)


def _resume_at_tokens(run: CompactionRun, receipt: Receipt) -> int:
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
