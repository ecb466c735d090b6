"""Compactions that a caller requests, that a build needs, or that are due in the background.

1. One compaction of a conversation runs at a time, in whichever process: it holds a lease. A forced
   one waits for another to end; a build does not. A worker holds the lease of what it claimed: its
   work runs at least once and is applied at most once. [compaction.at-most-once]
2. A failure leaves the view as it was.
3. Clearing tool results is no compaction but changes the view, which would discard the result of a
   running compaction: it is skipped then. It changes neither `due_at` nor the failures.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import asdict, replace

from cachetools import LRUCache

from app.common import json_text
from app.common.errors import Conflict, ContextError, NotFound, ServiceUnavailable, ValidationError
from app.compaction.planning import CompactionInput
from app.compaction.runner import SUMMARISER_UNAVAILABLE, CompactionRunner
from app.compaction.runs import ExecutedPlan
from app.compaction.schemas import CompactionRequest
from app.conversations.budget_status import is_due_as_reported
from app.conversations.compaction_receipt import Trigger
from app.conversations.compaction_results import CompactionPending, CompactResult
from app.conversations.conversation import ConversationState
from app.conversations.lookup import get_conversation
from app.conversations.plans import CompactionPlan, NoCompaction
from app.conversations.thresholds import compaction_threshold, resume_at_tokens
from app.conversations.view import Span, View
from app.conversations.views import lacks_summary, with_item_sent
from app.models.model_calls import EXTRACTIVE
from app.prompt.resolved_settings import RequestSettings
from app.work.job import Job, JobStatus
from app.work.leases import Leases

MAX_WAIT_SECONDS = 300.0
"""How long a forced compaction waits for another one to end."""
_MAX_FRUITLESS_PLANS = 10_000


class CompactionService:
    """Compacts conversations, one compaction at a time for each."""

    def __init__(self, runner: CompactionRunner, leases: Leases) -> None:
        self.runner = runner
        self._database = runner.database
        self._leases = leases
        self._fruitless_plans: LRUCache[str, Hashable] = LRUCache(_MAX_FRUITLESS_PLANS)

    # --- forced ---------------------------------------------------------------------------

    async def compact(
        self,
        tenant_id: str,
        conversation_id: str,
        request: CompactionRequest,
        job_id: str | None = None,
    ) -> CompactResult:
        """Compact now, however full the window is. [compaction.forced]

        A job has its lease.
        Raises NotFound, ValidationError for a model that may not summarise (also where there is
        nothing to do), ContextLimitUnknown, or ServiceUnavailable with the state unchanged.
        """
        self.runner.summariser.choose_model(request.model, None, None)
        source = await self.runner.inputs.read(tenant_id, conversation_id)
        self.runner.start(source, Trigger.FORCED, request).choose_model(self.runner.summariser)
        if job_id is not None:
            return await self.runner.compact(source, Trigger.FORCED, request, job_id)
        if request.dry_run:
            return await self.runner.dry_run(source, request)
        async with self._leases.wait(conversation_id, MAX_WAIT_SECONDS):
            source = await self.runner.inputs.read(tenant_id, conversation_id)
            return await self.runner.compact(source, Trigger.FORCED, request)

    async def summariser_problem(self, tenant_id: str, conversation_id: str) -> str | None:
        """Return why the policy's model may not summarise, None where it may."""
        conversation = await self.runner.inputs.find(tenant_id, conversation_id)
        try:
            model = self.runner.inputs.resolver.policy_of(conversation).compaction.model
            self.runner.summariser.choose_model(None, model, None)
        except ValidationError as error:
            return error.detail
        return None

    # --- in the background --------------------------------------------------------------------

    async def start_job(
        self, tenant_id: str, conversation_id: str, request: CompactionRequest
    ) -> Job:
        """Store a compaction for the workers and return its job.

        Raises NotFound, and ValidationError for a model that may not summarise.
        """
        self.runner.summariser.choose_model(request.model, None, None)
        job_id, text = self.runner.new_id(), request.model_dump_json()
        async with self._database.transaction() as session:
            await get_conversation(session, tenant_id, conversation_id, None)
            await session.jobs.add(tenant_id, conversation_id, job_id, "compact", text)
            job = await session.jobs.find(tenant_id, job_id)
        if job is None:  # the conversation was deleted meanwhile
            raise NotFound.conversation(conversation_id)
        return job

    async def job(self, tenant_id: str, job_id: str) -> Job:
        """Return a job; raises NotFound for what this tenant does not have."""
        async with self._database.session() as session:
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
        except Conflict:  # the view was changed meanwhile: a worker checks again whether it is due
            async with self._database.session() as session:
                await session.jobs.set_due(conversation_id)

    async def _run_job(self, tenant_id: str, conversation_id: str, job_id: str) -> None:
        async with self._database.session() as session:
            job = await session.jobs.find(tenant_id, job_id)
        if job is None or JobStatus(job.status).is_final:
            return
        request = CompactionRequest.model_validate_json(job.request)
        try:
            result = await self.compact(tenant_id, conversation_id, request, job_id=job_id)
            status, ended = JobStatus.DONE, {"result": json_text.dumps(asdict(result))}
        except ContextError as error:
            problem = {"code": error.code, "detail": error.detail, **error.facts}
            status, ended = JobStatus.FAILED, {"error": json_text.dumps(problem)}
        async with self._database.session() as session:
            await session.jobs.change(conversation_id, job_id, status, **ended)

    async def _compact_if_due(self, tenant_id: str, conversation_id: str) -> None:
        try:
            source = await self.runner.inputs.read(tenant_id, conversation_id)
        except NotFound:
            return
        state, resolved = source.state, source.resolved
        if state.is_resting:
            return
        is_due = compaction_threshold(resolved).reached(state)
        if not is_due:
            async with self._database.session() as session:
                is_due = await is_due_as_reported(session, resolved, source.conversation)
        if is_due:
            try:
                result = await self.runner.compact(source, Trigger.BACKGROUND)
            except NotFound:
                return  # deleted meanwhile
            except (ServiceUnavailable, ValidationError):
                await self.runner.postpone(source)
                return
            if result.compacted:
                return
            # Nothing can be compacted until the log has grown.
            resume_at = resume_at_tokens(
                state, resolved.compaction_limits(), resolved.policy.compaction
            )
            async with self._database.session() as session:
                await session.contexts.suspend_compaction(conversation_id, resume_at)
        async with self._database.session() as session:
            await session.jobs.clear_due(conversation_id, state.head_seq)

    # --- for builds -----------------------------------------------------------------------

    async def compact_for_build(
        self,
        tenant_id: str,
        conversation_id: str,
        settings: RequestSettings,
        state: ConversationState,
        plan_key: Hashable,
    ) -> CompactResult | NoCompaction | CompactionPending | None:
        """Compact during a build; None when the view was changed meanwhile.

        After a failure there is no attempt for some time. `plan_key` identifies the input of the
        plan: an attempt that compacted nothing is not repeated until it changes, because builds
        are frequent.
        """
        if state.is_resting:
            raise ServiceUnavailable("The summariser failed a moment ago")
        if self._fruitless_plans.get(conversation_id) == plan_key:
            return NoCompaction("nothing could be compacted, and nothing has changed since")
        try:
            async with self._leases.held(conversation_id) as is_held:
                if not is_held:
                    return CompactionPending()
                source = await self.runner.inputs.read(tenant_id, conversation_id, settings)
                if source.state.view_version != state.view_version:
                    return None
                try:
                    result = await self.runner.compact(
                        source, Trigger.PROACTIVE, CompactionRequest()
                    )
                except ServiceUnavailable:
                    await self.runner.postpone(source)
                    raise
        except Conflict:
            return None
        if result.compacted:
            return result
        self._fruitless_plans[conversation_id] = plan_key
        return NoCompaction(result.reason or "")

    async def summarise_behind_item(
        self,
        tenant_id: str,
        conversation_id: str,
        settings: RequestSettings,
        view_version: int,
    ) -> tuple[str, ...]:
        """Make the summary that a build needs because it cannot send a provider's item.

        Without a usable model the built-in summariser makes it. Returns what it had to do without.
        """
        source = await self.runner.inputs.read(tenant_id, conversation_id, settings)
        if source.state.view_version != view_version or not lacks_summary(source.view):
            return ()
        if not source.state.is_resting:
            try:
                await self.runner.summarise_behind_item(source)
            except (ServiceUnavailable, ValidationError):
                await self.runner.postpone(source)
            else:
                return ()
        await self.runner.summarise_behind_item(source, CompactionRequest(model=EXTRACTIVE))
        return (SUMMARISER_UNAVAILABLE,)

    async def apply_emergency_cut(self, source: CompactionInput, view: View) -> CompactResult:
        """Store this smaller view as a compaction, without a model.

        The receipt counts the payloads of the build, whether or not they have a provider's item.
        """
        run = self.runner.start(
            replace(source, view=with_item_sent(source.view)), Trigger.EMERGENCY
        )
        steps = (Trigger.EMERGENCY.value,)
        plan = CompactionPlan(steps=steps, freed_tokens=0, hidden=view.hidden, summarises=False)
        receipt = replace(
            self.runner.receipt(run, ExecutedPlan(plan, with_item_sent(view))),
            before_tokens=source.tokens_in(source.view),
            after_tokens=source.tokens_in(view),
        )
        return await self.runner.apply(run, receipt)

    async def clear_tool_results(
        self,
        tenant_id: str,
        conversation_id: str,
        settings: RequestSettings,
        view_version: int,
        plan: CompactionPlan,
        spans: tuple[Span, ...] | None = None,
    ) -> bool:
        """Clear tool results by a plan that was made on a version of the view, without a model.

        A sliding window shows only `spans` of the view. Returns False while a compaction runs;
        otherwise True: the view was changed, by this call or by another.
        """
        try:
            async with self._leases.held(conversation_id) as is_held:
                if not is_held:
                    return False
                source = await self.runner.inputs.read(tenant_id, conversation_id, settings, spans)
                if source.state.view_version != view_version:
                    return True
                run = self.runner.start(source, Trigger.TOOL_OUTPUT)
                executed = ExecutedPlan(plan, run.view_without_summary(plan))
                receipt = self.runner.clearing_receipt(run, executed)
                await self.runner.apply(run, receipt)
        except Conflict:
            pass
        return True
