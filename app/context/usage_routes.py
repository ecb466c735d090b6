"""Reports of model calls, their list, and totals of usage."""

from __future__ import annotations

from datetime import date
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from pydantic import AfterValidator, Field

from app.common.errors import Conflict
from app.common.schema_errors import DAY_PATTERN
from app.context.schemas import ReportPage, UsageAnswer, UsageRequest, UsageTotalsAnswer
from app.http import cursors
from app.http.errors import error_answers
from app.http.fields import AgentId
from app.http.routing import (
    ConversationPath,
    Cursor,
    IdempotencyKey,
    Limit,
    WireRoute,
    services,
    tenant_of,
)
from app.models.usage import MAX_DAYS, USUAL_DAYS, UsageQuery, day_range

router = APIRouter(route_class=WireRoute)

_PATH = "/v1/conversations/{conversation_id}"


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ValueError("must be a day of the calendar") from None


_Day = Annotated[
    str, Field(pattern=DAY_PATTERN, json_schema_extra={"format": "date"}), AfterValidator(_day)
]
_FIRST = f"First day (UTC); by default the range has {USUAL_DAYS} days."
_LAST = f"Last day (UTC), today by default; the range has at most {MAX_DAYS} days."


@router.post(
    f"{_PATH}/usage",
    summary="Report a call's usage",
    responses=error_answers(Conflict),
    tags=["context"],
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
    return await services(request).usage.report(
        tenant_of(request), conversation_id, body or UsageRequest(), idempotency_key
    )


async def _query(
    request: Request,
    first: Annotated[
        _Day | None, Query(alias="from", description=_FIRST, examples=["2026-11-01"])
    ] = None,
    last: Annotated[
        _Day | None, Query(alias="to", description=_LAST, examples=["2026-11-30"])
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> UsageQuery:
    after = cursors.decode(cursor, "usage")
    today = services(request).usage.now().date()
    days = day_range(first, last, today)  # type: ignore[arg-type]  # dates by now
    return UsageQuery(*days, limit, after)


_Wanted = Annotated[UsageQuery, Depends(_query)]


@router.get(f"{_PATH}/usage", summary="Read a conversation's usage and cost", tags=["usage"])
async def get_conversation_usage(
    request: Request, conversation_id: ConversationPath, wanted: _Wanted
) -> UsageTotalsAnswer:
    """Return tokens and cost of the calls that were reported, and what compactions cost and saved.

    A call is of the day on which it was reported, and is priced with the prices of that time. A
    fork begins without usage.
    """
    return await _totals(request, wanted, conversation_id=conversation_id)


@router.get("/v1/usage", summary="Read your usage and cost", tags=["usage"])
async def get_usage(
    request: Request,
    wanted: _Wanted,
    agent_id: Annotated[
        AgentId | None, Query(description="Only usage of this agent's conversations.")
    ] = None,
) -> UsageTotalsAnswer:
    """Return the usage of all conversations of the tenant or of an agent, deleted ones included.

    Summaries of snapshots and of `POST /v1/context/compress` are part of the tenant's.
    """
    return await _totals(request, wanted, agent_id=agent_id)


async def _totals(request: Request, wanted: UsageQuery, **of: str | None) -> UsageTotalsAnswer:
    totals, rows = await services(request).usage.totals(tenant_of(request), wanted, **of)
    days = {"from": wanted.first, "to": wanted.last}
    next_cursor = cursors.after("usage", rows, "day", "model")
    return UsageTotalsAnswer(**days, data=rows, totals=totals, next_cursor=next_cursor)


@router.get(f"{_PATH}/usage/reports", summary="List reported calls", tags=["usage"])
async def list_usage_reports(
    request: Request, conversation_id: ConversationPath, limit: Limit = 50, cursor: Cursor = None
) -> ReportPage:
    """Return the usage of each call that was reported, newest first."""
    before = cursors.decode(cursor, "usage_reports")
    page = await services(request).usage.page(
        "usage_reports", tenant_of(request), conversation_id, limit, before
    )
    return ReportPage.up_to("usage_reports", page, "report_id")
