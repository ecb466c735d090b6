"""Usage and cost by day and model: of a conversation, an agent and the tenant."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request

from app.context.usage import totals_schemas as schemas
from app.context.usage.totals_schemas import (
    FirstDay,
    Groups,
    LastDay,
    OnlyAgent,
    OnlyModel,
    UsageTotalsAnswer,
)
from app.context.usage.totals_service import UsageTotals, UsageTotalsRequest
from app.http import cursors
from app.http.dependencies import ConversationPath, Cursor, Limit, services, tenant_of
from app.http.routing import WireRoute
from app.models.usage_totals import CallTotals, GroupBy, UsageRow, shown_usd

router = APIRouter(route_class=WireRoute, tags=["usage"])


async def _request(
    first: FirstDay = None,
    last: LastDay = None,
    group_by: Groups = GroupBy.DAY_AND_MODEL,
    model: OnlyModel = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> UsageTotalsRequest:
    after = cursors.decode_usage(cursor, group_by) if cursor else None
    return UsageTotalsRequest(first, last, group_by, model, limit, after)  # type: ignore[arg-type]  # dates by now


_Wanted = Annotated[UsageTotalsRequest, Depends(_request)]


@router.get(
    "/v1/conversations/{conversation_id}/usage", summary="Read a conversation's usage and cost"
)
async def get_conversation_usage(
    request: Request, conversation_id: ConversationPath, wanted: _Wanted
) -> UsageTotalsAnswer:
    """Return tokens and cost of the calls that were reported, and what compactions cost and saved.

    A call is of the day on which it was reported, and is priced with the prices of that time. A
    fork begins without usage.
    """
    totals = await services(request).usage_totals.of_conversation(
        tenant_of(request), conversation_id, wanted
    )
    return _answer(totals)


@router.get("/v1/usage", summary="Read your usage and cost")
async def get_usage(
    request: Request, wanted: _Wanted, agent_id: OnlyAgent = None
) -> UsageTotalsAnswer:
    """Return the usage of all conversations of the tenant or of an agent, deleted ones included.

    Summaries of snapshots and of `POST /v1/context/compress` are part of the tenant's.
    """
    totals = await services(request).usage_totals.of_tenant(tenant_of(request), agent_id, wanted)
    return _answer(totals)


def _answer(totals: UsageTotals) -> UsageTotalsAnswer:
    last = totals.rows[-1] if totals.rows.has_more else None
    next_cursor = None
    if last is not None:
        day = last.day.isoformat() if last.day is not None else None
        next_cursor = cursors.encode("usage", totals.group_by, day, last.model)
    return UsageTotalsAnswer(
        **{"from": totals.days.first},
        to=totals.days.last,
        group_by=totals.group_by,
        data=[
            schemas.UsageRow(day=row.day, model=row.model, **_figures(row)) for row in totals.rows
        ],
        totals=schemas.UsageFigures(**_figures(totals.totals)),
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
