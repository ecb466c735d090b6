"""One compaction: planned, summarised outside any transaction, applied if still valid."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from app.domain.common.errors import Conflict, ServiceUnavailable, ValidationError
from app.domain.compaction.planning import CompactionInput
from app.domain.compaction.plans import NoCompaction
from app.domain.compaction.results import CompactResult, result_of
from app.domain.conversations.compaction_receipt import Compaction, Trigger
from app.domain.conversations.events import EventType
from app.services.common.observers import UNOBSERVED
from app.services.compaction.applying import CompactionStore
from app.services.compaction.execution import DRY_RUN, PlanExecutor, estimated_result
from app.services.compaction.inputs import CompactionInputs
from app.services.compaction.runs import CompactionRun, CompactRequest, nothing_done
from app.services.compaction.summariser import Summariser
from app.services.conversations.active_windows import ActiveWindows
from app.services.ports import Database, Observer
from app.services.prompt.settings_resolver import SettingsResolver

MIN_PAUSE_SECONDS = 30.0
MAX_PAUSE_SECONDS = 3600.0
_NOT_SHORTER = "the summary would not be shorter"


class CompactionRunner:
    """Runs a compaction of a conversation whose lease the caller holds."""

    def __init__(
        self,
        database: Database,
        resolver: SettingsResolver,
        summariser: Summariser,
        active: ActiveWindows,
        new_id: Callable[[], str],
        now_ms: Callable[[], float],
        observer: Observer = UNOBSERVED,
    ) -> None:
        self.inputs = CompactionInputs(database, resolver, active)
        self.store = CompactionStore(database, new_id, now_ms)
        self.summariser = summariser
        self.database = database
        self._executor = PlanExecutor(database, summariser)
        self._now_ms = now_ms
        self._observer = observer

    async def checked_input(
        self, tenant_id: str, conversation_id: str, request: CompactRequest
    ) -> CompactionInput:
        """Return the input of a forced compaction.

        Raises NotFound, and ValidationError for a model that may not summarise.
        """
        self.summariser.choose_model(request.model, None, None)
        source = await self.inputs.read(tenant_id, conversation_id)
        self._executor.model(source, request)
        return source

    async def postpone(self, source: CompactionInput) -> None:
        """Pause automatic compactions after a failure, longer after each one in a row.

        [compaction.backs-off]
        """
        seconds = min(MIN_PAUSE_SECONDS * 2 ** min(source.state.failures, 16), MAX_PAUSE_SECONDS)
        async with self.database.session() as session:
            await session.jobs.postpone(source.conversation.conversation_id, seconds)

    def start(
        self, source: CompactionInput, trigger: Trigger, request: CompactRequest | None = None
    ) -> CompactionRun:
        """Return a new run, whose deadline begins now."""
        calls = self.summariser.start_run(source.tenant_id)
        return CompactionRun(source, trigger, request or CompactRequest(), calls, self._now_ms())

    async def compact(
        self, source: CompactionInput, trigger: Trigger, request: CompactRequest
    ) -> CompactResult:
        """Plan a compaction, make its summaries and apply it."""
        run = self.start(source, trigger, request)
        return await self._observed(run, self._plan_and_apply(run))

    async def apply(self, run: CompactionRun, receipt: Compaction) -> CompactResult:
        """Apply what was reduced without a summary."""
        return await self._observed(run, self._apply(run, receipt))

    async def _observed(
        self, run: CompactionRun, result: Awaitable[CompactResult]
    ) -> CompactResult:
        """Report a run and its result to the observer."""
        with self._observer.compacting(run.conversation_id, run.trigger, run.strategy) as observe:
            observe(done := await result)
        return done

    async def _apply(self, run: CompactionRun, receipt: Compaction) -> CompactResult:
        await self.store.apply(run, receipt)
        return result_of(receipt)

    async def _plan_and_apply(self, run: CompactionRun) -> CompactResult:
        plan = run.plan()
        if isinstance(plan, NoCompaction):
            return nothing_done(run, plan.reason)
        await self.store.add_event(run, EventType.STARTED, steps=plan.steps)
        try:
            executed = await self._executor.execute(run, plan)
        except (ServiceUnavailable, ValidationError) as error:
            await self.store.record_failure(run, error)
            raise
        receipt = self.store.receipt(run, executed)
        if receipt.after_tokens >= receipt.before_tokens:
            await self.store.add_event(
                run, EventType.FAILED, reason="no_gain", calls=run.calls.calls
            )
            return nothing_done(run, _NOT_SHORTER, plan.steps)
        try:
            return await self._apply(run, receipt)
        except Conflict:
            await self.store.add_event(
                run, EventType.FAILED, reason="context_changed", calls=run.calls.calls
            )
            raise

    async def dry_run(self, source: CompactionInput, request: CompactRequest) -> CompactResult:
        """Return what a compaction would do, without calling a model or storing anything.

        What needs no model is carried out up to the receipt, and reported exactly. The size of a
        summary that a model would write is estimated.
        """
        run = self.start(source, Trigger.FORCED, request)
        plan = run.plan()
        if isinstance(plan, NoCompaction):
            return nothing_done(run, plan.reason)
        needs_model = plan.summarises and self._executor.model(source, request) is not None
        if plan.hidden is not None and needs_model:
            return estimated_result(run, plan, plan.hidden)
        receipt = self.store.receipt(run, await self._executor.execute(run, plan))
        if receipt.after_tokens >= receipt.before_tokens:
            return nothing_done(run, _NOT_SHORTER, plan.steps)
        return replace(result_of(receipt), compacted=False, reason=DRY_RUN, compaction_id=None)
