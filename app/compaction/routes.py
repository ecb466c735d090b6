"""`/v1/conversations/{id}/compact` and `/compactions`: compactions, their receipts, undo."""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field

from app.common import json_text
from app.common.errors import Conflict, ContextLimitUnknown, NotFound, ValidationError
from app.compaction.receipts import ShownReceipt
from app.compaction.rewind import Rewound
from app.compaction.run import CompactionRequest
from app.compaction.strategies import STRATEGIES
from app.conversations.messages.routes import MessagePage, transcript
from app.conversations.receipt import CompactResult
from app.http import cursors, errors
from app.http.bodies import Json
from app.http.errors import ProblemAnswer, error_answers
from app.http.fields import MAX_SEQ, UUID, NoFields, RequestSchema, ResponseSchema, examples
from app.http.routing import (
    ConversationPath,
    Cursor,
    Limit,
    WireRoute,
    page_bound,
    paged,
    services,
    tenant_of,
)
from app.jobs import repository as jobs
from app.jobs.repository import JobStatus
from app.policy.policy import Policy, StrategyName

router = APIRouter(route_class=WireRoute)
_TAGS: list[str | Enum] = ["compactions"]

_PATH = "/v1/conversations/{conversation_id}"
# Of two errors with one code, the first in the table is the one that services raise.
_STATUS_OF_CODE = {kind.code: kind.status for kind in reversed([*errors.kinds_of()])}

JobPath = Annotated[
    str, Path(description="Id of the job.", examples=["0199a1b2-9a0b-7c1d-8e2f-304152637485"])
]
CompactionPath = Annotated[
    str,
    Path(description="Id of the compaction.", examples=["0199a1b2-7788-7a9b-8c0d-1e2f30415263"]),
]


class ReceiptPage(cursors.Page[ShownReceipt]):
    """Receipts of a conversation, the newest first."""


class Job(ResponseSchema):
    """Work in the background, and its result."""

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


class RewindRequest(RequestSchema):
    """Where a new branch begins."""

    model_config = examples({"to_seq": 4, "expected_seq": 6})

    to_seq: int = Field(ge=0, le=MAX_SEQ)
    """Seq of the last message that stays; 0 for none."""
    expected_seq: int | None = Field(default=None, ge=0, le=MAX_SEQ)
    """409 unless this is the newest seq of the log: a request that is sent again takes no more."""


class Strategy(ResponseSchema):
    """A strategy to keep a history within the context window, with the service's defaults."""

    name: StrategyName
    """The value for `policy.strategy`."""
    description: str
    """What it does."""
    default: bool
    """Whether it is the default."""
    due_at: float | None
    """Share of the effective window at which a compaction is due; null: never."""
    preserve_top: int | None
    """Messages kept at the start; null: all."""
    preserve_bottom: int | None
    """Messages kept at the end; null: all."""


class StrategyList(cursors.Page[Strategy]):
    """All strategies."""


@router.post(
    f"{_PATH}/compact",
    summary="Compact now",
    tags=_TAGS,
    response_model=CompactResult,
    responses={
        202: {"model": Job, "description": "With `wait=false`: the job to poll."},
        **error_answers(Conflict, ValidationError, ContextLimitUnknown),
    },
)
async def compact(
    request: Request,
    conversation_id: ConversationPath,
    body: CompactionRequest | None = None,
    wait: Annotated[
        bool, Query(description="false: return a job at once, which a worker runs.")
    ] = True,
) -> Response:
    """Compact what the strategy allows, however little is used; see `compacted` in the result.

    Waits for a running compaction. `503` when the model fails: then the context is unchanged. The
    log never changes. With `dry_run` nothing changes and no model is called.
    """
    options = body or CompactionRequest()
    compaction = services(request).compaction
    if wait or options.dry_run:
        return Json(await compaction.compact(tenant_of(request), conversation_id, options))
    job = await compaction.start_job(tenant_of(request), conversation_id, options)
    return Json(_shown_job(job), 202, headers={"Location": f"/v1/jobs/{job.job_id}"})


@router.get(f"{_PATH}/compactions", summary="List compactions", tags=_TAGS)
@paged
async def list_compactions(
    request: Request, conversation_id: ConversationPath, limit: Limit = 50, cursor: Cursor = None
) -> ReceiptPage:
    """Return the receipts of the conversation's compactions, undone ones too, newest first."""
    before = cursors.decode(cursor, "compactions")
    page = await services(request).receipts.page(
        tenant_of(request), conversation_id, limit, before, page_bound(request)
    )
    return ReceiptPage.up_to("compactions", page, "compaction_id")


