"""`/v1/jobs`: work in the background, its state and its end. [compaction.jobs]"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response

from app.api.compaction import job_schemas as schemas
from app.api.http import cursors, errors
from app.api.http.bodies import Json
from app.api.http.dependencies import Cursor, Limit, page_bound, services, tenant_of
from app.api.http.fields import UUID, AgentId, ConversationId
from app.api.http.pages import page_by_id
from app.api.http.routing import HeavyRoute, WireRoute
from app.domain.common import json_text
from app.domain.common.errors import Conflict, NotFound, ServiceUnavailable, ValidationError
from app.domain.conversations.job import Job, JobFilter, JobStatus

router = APIRouter(route_class=WireRoute, tags=["compactions"])
page_router = APIRouter(route_class=HeavyRoute, tags=["compactions"])

JobPath = Annotated[
    str, Path(description="Id of the job.", examples=["0199a1b2-9a0b-7c1d-8e2f-304152637485"])
]
# Of two errors with one code, the first in the table is the one that services raise.
_STATUS_OF_CODE = {kind.code: status for kind, status in reversed([*errors.STATUS.items()])}


@page_router.get(
    "/v1/jobs",
    operation_id="list_jobs",
    summary="List jobs",
    response_model=schemas.JobPage,
    responses=errors.problems_of(ValidationError, ServiceUnavailable),
)
async def list_jobs(
    request: Request,
    status: Annotated[JobStatus | None, Query(description="Only jobs of this status.")] = None,
    agent_id: Annotated[
        AgentId | None,
        Query(description="Only jobs of conversations that had this agent when the job was added."),
    ] = None,
    conversation_id: Annotated[
        ConversationId | None, Query(description="Only jobs of this conversation.")
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """Return the tenant's jobs, newest first; of an agent or of a conversation, but not of both."""
    if agent_id is not None and conversation_id is not None:
        raise ValidationError.at("/query/agent_id", "cannot be used with conversation_id")
    key = None
    if conversation_id is not None:
        tenant_id, keys = tenant_of(request), services(request).conversation_keys
        key = keys.likeliest(tenant_id, conversation_id)
        key = await keys.find_other(tenant_id, conversation_id, key) or key
    wanted = JobFilter(status, agent_id, key)
    before = cursors.decode_id(cursor, "jobs")
    page = await services(request).jobs.page(
        tenant_of(request), wanted, limit, before, page_bound(request)
    )
    return page_by_id("jobs", "job_id", page, job_json)


@router.get(
    "/v1/jobs/{job_id}",
    operation_id="get_job",
    summary="Read a job",
    response_model=schemas.Job,
    responses=errors.problems_of(NotFound, ServiceUnavailable),
)
async def get_job(request: Request, job_id: JobPath) -> Response:
    """Return the status of a job, and its result or its error once it has ended."""
    return Json(job_json(await services(request).jobs.get(tenant_of(request), _id_from(job_id))))


@router.post(
    "/v1/jobs/{job_id}/cancel",
    operation_id="cancel_job",
    summary="Cancel a job",
    response_model=schemas.Job,
    responses=errors.problems_of(NotFound, Conflict, ServiceUnavailable),
)
async def cancel_job(request: Request, job_id: JobPath) -> Response:
    """Cancel a job that has not ended, and return it.

    A queued job never runs. Of a running one, nothing is shown any more from now on; its model call
    ends within about a second. A repeated call returns the same. `409` when the job is `done` or
    `failed`: undo a compaction with `…/undo`.
    """
    job = await services(request).jobs.cancel(tenant_of(request), _id_from(job_id))
    return Json(job_json(job))


def _id_from(text: str) -> str:
    if not UUID.fullmatch(text):
        raise NotFound(f"No job {text}", {"job_id": text})
    return text.lower()


_NEW_FIELDS: dict[str, Any] = {"estimated": False, "degraded": []}
"""Fields that stored results of the release before do not have."""


def job_json(job: Job) -> dict[str, Any]:
    """Return a job as JSON; its error is the problem that a request would have returned."""
    ended = {
        "result": _NEW_FIELDS | json_text.loads(job.result) if job.result else None,
        "error": _problem(json_text.loads(job.error)) if job.error else None,
    }
    own = {name: getattr(job, name) for name in schemas.Job.model_fields}
    return own | {"conversation_id": job.public_id} | ended


def _problem(facts: dict[str, Any]) -> dict[str, Any]:
    code, detail = facts.pop("code"), facts.pop("detail")
    answer = errors.problem(_STATUS_OF_CODE.get(code, 500), code, detail, facts=facts)
    problem: dict[str, Any] = json_text.loads(bytes(answer.body))
    return problem
