"""`/v1/jobs/{id}`: the state of work in the background. [compaction.jobs]"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response

from app.api.compaction import job_schemas as schemas
from app.api.http import errors
from app.api.http.bodies import Json
<<<<<<< HEAD
from app.api.http.dependencies import Cursor, Limit, page_bound, services, tenant_of
from app.api.http.fields import UUID, AgentId, ConversationId
from app.api.http.pages import page_by_id
from app.api.http.routing import HeavyRoute, WireRoute
=======
from app.api.http.dependencies import services, tenant_of
from app.api.http.fields import UUID
from app.api.http.routing import WireRoute
>>>>>>> main
from app.domain.common import json_text
from app.domain.common.errors import NotFound, ServiceUnavailable
from app.domain.conversations.job import Job

router = APIRouter(route_class=WireRoute, tags=["compactions"])
<<<<<<< HEAD
page_router = APIRouter(route_class=HeavyRoute, tags=["compactions"])
=======
>>>>>>> main

JobPath = Annotated[
    str, Path(description="Id of the job.", examples=["0199a1b2-9a0b-7c1d-8e2f-304152637485"])
]
# Of two errors with one code, the first in the table is the one that services raise.
_STATUS_OF_CODE = {kind.code: status for kind, status in reversed([*errors.STATUS.items()])}


<<<<<<< HEAD
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


=======
>>>>>>> main
@router.get(
    "/v1/jobs/{job_id}",
    operation_id="get_job",
    summary="Read a job",
    response_model=schemas.Job,
    responses=errors.problems_of(NotFound, ServiceUnavailable),
)
async def get_job(request: Request, job_id: JobPath) -> Response:
    """Return the status of a job, and its result or its error once it has ended."""
    if not UUID.fullmatch(job_id):
        raise NotFound(f"No job {job_id}", {"job_id": job_id})
    return Json(job_json(await services(request).jobs.get(tenant_of(request), job_id.lower())))


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
