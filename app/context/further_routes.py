"""Reports of model calls, totals of usage, and the lists of reports and epochs.

`/v1/context/…`, `/v1/tokens/count` and `/v1/models`: calls without a conversation.
"""

from __future__ import annotations

from datetime import date
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import AfterValidator, Field

from app.common.errors import Conflict
from app.common.schema_errors import DAY_PATTERN
from app.context.schemas import EpochPage, ReportPage, UsageAnswer, UsageRequest, UsageTotalsAnswer
from app.context.stateless import (
    Compression,
    CompressionCheck,
    ContextResult,
    MessageSummary,
    ModelEntry,
    ModelPage,
    StatelessBuild,
    StatelessMessages,
    TokenCount,
    TokensRequest,
)
from app.http import cursors
from app.http.bodies import long_json, size_of_body
from app.http.cursors import Deleted
from app.http.errors import problems_of
from app.http.fields import AgentId
from app.http.routing import (
    ConversationPath,
    Cursor,
    IdempotencyKey,
    Limit,
    ModelPath,
    WireRoute,
    model_from,
    services,
    tenant_of,
)
from app.models.budget import ModelInfo
from app.models.usage import MAX_DAYS, USUAL_DAYS, UsageQuery, day_range

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
    limit: Limit = 50,
    cursor: Cursor = None,
) -> UsageQuery:
    after = cursors.decode_usage(cursor) if cursor else None
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
    next_cursor = None
    if rows.has_more:
        next_cursor = cursors.encode("usage", rows[-1].day.isoformat(), rows[-1].model)
    days = {"from": wanted.first, "to": wanted.last}
    return UsageTotalsAnswer(**days, data=list(rows), totals=totals, next_cursor=next_cursor)


@router.get(f"{_PATH}/epochs", summary="List epochs", tags=["context"])
async def list_epochs(
    request: Request, conversation_id: ConversationPath, limit: Limit = 50, cursor: Cursor = None
) -> EpochPage:
    """Return the epochs of the conversation's payloads, newest first, and why each began."""
    before = cursors.decode_id(cursor, "epochs")
    page = await services(request).usage.page(
        "epochs", tenant_of(request), conversation_id, limit, before
    )
    return EpochPage.by_id("epochs", page, list(page), "epoch_id")


@router.get(f"{_PATH}/usage/reports", summary="List reported calls", tags=["usage"])
async def list_usage_reports(
    request: Request, conversation_id: ConversationPath, limit: Limit = 50, cursor: Cursor = None
) -> ReportPage:
    """Return the usage of each call that was reported, newest first."""
    before = cursors.decode_id(cursor, "usage_reports")
    page = await services(request).usage.page(
        "usage_reports", tenant_of(request), conversation_id, limit, before
    )
    return ReportPage.by_id("usage_reports", page, list(page), "report_id")


@router.post(
    "/v1/context/build",
    summary="Build a context of messages sent along",
    response_model=ContextResult,
    tags=["stateless"],
)
async def build_stateless_context(request: Request, body: StatelessBuild) -> Response:
    """Return all messages or, over the threshold, top, a summary of the middle, and bottom.

    Nothing is stored: keep `new_state` and send it as `cached_state` next time. `503` when the
    model fails; the state you have stays valid then.
    """
    answer = await services(request).stateless.build(tenant_of(request), body)
    return await long_json(answer, size_of_body(request))


@router.post(
    "/v1/context/needs-compression",
    summary="Ask whether messages need compression",
    tags=["stateless"],
)
async def needs_compression(request: Request, body: StatelessMessages) -> CompressionCheck:
    """Return whether the messages are over the threshold and have a middle to compress."""
    return await services(request).stateless.needs_compression(body)


@router.post("/v1/context/compress", summary="Summarise messages", tags=["stateless"])
async def compress(request: Request, body: Compression) -> MessageSummary:
    """Return a summary of all the messages; `503` when the model fails."""
    return await services(request).stateless.compress(tenant_of(request), body)


@router.post("/v1/tokens/count", summary="Count tokens", tags=["models"])
async def count_tokens(request: Request, body: TokensRequest) -> TokenCount:
    """Count messages, a text and tool definitions as a build counts them.

    Usage reported for `model` corrects the count. `margin` is the share to add for safety where
    the model has another tokenizer.
    """
    return await services(request).stateless.count(tenant_of(request), body)


@router.get("/v1/models", summary="List models", tags=["models"])
async def list_models(request: Request, limit: Limit = 50, cursor: Cursor = None) -> ModelPage:
    """Return all models by name, with the source of each number."""
    after = cursors.decode_name(cursor, "models") if cursor else None
    page = await services(request).registry.list(tenant_of(request), limit, after)
    next_cursor = cursors.encode("models", page[-1].model) if page.has_more else None
    return ModelPage(data=page, next_cursor=next_cursor)


@router.get("/v1/models/{model:path}", summary="Read a model", tags=["models"])
async def get_model(request: Request, model: ModelPath) -> ModelInfo:
    """Return a model's limits and prices; your own entry overrides the bundled one."""
    return await services(request).registry.get(tenant_of(request), model_from(model))


@router.put("/v1/models/{model:path}", summary="Set a model's entry", tags=["models"])
async def set_model(request: Request, model: ModelPath, body: ModelEntry) -> ModelInfo:
    """Add or replace your own entry for a model; omitted fields come from the bundled entry."""
    entry = body.model_dump(exclude_none=True)
    return await services(request).registry.put(tenant_of(request), model_from(model), entry)


@router.delete("/v1/models/{model:path}", summary="Delete a model's entry", tags=["models"])
async def delete_model(request: Request, model: ModelPath) -> Deleted:
    """Delete your own entry for a model; the bundled one applies again."""
    await services(request).registry.remove(tenant_of(request), model_from(model))
    return Deleted(deleted={"models": 1})
