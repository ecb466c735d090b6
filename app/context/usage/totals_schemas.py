"""Schemas of the totals of usage and cost."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any

from fastapi import Query
from pydantic import AfterValidator, ConfigDict, Field

from app.common.schema_errors import DAY_PATTERN
from app.http.fields import AgentId, ModelName, ResponseSchema, examples
from app.models.usage_totals import MAX_DAYS, USUAL_DAYS, GroupBy

_CALLS: dict[str, Any] = {
    "calls": 12,
    "input_tokens": 18200,
    "output_tokens": 2400,
    "cache_creation_tokens": 0,
    "cache_read_tokens": 61800,
    "total_tokens": 82400,
    "cost_usd": 0.14675,
    "unpriced_calls": 0,
}
_SUMMARIES: dict[str, Any] = {
    "calls": 1,
    "input_tokens": 9100,
    "output_tokens": 420,
    "cache_creation_tokens": 0,
    "cache_read_tokens": 0,
    "total_tokens": 9520,
    "cost_usd": 0.02695,
    "unpriced_calls": 0,
}
_FIGURES: dict[str, Any] = {
    "reported": _CALLS,
    "summaries": _SUMMARIES,
    "cost_usd": 0.1737,
    "saved_tokens": 137000,
    "saved_usd": 0.3425,
}


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
OnlyAgent = Annotated[
    AgentId | None, Query(description="Only usage of this agent's conversations.")
]
FirstDay = Annotated[
    _Day | None,
    Query(
        alias="from",
        description=f"First day (UTC); by default the range has {USUAL_DAYS} days.",
        examples=["2026-11-01"],
    ),
]
LastDay = Annotated[
    _Day | None,
    Query(
        alias="to",
        description=f"Last day (UTC), today by default; the range has at most {MAX_DAYS} days.",
        examples=["2026-11-30"],
    ),
]
Groups = Annotated[GroupBy, Query(description="What each row of `data` is of.")]
OnlyModel = Annotated[ModelName | None, Query(description="Only calls of this model.")]


class CallTotals(ResponseSchema):
    """The sums of some model calls; each token is counted once."""

    model_config = examples(_CALLS)

    calls: int
    """Number of calls."""
    input_tokens: int
    """Sent, and neither read from a cache nor written to it."""
    output_tokens: int
    """Generated, reasoning included."""
    cache_creation_tokens: int
    """Sent and written to the provider's cache."""
    cache_read_tokens: int
    """Sent and read from the provider's cache."""
    total_tokens: int
    """Their sum."""
    cost_usd: float | None
    """Cost in USD of the calls with known prices; null when no call has any."""
    unpriced_calls: int
    """Calls of models without known prices."""


class UsageFigures(ResponseSchema):
    """Tokens and cost, and what was saved."""

    model_config = examples(_FIGURES)

    reported: CallTotals
    """Calls whose usage was reported."""
    summaries: CallTotals
    """The service's own calls, which write summaries."""
    cost_usd: float | None
    """Cost of both; null when no call has known prices."""
    saved_tokens: int
    """What the log had at each reported call and its payload did not send, by the conversation's
    counter."""
    saved_usd: float | None
    """Their price as input, in USD; null when no call has known prices."""


class UsageRow(UsageFigures):
    """The figures of a day, of a model or of both."""

    model_config = examples({"day": "2026-11-23", "model": "gpt-4o", **_FIGURES})

    day: date | None
    """Day (UTC); null when not grouped by day."""
    model: str | None
    """Name of the model; null when not grouped by model."""


class UsageTotalsAnswer(ResponseSchema):
    """Usage and cost of a range of days."""

    model_config = ConfigDict(serialize_by_alias=True) | examples(
        {
            "from": "2026-11-01",
            "to": "2026-11-30",
            "group_by": "day,model",
            "data": [{"day": "2026-11-23", "model": "gpt-4o", **_FIGURES}],
            "totals": _FIGURES,
            "next_cursor": None,
        }
    )

    from_: date = Field(alias="from")
    """First day."""
    to: date
    """Last day."""
    group_by: GroupBy
    """What each row is of."""
    data: list[UsageRow]
    """Rows of this page, by day and model."""
    totals: UsageFigures
    """Sums of the whole range, of all pages."""
    next_cursor: str | None
    """The `cursor` of the next page; null on the last page."""
