"""`/v1/jobs/{id}`: the state of work in the background. [compaction.jobs]"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request

from app.common import json_text
from app.common.errors import NotFound
from app.conversations.compaction_results import CompactResult
from app.http import errors
from app.http.dependencies import services, tenant_of
from app.http.errors import ProblemAnswer
from app.http.fields import UUID, ResponseSchema, examples
from app.http.routing import WireRoute
from app.work import job as jobs
from app.work.job import JobStatus

JOB: dict[str, Any] = {
    "job_id": "0199a1b2-9a0b-7c1d-8e2f-304152637485",
    "conversation_id": "0199a1b2-3c4d-7e5f-8a9b-0c1d2e3f4a5b",
    "kind": "compact",
    "status": "running",
    "result": None,
    "error": None,
    "created_at": "2026-01-05T09:31:12.000123+00:00",
    "updated_at": "2026-01-05T09:31:12.100456+00:00",
}


class Job(ResponseSchema):
    """Work in the background, and its result."""

    model_config = examples(JOB)

    job_id: str
    """Id of the job."""
    conversation_id: str
    """The conversation that it works on."""
    kind: str
    """What kind of work it is."""
    status: JobStatus
    """`done` and `failed` are final."""
    result: CompactResult | None
    """Its result; null until it is done."""
    error: ProblemAnswer | None
    """Why it failed; null unless it did."""
    created_at: datetime
    """When it was requested."""
    updated_at: datetime
    """When its status last changed."""


router = APIRouter(route_class=WireRoute, tags=["compactions"])

JobPath = Annotated[
    str, Path(description="Id of the job.", examples=["0199a1b2-9a0b-7c1d-8e2f-304152637485"])
]
# Of two errors with one code, the first in the table is the one that services raise.
_STATUS_OF_CODE = {kind.code: kind.status for kind in reversed([*errors.EXAMPLES])}


@router.get("/v1/jobs/{job_id}", summary="Read a job")
async def get_job(request: Request, job_id: JobPath) -> Job:
    """Return the status of a job, and its result or its error once it has ended."""
    if not UUID.fullmatch(job_id):
        raise NotFound(f"No job {job_id}", {"job_id": job_id})
    job = await services(request).compaction.job(tenant_of(request), job_id.lower())
    return shown_job(job)


def shown_job(job: jobs.Job) -> Job:
    """Return a job; its error is the problem that a request would have returned."""
    return Job.of(
        job,
        conversation_id=job.public_id,
        result=json_text.loads(job.result) if job.result else None,
        error=_problem(json_text.loads(job.error)) if job.error else None,
    )


def _problem(facts: dict[str, Any]) -> dict[str, Any]:
    code, detail = facts.pop("code"), facts.pop("detail")
    answer = errors.problem(_STATUS_OF_CODE.get(code, 500), code, detail, facts=facts)
    problem: dict[str, Any] = json_text.loads(bytes(answer.body))
    return problem