@router.get(f"{_PATH}/compactions/{{compaction_id}}", summary="Read a receipt", tags=_TAGS)
async def get_compaction(
    request: Request, conversation_id: ConversationPath, compaction_id: CompactionPath
) -> ShownReceipt:
    """Return one receipt: what was hidden, what stands for it, and what it cost."""
    return await services(request).receipts.get(tenant_of(request), conversation_id, compaction_id)


@router.get(
    f"{_PATH}/compactions/{{compaction_id}}/messages",
    summary="Expand a compaction",
    tags=_TAGS,
    response_model=MessagePage,
)
@paged
async def expand_compaction(
    request: Request,
    conversation_id: ConversationPath,
    compaction_id: CompactionPath,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """Return the original messages of the range that a compaction hides, in log order."""
    after_seq = 0
    if cursor:
        order, after_seq = cursors.decode(cursor, "messages")
        if order != "asc":
            raise ValidationError.at("/query/cursor", "This is no cursor that this list has given")
    conversation, page = await services(request).receipts.expand(
        tenant_of(request), conversation_id, compaction_id, after_seq, limit, page_bound(request)
    )
    return await transcript(request, conversation, page, "asc", None)


@router.post(
    f"{_PATH}/compactions/{{compaction_id}}/undo",
    summary="Undo a compaction",
    tags=_TAGS,
    responses=error_answers(Conflict),
)
async def undo_compaction(
    request: Request,
    conversation_id: ConversationPath,
    compaction_id: CompactionPath,
    body: NoFields | None = None,
) -> ShownReceipt:
    """Show again what was shown before the newest active compaction, byte for byte.

    Another one is `409`. The conversation is not compacted automatically until the log has grown
    by 5 % of the effective window, as long as it fits.
    """
    return await services(request).receipts.undo(tenant_of(request), conversation_id, compaction_id)


@router.post(f"{_PATH}/rewind", summary="Rewind", tags=_TAGS, responses=error_answers(Conflict))
async def rewind(
    request: Request, conversation_id: ConversationPath, body: RewindRequest
) -> Rewound:
    """Take the messages after a seq out of the context: what is appended next begins a new branch.

    They stay in the log, as `outside`. A seq inside a call group leaves out the whole group. A
    result of a call that left is `409` from then on. The next build begins an epoch with the reason
    `rewound`. Undo it by its `compaction_id`, as a compaction.
    """
    return await services(request).rewinds.rewind(
        tenant_of(request), conversation_id, body.to_seq, body.expected_seq
    )


@router.get("/v1/jobs/{job_id}", summary="Read a job", tags=_TAGS)
async def get_job(request: Request, job_id: JobPath) -> Job:
    """Return the status of a job, and its result or its error once it has ended."""
    if not UUID.fullmatch(job_id):
        raise NotFound(f"No job {job_id}", {"job_id": job_id})
    return _shown_job(await services(request).compaction.job(tenant_of(request), job_id.lower()))


@router.get("/v1/strategies", summary="List strategies", tags=["models"])
async def list_strategies() -> StrategyList:
    """Return every strategy with when it is due and what it keeps, for the built-in settings."""
    policy = Policy()
    data = [
        Strategy.of(
            each,
            default=each.name is policy.strategy,
            due_at=Policy(strategy=each.name).due_ratio,
            preserve_top=each.preserved(policy)[0],
            preserve_bottom=each.preserved(policy)[1],
        )
        for each in STRATEGIES.values()
    ]
    return StrategyList(data=data, next_cursor=None)


def _shown_job(job: jobs.Job) -> Job:
    """Return a job; its error is the problem that a request would have returned."""
    problem = None
    if job.error:
        facts = json_text.loads(job.error)
        code, detail = facts.pop("code"), facts.pop("detail")
        answer = errors.problem(_STATUS_OF_CODE.get(code, 500), code, detail, facts=facts)
        problem = json_text.loads(bytes(answer.body))
    return Job.of(
        job,
        conversation_id=job.public_id,
        result=json_text.loads(job.result) if job.result else None,
        error=problem,
    )
