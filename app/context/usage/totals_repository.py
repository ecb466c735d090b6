"""Totals of usage and cost in PostgreSQL, by day and model.

1. A report adds to the rows of its day and model, so that a read never sums over reports.
2. The totals of a tenant are few rows that all of its reports update. A transaction updates them
   last, so that others wait for its commit alone. One statement locks them in one order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.common.pages import Page
from app.database.connections import Statement
from app.database.repository import Repository
from app.database.sql import arrays, equal, fields_of
from app.database.tables import TABLES
from app.models.usage_totals import CallTotals, GroupBy, UsageEntry, UsageQuery, UsageRow

_TABLE = TABLES["conversation_usage"]
_SUMS = (*_TABLE.without(*_TABLE.key),)
_NAMES = ("model", "purpose", *_SUMS)
_COLUMNS = ", ".join(_NAMES)
_ENTRIES = f"unnest({arrays('conversation_usage', *_NAMES)}) AS entry ({_COLUMNS})"
_TODAY = "CAST(now() AT TIME ZONE 'UTC' AS date)"
_ADDED = ", ".join(f"{name} = old.{name} + excluded.{name}" for name in _SUMS)
_VALUES = ", ".join(f"entry.{name}" for name in _NAMES)

# The lock orders it with a deletion, so that no row stays for a later conversation with this id.
ADD_TO_CONVERSATION = Statement(f"""
    WITH alive AS (
        SELECT FROM heads
        WHERE conversation_id = :conversation_id FOR KEY SHARE
    )
    INSERT INTO conversation_usage AS old (conversation_id, day, {_COLUMNS})
    SELECT :conversation_id, {_TODAY}, {_VALUES}
    FROM alive, {_ENTRIES}
    ORDER BY entry.model, entry.purpose
    ON CONFLICT (conversation_id, day, model, purpose) DO UPDATE SET {_ADDED}
""")
ADD_TO_TENANT = Statement(f"""
    INSERT INTO tenant_usage AS old (tenant_id, agent_id, day, {_COLUMNS})
    SELECT :tenant_id, owner.agent_id, {_TODAY}, {_VALUES}
    FROM unnest(CAST(:agent_ids AS text[])) AS owner (agent_id), {_ENTRIES}
    ORDER BY owner.agent_id, entry.model, entry.purpose
    ON CONFLICT (tenant_id, agent_id, day, model, purpose) DO UPDATE SET {_ADDED}
