"""`/v1/conversations/{id}/usage`: reported usage, and whether to compact."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter, Request, Response

from app.api.http.bodies import Json, MalformedJson
from app.api.http.dependencies import ConversationPath, conversation_id_from, services, tenant_of
from app.api.http.errors import problems_of
from app.api.http.routing import WireRoute
from app.api.payload.usage_schemas import UsageAnswer, UsageRequest
from app.domain.common.errors import NotFound, PayloadTooLarge, ServiceUnavailable, ValidationError
from app.services.payload.reported_usage import Report

router = APIRouter(route_class=WireRoute, tags=["context"])


@router.post(
    "/v1/conversations/{conversation_id}/usage",
    summary="Report a call's usage",
    response_model=UsageAnswer,
    responses=problems_of(
        NotFound, ValidationError, MalformedJson, PayloadTooLarge, ServiceUnavailable
    ),
)
async def report_usage(
    request: Request, conversation_id: ConversationPath, body: UsageRequest | None = None
) -> Response:
    """Store the usage of a model call, and return whether to compact.

    Send the provider's usage object as it came, after each call. Reports make later estimates
    more exact. Without `usage`, the last report is judged again: after tools have run, or before
    the final answer. A compaction that is due starts in the background.
    """
    known_id = conversation_id_from(conversation_id)
    report = Report(**dict(body or UsageRequest()))
    judged = asdict(await services(request).usage.report(tenant_of(request), known_id, report))
    if (usage := judged["token_usage"]) is not None:
        usage["total_tokens"] = sum(usage.values())
    return Json(judged)
