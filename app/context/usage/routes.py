"""`/v1/conversations/{id}/usage`: reported usage, and whether to compact."""

from __future__ import annotations

from fastapi import APIRouter, Request

from app.common.errors import Conflict
from app.context.usage.schemas import UsageAnswer, UsageRequest
from app.context.usage.service import Report
from app.http.dependencies import ConversationPath, IdempotencyKey, services, tenant_of
from app.http.errors import problems_of
from app.http.routing import WireRoute

router = APIRouter(route_class=WireRoute, tags=["context"])


@router.post(
    "/v1/conversations/{conversation_id}/usage",
    summary="Report a call's usage",
    responses=problems_of(Conflict),
)
async def report_usage(
    request: Request,
    conversation_id: ConversationPath,
    body: UsageRequest | None = None,
    idempotency_key: IdempotencyKey = None,
) -> UsageAnswer:
    """Store the usage of a model call, and return whether to compact.

    Send the provider's usage object as it came, after each call. Reports make later estimates
    more exact. Without `usage`, the last report is judged again: after tools have run, or before
    the final answer. A compaction that is due starts in the background. A repeated
    `Idempotency-Key` stores nothing, and the last report is judged again.
    """
    report = Report(**dict(body or UsageRequest()), idempotency_key=idempotency_key)
    result = await services(request).usage.report(tenant_of(request), conversation_id, report)
    return UsageAnswer.model_validate(result)