""")
WHOLE_TENANT = ""
"""Stands for an agent id in the rows of the whole tenant."""

_PURPOSES = ("reported", "summaries")
_CALL_SUMS, _SAVED_SUMS = _SUMS[:7], _SUMS[7:]
_READ_SUMS = ", ".join(
    (
        *(
            f"coalesce(sum({name}) FILTER (WHERE purpose = '{purpose}'), 0) AS {purpose}_{name}"
            for purpose in _PURPOSES
            for name in _CALL_SUMS
        ),
        *(f"coalesce(sum({name}), 0) AS {name}" for name in _SAVED_SUMS),
    )
)
# The sums of the whole range are the first row. The key is the order of the groups.
_GROUPS = {
    GroupBy.DAY: ("day", "day, NULL AS model", "day > CAST(:after_day AS date)"),
    GroupBy.MODEL: (
        "model",
        "CAST(NULL AS date) AS day, model",
        "model > CAST(:after_model AS text)",
    ),
    GroupBy.DAY_AND_MODEL: (
        "day, model",
        "day, model",
        "(day, model) > (CAST(:after_day AS date), CAST(:after_model AS text))",
    ),
}
_OWNERS = {
    "conversation_usage": equal("conversation_id"),
    "tenant_usage": equal("tenant_id", "agent_id"),
}


def _read(table: str, group_by: GroupBy) -> Statement:
    keys, shown, is_after = _GROUPS[group_by]
    is_total = f"grouping({keys.partition(',')[0]}) = 1"
    return Statement(f"""
        SELECT {shown}, {_READ_SUMS}
        FROM {table}
        WHERE {_OWNERS[table]}
            AND day BETWEEN CAST(:first AS date) AND CAST(:last AS date)
            AND (:model IS NULL OR model = :model)
        GROUP BY GROUPING SETS (({keys}), ())
        HAVING {is_total} OR NOT CAST(:is_continued AS boolean) OR {is_after}
        ORDER BY {is_total} DESC, {keys} LIMIT :limit + 2
    """)


READS = {(table, group_by): _read(table, group_by) for table in _OWNERS for group_by in GroupBy}


class UsageTotalRepository(Repository):
    """Statements for the totals of usage and cost."""

    async def add_to_conversation(
        self, conversation_id: str, entries: Sequence[UsageEntry]
    ) -> None:
        """Add to the totals of today; nothing is added for a deleted conversation."""
        await self._session.run(
            ADD_TO_CONVERSATION, conversation_id=conversation_id, **_arrays(entries)
        )

    async def add_to_tenant(
        self, tenant_id: str, agent_id: str | None, entries: Sequence[UsageEntry]
    ) -> None:
        """Add to the totals of today, of the tenant and of the agent, if there is one.

        Call it last in a transaction: all reports of the tenant wait for the end of that.
        """
        agent_ids = [WHOLE_TENANT] if agent_id is None else [WHOLE_TENANT, agent_id]
        await self._session.run(
            ADD_TO_TENANT, tenant_id=tenant_id, agent_ids=agent_ids, **_arrays(entries)
        )

    async def of_conversation(
        self, conversation_id: str, query: UsageQuery
    ) -> tuple[UsageRow, Page[UsageRow]]:
        """Return the totals of all matching rows, and a page of their groups."""
        return await self._of("conversation_usage", query, conversation_id=conversation_id)

    async def of_tenant(
        self, tenant_id: str, agent_id: str | None, query: UsageQuery
    ) -> tuple[UsageRow, Page[UsageRow]]:
        """Return the same of one agent, without an agent id of the whole tenant."""
        owner = {"tenant_id": tenant_id, "agent_id": agent_id or WHOLE_TENANT}
        return await self._of("tenant_usage", query, **owner)

    async def _of(
        self, table: str, query: UsageQuery, **owner: str
    ) -> tuple[UsageRow, Page[UsageRow]]:
        rows = await self._session.all(READS[table, query.group_by], **owner, **_parameters(query))
        totals, *groups = map(_row_from, rows)
        return totals, Page(groups[: query.limit], has_more=len(groups) > query.limit)


def _arrays(entries: Sequence[UsageEntry]) -> dict[str, Any]:
    """Return the columns of entries as arrays."""
    rows = [
        {
            "model": entry.model,
            "purpose": entry.purpose,
            **fields_of(entry.calls),
            "saved_tokens": entry.saved_tokens,
            "saved_usd": entry.saved_usd,
        }
        for entry in entries
    ]
    return {name: [row[name] for row in rows] for name in _NAMES}


def _parameters(query: UsageQuery) -> dict[str, Any]:
    after_day, after_model = query.after or (None, None)
    return {
        "first": query.days.first,
        "last": query.days.last,
        "model": query.model,
        "limit": query.limit,
        "is_continued": query.after is not None,
        "after_day": after_day,
        "after_model": after_model,
    }


def _row_from(row: Any) -> UsageRow:
    def calls(purpose: str) -> CallTotals:
        read = {name: row[f"{purpose}_{name}"] for name in _CALL_SUMS}
        cost_usd = read.pop("cost_usd")
        return CallTotals(**{name: int(sum) for name, sum in read.items()}, cost_usd=cost_usd)

    reported, summaries = (calls(purpose) for purpose in _PURPOSES)
    return UsageRow(
        *(row["day"], row["model"], reported, summaries),
        int(row["saved_tokens"]),
        row["saved_usd"],
    )
