"""Reported usage and whether to compact; usage and cost by day; lists of epochs and reports."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from pydantic import AfterValidator, Field

from app.common.errors import Conflict
from app.common.pages import Page
from app.common.schema_errors import DAY_PATTERN
from app.context.usage import schemas
from app.context.usage.schemas import (
    EpochItem,
    EpochPage,
    ReportItem,
    ReportPage,
    UsageAnswer,
    UsageRequest,
    UsageTotalsAnswer,
)
from app.conversations.epochs import model_in
from app.http import cursors
from app.http.dependencies import (
    ConversationPath,
    Cursor,
    IdempotencyKey,
    Limit,
    services,
    tenant_of,
)
from app.http.errors import problems_of
from app.http.fields import AgentId, ModelName
from app.http.routing import WireRoute
from app.models.usage_totals import (
    MAX_DAYS,
    USUAL_DAYS,
    CallTotals,
    GroupBy,
    UsageQuery,
    UsageRow,
    day_range,
    shown_usd,
)

router = APIRouter(route_class=WireRoute)

_PATH = "/v1/conversations/{conversation_id}"


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ValueError("must be a day of the calendar") from None


_Day = Annotated[
    str,
    Field(pattern=DAY_PATTERN, json_schema_extra={"format": "date"}),
    AfterValidator(_day),
]
_FIRST = f"First day (UTC); by default the range has {USUAL_DAYS} days."
_LAST = f"Last day (UTC), today by default; the range has at most {MAX_DAYS} days."


@router.post(
    f"{_PATH}/usage",
    summary="Report a call's usage",
    responses=problems_of(Conflict),
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
    group_by: Annotated[
        GroupBy, Query(description="What each row of `data` is of.")
    ] = GroupBy.DAY_AND_MODEL,
    model: Annotated[ModelName | None, Query(description="Only calls of this model.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> UsageQuery:
    after = cursors.decode_usage(cursor, group_by) if cursor else None
    today = services(request).usage.now().date()
    days = day_range(first, last, today)  # type: ignore[arg-type]  # dates by now
    return UsageQuery(days, group_by, model, limit, after)


_Wanted = Annotated[UsageQuery, Depends(_query)]


@router.get(f"{_PATH}/usage", summary="Read a conversation's usage and cost", tags=["usage"])
async def get_conversation_usage(
    request: Request, conversation_id: ConversationPath, wanted: _Wanted
) -> UsageTotalsAnswer:
    """Return tokens and cost of the calls that were reported, and what compactions cost and saved.

    A call is of the day on which it was reported, and is priced with the prices of that time. A
    fork begins without usage.
    """
    totals = await services(request).usage.of_conversation(
        tenant_of(request), conversation_id, wanted
    )
    return _answer(wanted, *totals)


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
    totals = await services(request).usage.of_tenant(tenant_of(request), agent_id, wanted)
    return _answer(wanted, *totals)


@router.get(f"{_PATH}/epochs", summary="List epochs", tags=["context"])
async def list_epochs(
    request: Request, conversation_id: ConversationPath, limit: Limit = 50, cursor: Cursor = None
) -> EpochPage:
    """Return the epochs of the conversation's payloads, newest first, and why each began."""
    before = cursors.decode_id(cursor, "epochs")
    page = await services(request).usage.epochs(tenant_of(request), conversation_id, limit, before)
    data = [
        EpochItem.of(
            epoch,
            model=model_in(epoch.payload_stream),
            max_context_tokens=epoch.window or None,
            cache_break_reason=epoch.reason,
        )
        for epoch in page
    ]
    return EpochPage.by_id("epochs", page, data, "epoch_id")


@router.get(f"{_PATH}/usage/reports", summary="List reported calls", tags=["usage"])
async def list_usage_reports(
    request: Request, conversation_id: ConversationPath, limit: Limit = 50, cursor: Cursor = None
) -> ReportPage:
    """Return the usage of each call that was reported, newest first."""
    before = cursors.decode_id(cursor, "usage_reports")
    page = await services(request).usage.reports(tenant_of(request), conversation_id, limit, before)
    data = [ReportItem.of(report, token_usage=report.usage) for report in page]
    return ReportPage.by_id("usage_reports", page, data, "report_id")


def _answer(wanted: UsageQuery, totals: UsageRow, rows: Page[UsageRow]) -> UsageTotalsAnswer:
    next_cursor = None
    if rows.has_more:
        day = rows[-1].day.isoformat() if rows[-1].day is not None else None
        next_cursor = cursors.encode("usage", wanted.group_by, day, rows[-1].model)
    data = [schemas.UsageRow(day=row.day, model=row.model, **_figures(row)) for row in rows]
    return UsageTotalsAnswer(
        **{"from": wanted.days.first},
        to=wanted.days.last,
        group_by=wanted.group_by,
        data=data,
        totals=schemas.UsageFigures(**_figures(totals)),
        next_cursor=next_cursor,
    )


def _figures(row: UsageRow) -> dict[str, Any]:
    both = row.reported.plus(row.summaries)
    return {
        "reported": _calls(row.reported),
        "summaries": _calls(row.summaries),
        "cost_usd": _cost(both, both.cost_usd),
        "saved_tokens": row.saved_tokens,
        "saved_usd": _cost(row.reported, row.saved_usd),
    }


def _calls(totals: CallTotals) -> schemas.CallTotals:
    tokens = totals.input_tokens + totals.output_tokens
    tokens += totals.cache_creation_tokens + totals.cache_read_tokens
    cost_usd = _cost(totals, totals.cost_usd)
    return schemas.CallTotals.of(totals, total_tokens=tokens, cost_usd=cost_usd)


def _cost(totals: CallTotals, amount: float) -> float | None:
    """Return an amount for these calls, None where none of them has a price."""
    return shown_usd(amount) if totals.known_cost_usd is not None else None
