"""`/v1/conversations/{id}/epochs` and `/usage/reports`: what was sent to models, by time."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request, Response

from app.context.call_history.schemas import EpochPage, ReportPage
from app.conversations.epoch import PastEpoch
from app.conversations.epochs import model_in
from app.conversations.reported_usage import UsageReport
from app.http import cursors
from app.http.dependencies import ConversationPath, Cursor, Limit, services, tenant_of
from app.http.pages import page_by_id
from app.http.routing import WireRoute

router = APIRouter(route_class=WireRoute)

_PATH = "/v1/conversations/{conversation_id}"


@router.get(
    f"{_PATH}/epochs",
    summary="List epochs",
    response_model=EpochPage,
    tags=["context"],
)
async def list_epochs(
    request: Request, conversation_id: ConversationPath, limit: Limit = 50, cursor: Cursor = None
) -> Response:
    """Return the epochs of the conversation's payloads, newest first, and why each began."""
    before = cursors.decode_id(cursor, "epochs")
    page = await services(request).call_history.epochs(
        tenant_of(request), conversation_id, limit, before
    )
    return page_by_id("epochs", "epoch_id", page, _epoch_json)


@router.get(
    f"{_PATH}/usage/reports",
    summary="List reported calls",
    response_model=ReportPage,
    tags=["usage"],
)
async def list_usage_reports(
    request: Request, conversation_id: ConversationPath, limit: Limit = 50, cursor: Cursor = None
) -> Response:
    """Return the usage of each call that was reported, newest first."""
    before = cursors.decode_id(cursor, "usage_reports")
    page = await services(request).call_history.reports(
        tenant_of(request), conversation_id, limit, before
    )
    return page_by_id("usage_reports", "report_id", page, _report_json)


def _epoch_json(epoch: PastEpoch) -> dict[str, Any]:
    return {
        "epoch_id": epoch.epoch_id,
        "epoch": epoch.epoch,
        "format": epoch.format,
        "model": model_in(epoch.payload_stream),
        "max_context_tokens": epoch.window or None,
        "cache_break_reason": epoch.reason,
        "start_seq": epoch.start_seq,
        "created_at": epoch.created_at,
    }


def _report_json(report: UsageReport) -> dict[str, Any]:
    return {
        "report_id": report.report_id,
        "format": report.format,
        "model": report.model,
        "epoch": report.epoch,
        "through_seq": report.through_seq,
        "token_usage": asdict(report.usage) | {"total_tokens": report.usage.total_tokens},
        "estimated_tokens": report.estimated_tokens,
        "regions": asdict(report.regions) if report.regions is not None else None,
        "created_at": report.created_at,
    }
