"""Background compactions: jobs that callers started, and due compactions.

Work runs at least once and is applied at most once. [compaction.at-most-once]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from app.common import json_text
from app.common.errors import Conflict, ContextError, NotFound, ServiceUnavailable, ValidationError
from app.compaction.planning import CompactionInput
from app.compaction.runner import CompactionRunner
from app.compaction.runs import CompactRequest, request_from
from app.conversations.budget_status import is_due_as_reported
from app.conversations.compaction_receipt import Trigger
from app.conversations.lookup import get_conversation
from app.conversations.thresholds import compaction_threshold, resume_at_tokens
from app.repositories import Database
from app.work.job import Job, JobStatus


class BackgroundCompactions:
    """Runs work that a worker has claimed."""

    def __init__(self, runner: CompactionRunner) -> None:
        self._runner = runner
        self._database = runner.database

    async def work(self, tenant_id: str, conversation_id: str, job_id: str | None) -> None:
        """Run a job, or without one the compaction that is due.

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
        try:
            request = request_from(job.request)
            source = await self._runner.checked_input(tenant_id, conversation_id, request)
            result = await self._runner.ask_provider(source, request)
            if result is None:
                result = await self._runner.compact(source, Trigger.FORCED, request, job_id)
            status, ended = JobStatus.DONE, {"result": json_text.dumps(asdict(result))}
        except ContextError as error:
            problem = {"code": error.code, "detail": error.detail, **error.facts}
            status, ended = JobStatus.FAILED, {"error": json_text.dumps(problem)}
        async with self._database.session() as session:
            await session.jobs.change(conversation_id, job_id, status, **ended)

    async def _compact_if_due(self, tenant_id: str, conversation_id: str) -> None:
        try:
            source = await self._runner.inputs.read(tenant_id, conversation_id)
        except NotFound:
            return
        state = source.state
        if state.is_resting:
            return
        if not await self._is_due(source):
            async with self._database.session() as session:
                await session.jobs.clear_due(conversation_id, state.head_seq)
            return
        try:
            result = await self._runner.compact(source, Trigger.BACKGROUND, CompactRequest())
        except NotFound:
            return  # deleted meanwhile
        except (ServiceUnavailable, ValidationError):
            await self._runner.postpone(source)
            return
        if not result.compacted:
            # Nothing can be compacted until the log has grown.
            limits = source.resolved.compaction_limits()
            async with self._database.session() as session:
                await session.contexts.suspend_compaction(
                    conversation_id,
                    resume_at_tokens(state, limits, source.resolved.policy.compaction),
                )
                await session.jobs.clear_due(conversation_id, state.head_seq)

    async def _is_due(self, source: CompactionInput) -> bool:
        """Whether the counted or the reported usage is over the threshold."""
        if compaction_threshold(source.resolved).reached(source.state):
            return True
        async with self._database.session() as session:
            return await is_due_as_reported(session, source.resolved, source.conversation)


class JobService:
    """Starts jobs and returns their state."""

    def __init__(self, database: Database, new_id: Callable[[], str]) -> None:
        self._database = database
        self._new_id = new_id

    async def start(self, tenant_id: str, conversation_id: str, kind: str, request: str) -> Job:
        """Store a job for the workers and return it; `request` is JSON.

        Raises NotFound for a conversation that this tenant does not have.
        """
        job_id = self._new_id()
        async with self._database.transaction() as session:
            await get_conversation(session, tenant_id, conversation_id, None)
            await session.jobs.add(tenant_id, conversation_id, job_id, kind, request)
            job = await session.jobs.find(tenant_id, job_id)
        if job is None:  # the conversation was deleted meanwhile
            raise NotFound.conversation(conversation_id)
        return job

    async def get(self, tenant_id: str, job_id: str) -> Job:
        """Return a job; raises NotFound for what this tenant does not have."""
        async with self._database.session() as session:
            job = await session.jobs.find(tenant_id, job_id)
        if job is None:
            raise NotFound(f"No job {job_id}", {"job_id": job_id})
        return job
