"""Compactions in the background: jobs of callers, and compactions that are due.

Work runs at least once and is applied at most once. [compaction.at-most-once]
"""

from __future__ import annotations

from dataclasses import asdict

from app.domain.common import json_text
from app.domain.common.errors import (
    Conflict,
    ContextError,
    NotFound,
    ServiceUnavailable,
    ValidationError,
)
from app.domain.compaction.planning import CompactionInput
from app.domain.compaction.results import CompactResult
from app.domain.compaction.thresholds import compaction_threshold, resume_at
from app.domain.conversations.compaction_receipt import Trigger
from app.services.compaction.runner import CompactionRunner
from app.services.compaction.runs import CompactRequest, request_from
from app.services.prompt.budget_status import is_due_as_reported


class BackgroundCompactions:
    """Does the work that a worker claimed, and whose lease it holds."""

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
        except Conflict:  # the view was changed meanwhile: is the compaction still due?
            async with self._database.session() as session:
                await session.jobs.set_due(conversation_id)

    async def _run_job(self, tenant_id: str, conversation_id: str, job_id: str) -> None:
        async with self._database.session() as session:
            job = await session.jobs.find(tenant_id, job_id)
        if job is None or job.status in {"done", "failed"}:
            return
        try:
            result = await self._compact(tenant_id, conversation_id, request_from(job.ask))
        except ContextError as error:
            problem = json_text.dumps({"code": error.code, "detail": error.detail, **error.facts})
            async with self._database.session() as session:
                await session.jobs.change(conversation_id, job_id, "failed", error=problem)
            return
        async with self._database.session() as session:
            done = json_text.dumps(asdict(result))
            await session.jobs.change(conversation_id, job_id, "done", result=done)

    async def _compact(
        self, tenant_id: str, conversation_id: str, request: CompactRequest
    ) -> CompactResult:
        source = await self._runner.checked_input(tenant_id, conversation_id, request)
        if request.dry_run:
            return await self._runner.dry_run(source, request)
        return await self._runner.compact(source, Trigger.FORCED, request)

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
            limits = source.resolved.judging_limits()
            async with self._database.session() as session:
                await session.contexts.suspend_compaction(conversation_id, resume_at(state, limits))
                await session.jobs.clear_due(conversation_id, state.head_seq)

    async def _is_due(self, source: CompactionInput) -> bool:
        """Whether the counted or the reported usage is over the threshold."""
        if compaction_threshold(source.resolved).reached(source.state):
            return True
        async with self._database.session() as session:
            return await is_due_as_reported(session, source.resolved, source.conversation)
