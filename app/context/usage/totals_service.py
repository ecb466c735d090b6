"""Reads the totals of usage and cost of a conversation, an agent or a tenant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime

from app.common.pages import Page
from app.conversations.lookup import get_conversation
from app.models.usage_totals import DayRange, GroupBy, UsageQuery, UsageRow, day_range
from app.repositories import Database


@dataclass(frozen=True, slots=True)
class UsageTotalsRequest:
    """Which totals are requested, as in `UsageQuery`; the days are optional."""

    first: date | None = None
    last: date | None = None
    group_by: GroupBy = GroupBy.DAY_AND_MODEL
    model: str | None = None
    limit: int = 50
    after: tuple[date | None, str | None] | None = None


@dataclass(frozen=True, slots=True)
class UsageTotals:
    """The totals of a range of days, and a page of its rows."""

    days: DayRange
    group_by: GroupBy
    totals: UsageRow
    rows: Page[UsageRow]


class UsageTotalService:
    """Reads totals, whose cost depends on the number of days and models alone."""

    def __init__(self, database: Database, now: Callable[[], datetime]) -> None:
        self._database = database
        self._now = now

    async def of_conversation(
        self, tenant_id: str, conversation_id: str, request: UsageTotalsRequest
    ) -> UsageTotals:
        """Return the totals of a conversation; raises NotFound or ValidationError."""
        query = self._query(request)
        async with self._database.session() as session:
            await get_conversation(session, tenant_id, conversation_id, None)
            totals, rows = await session.usage_totals.of_conversation(conversation_id, query)
        return UsageTotals(query.days, query.group_by, totals, rows)

    async def of_tenant(
        self, tenant_id: str, agent_id: str | None, request: UsageTotalsRequest
    ) -> UsageTotals:
        """Return the totals of a tenant or of one of its agents; raises ValidationError.

        They include those of agents and conversations that were deleted.
        """
        query = self._query(request)
        async with self._database.session() as session:
            totals, rows = await session.usage_totals.of_tenant(tenant_id, agent_id, query)
        return UsageTotals(query.days, query.group_by, totals, rows)

    def _query(self, request: UsageTotalsRequest) -> UsageQuery:
        days = day_range(request.first, request.last, self._now().date())
        return UsageQuery(days, request.group_by, request.model, request.limit, request.after)
