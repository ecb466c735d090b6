"""`/v1/conversations/{id}/epochs` and `/usage/reports`: what was sent to models, by time."""

from __future__ import annotations

from fastapi import APIRouter, Request

from app.context.call_history.schemas import EpochItem, EpochPage, ReportItem, ReportPage
from app.conversations.epoch import PastEpoch
from app.conversations.epochs import model_in
from app.http import cursors
from app.http.dependencies import ConversationPath, Cursor, Limit, services, tenant_of
from app.http.routing import WireRoute

router = APIRouter(route_class=WireRoute)

_PATH = "/v1/conversations/{conversation_id}"


@router.get(f"{_PATH}/epochs", summary="List epochs", tags=["context"])
async def list_epochs(
    request: Request, conversation_id: ConversationPath, limit: Limit = 50, cursor: Cursor = None
) -> EpochPage:
    """Return the epochs of the conversation's payloads, newest first, and why each began."""
    before = cursors.decode_id(cursor, "epochs")
    page = await services(request).call_history.epochs(
        tenant_of(request), conversation_id, limit, before
    )
    data = [_shown_epoch(epoch) for epoch in page]
    return EpochPage.by_id("epochs", page, data, "epoch_id")


@router.get(
    f"{_PATH}/usage/reports",
    summary="List reported calls",
    tags=["usage"],
)
async def list_usage_reports(
    request: Request, conversation_id: ConversationPath, limit: Limit = 50, cursor: Cursor = None
) -> ReportPage:
    """Return the usage of each call that was reported, newest first."""
    before = cursors.decode_id(cursor, "usage_reports")
    page = await services(request).call_history.reports(
        tenant_of(request), conversation_id, limit, before
    )
    data = [ReportItem.of(report, token_usage=report.usage) for report in page]
    return ReportPage.by_id("usage_reports", page, data, "report_id")


def _shown_epoch(epoch: PastEpoch) -> EpochItem:
    return EpochItem.of(
        epoch,
        model=model_in(epoch.payload_stream),
        max_context_tokens=epoch.window or None,
        cache_break_reason=epoch.reason,
    )
