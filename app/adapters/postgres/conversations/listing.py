"""Lists of conversations in PostgreSQL (rules in `app.domain.conversations.listing`).

1. A page is read in three statements: the entries of an index, those of them that match, and then
   the items by their ids.
2. Every index is read by a statement of its own, since PostgreSQL plans a statement once, whatever
   its filters are. Each conversation that the index gives is compared with the filters by its
   primary key: subqueries in expressions are never planned as joins, which could read whole tables.
3. An index that has the order of the list is read in parts, only as far as the page needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from app.adapters.postgres.common.connections import Session, Statement
from app.adapters.postgres.common.paging import bounded, lengths, limits, page_of
from app.adapters.postgres.common.rows import (
    LISTED_COLUMNS,
    NOT_EXPIRED,
    SETTINGS_COLUMNS,
    SETTINGS_JOINS,
    STATE_COLUMNS,
    conversation_from,
    newest_message_at,
)
from app.domain.common.pages import UNBOUNDED, Bound, Page
from app.domain.conversations.conversation import Conversation
from app.domain.conversations.listing import (
    FIRST_ID,
    LATEST,
    MAX_SCANNED,
    ConversationFilter,
    LastCompaction,
    Lead,
    ListedTotals,
    ListIndex,
    ListOrder,
    Place,
    Places,
)
from app.domain.conversations.rolling_window import WindowDefaults
from app.domain.models.usage_totals import MAX_DAYS, CallTotals

_TIMES: Final = {index: "created_at" for index in ListIndex} | {ListIndex.ACTIVE: "active_at"}
_OF_TENANT = "tenant_id = CAST(:tenant_id AS text)"
_ENTRIES: Final = {
    ListIndex.LABEL: f"""conversation_labels WHERE {_OF_TENANT}
        AND key = CAST(:label AS text) AND value = CAST(:label_value AS text)""",
    ListIndex.AGENT: f"conversations WHERE {_OF_TENANT}",
    ListIndex.MODEL: f"conversations WHERE {_OF_TENANT} AND model IS NOT NULL",
    ListIndex.CREATED: f"conversations WHERE {_OF_TENANT}",
    ListIndex.ACTIVE: f"conversation_activity WHERE {_OF_TENANT}",
}
_IN_RANGE: Final = {
    ListIndex.AGENT: ("agent_id, ", "CAST(:agent_id AS text), "),
    ListIndex.MODEL: ("model, ", "CAST(:own_model AS text), "),
}
"""Columns of the range, with their values at both ends.

As a column of the order, it leaves PostgreSQL no other index; without statistics, that of the
tenant's conversations would cost the same.
"""
_CREATED_AT: Final = "greatest(c.created_at)"
"""As an expression, it leaves PostgreSQL the primary key alone."""
_PLACES: Final = {
    ListOrder.CREATED: _CREATED_AT,
    ListOrder.ACTIVE: """(SELECT v.active_at FROM conversation_activity v
            WHERE v.conversation_id = c.conversation_id LIMIT 1)""",
}
_MATCHES = f"""
    {NOT_EXPIRED}
    AND (CAST(:agent_id AS text) IS NULL OR c.agent_id = CAST(:agent_id AS text))
    AND (CAST(:own_model AS text) IS NULL OR c.model = CAST(:own_model AS text))
    AND {_CREATED_AT} > CAST(:created_after AS timestamptz)
    AND {_CREATED_AT} < CAST(:created_before AS timestamptz)
    AND (CAST(:any_active AS boolean) OR (
        SELECT v.active_at > CAST(:active_after AS timestamptz)
            AND v.active_at < CAST(:active_before AS timestamptz)
        FROM conversation_activity v
        WHERE v.conversation_id = c.conversation_id LIMIT 1
    ))
    AND (cardinality(CAST(:keys AS text[])) = 0 OR cardinality(CAST(:keys AS text[])) = (
        SELECT count(*) FROM conversation_labels l
        WHERE l.conversation_id = c.conversation_id
            AND l.key = ANY (CAST(:keys AS text[]))
            AND l.value = (CAST(:values AS text[]))[array_position(CAST(:keys AS text[]), l.key)]
    ))
"""


def _entries(index: ListIndex) -> str:
    """Return a query for the entries of an index within its range of times, newest first.

    `:until` and `:until_id` are the end of the range: its time, or the place before the page.
    """
    time = _TIMES[index]
    column, value = _IN_RANGE.get(index, ("", ""))
    order = f"{column}{time}, conversation_id".replace(",", " DESC,")
    return f"""
        SELECT conversation_id, {time} AS at FROM {_ENTRIES[index]}
            AND ({column}{time}) > ({value}CAST(:since AS timestamptz))
            AND ({column}{time}, conversation_id)
                < ({value}CAST(:until AS timestamptz), CAST(:until_id AS uuid))
        ORDER BY {order} DESC
        LIMIT CAST(:scanned AS bigint)
    """


def _matching(order: ListOrder) -> Statement:
    """Return the statement for the first of some conversations in this order (rule 2)."""
    return Statement(f"""
        SELECT conversation_id, at
        FROM (
            SELECT c.conversation_id, {_PLACES[order]} AS at
            FROM conversations c
            WHERE c.conversation_id = ANY (CAST(:ids AS uuid[])) AND {_MATCHES}
        ) AS item
        WHERE (at, conversation_id) < (CAST(:before AS timestamptz), CAST(:before_id AS uuid))
        ORDER BY at DESC, conversation_id DESC
        LIMIT CAST(:limit AS bigint)
    """)


ENTRIES = {index: Statement(_entries(index)) for index in ListIndex}
MATCHING = {order: _matching(order) for order in ListOrder}
COUNT = {
    str(index): Statement(f"SELECT count(*) AS count FROM ({_entries(index)}) AS entries")
    for index in ListIndex
}


def _by_ids(columns: str, joins: str, large: Mapping[str, str]) -> Statement:
    """Return the statement for conversations by their ids, in the order of these."""
    return Statement(
        bounded(
            f"""
            SELECT {columns}, {STATE_COLUMNS},
                {newest_message_at("c.conversation_id")} AS last_message_at,
                array_position(
                    CAST(:conversation_ids AS uuid[]), c.conversation_id) AS number
            FROM conversations c
            JOIN heads h ON h.conversation_id = c.conversation_id
            {SETTINGS_JOINS}
            {joins}
            WHERE c.conversation_id = ANY (CAST(:conversation_ids AS uuid[]))
                AND h.conversation_id = ANY (CAST(:conversation_ids AS uuid[]))
                AND greatest(c.tenant_id) = CAST(:tenant_id AS text) AND {NOT_EXPIRED}
            ORDER BY number
            LIMIT CAST(:limit AS bigint)
            """,
            ("*",),
            large,
            "number",
        )
    )


BY_IDS = _by_ids(LISTED_COLUMNS, "", lengths("metadata"))
BY_IDS_WITH_USAGE = _by_ids(
    f"""{SETTINGS_COLUMNS}, used.calls, used.unpriced_calls, used.cost_usd, used.saved_tokens,
                last.last_compaction_id, last.last_compacted_at, last.last_trigger""",
    f"""LEFT JOIN LATERAL (
                SELECT coalesce(sum(u.calls), 0) AS calls,
                    coalesce(sum(u.unpriced_calls), 0) AS unpriced_calls,
                    coalesce(sum(u.cost_usd), 0) AS cost_usd,
                    coalesce(sum(u.saved_tokens), 0) AS saved_tokens
                FROM conversation_usage u
                WHERE u.conversation_id = c.conversation_id
                    AND u.day > CAST(now() AT TIME ZONE 'UTC' AS date) - {MAX_DAYS}
            ) used ON true
            LEFT JOIN LATERAL (
                SELECT newest.compaction_id AS last_compaction_id,
                    newest.created_at AS last_compacted_at, newest.trigger AS last_trigger
                FROM compactions newest
                WHERE newest.conversation_id = c.conversation_id
                ORDER BY newest.compaction_id DESC LIMIT 1
            ) last ON true""",
    lengths(
        *("metadata", "policy", "sections", "tools"),
        *("agent_policy", "agent_sections", "agent_tools"),
    ),
)


_LAST_ID = UUID(int=2**128 - 1)


class ConversationListRepository:
    """Reads pages of a tenant's conversations."""

    def __init__(self, session: Session, window_defaults: WindowDefaults) -> None:
        self._session = session
        self._window_defaults = window_defaults

    async def count(self, tenant_id: str, wanted: ConversationFilter, lead: Lead) -> int:
        row = await self._session.first(
            COUNT[lead.index],
            **_range(wanted, lead, None),
            **_filters(tenant_id, wanted, lead),
            scanned=MAX_SCANNED + 1,
        )
        return row["count"] if row is not None else 0

    async def places(
        self,
        tenant_id: str,
        wanted: ConversationFilter,
        order: ListOrder,
        lead: Lead,
        before: Place | None,
        limit: int,
        scanned: int,
    ) -> Places:
        filters = _filters(tenant_id, wanted, lead)
        at, conversation_id = before or (LATEST, FIRST_ID)
        if not lead.index.is_ordered_by(order):
            # The index was counted, and may have grown a little since.
            entries = await self._entries(wanted, lead, None, 2 * MAX_SCANNED, filters)
            ids = [entry["conversation_id"] for entry in entries]
            place = {"before": at, "before_id": UUID(conversation_id)}
            rows = await self._session.all(
                MATCHING[order], ids=ids, **place, limit=limit, **filters
            )
            return Places(tuple((row["at"], str(row["conversation_id"])) for row in rows))
        found: list[Place] = []
        part = limit
        while scanned > 0:
            part = min(part, scanned)
            entries = await self._entries(wanted, lead, before, part, filters)
            matching = await self._session.all(
                MATCHING[order],
                ids=[entry["conversation_id"] for entry in entries],
                before=LATEST,
                before_id=_LAST_ID,
                limit=part,
                **filters,
            )
            matched = {row["conversation_id"] for row in matching}
            found += (
                (entry["at"], str(entry["conversation_id"]))
                for entry in entries
                if entry["conversation_id"] in matched
            )
            if len(found) >= limit or len(entries) < part:
                return Places(tuple(found[:limit]))
            before = (entries[-1]["at"], str(entries[-1]["conversation_id"]))
            scanned -= part
            part *= 4
        return Places(tuple(found), before)

    async def _entries(
        self,
        wanted: ConversationFilter,
        lead: Lead,
        before: Place | None,
        scanned: int,
        filters: Mapping[str, Any],
    ) -> Sequence[Any]:
        return await self._session.all(
            ENTRIES[lead.index], **_range(wanted, lead, before), **filters, scanned=scanned
        )

    async def by_ids(
        self,
        tenant_id: str,
        conversation_ids: Sequence[str],
        default_model: str | None,
        bound: Bound = UNBOUNDED,
    ) -> Page[Conversation]:
        rows = await self._session.all(
            BY_IDS,
            tenant_id=tenant_id,
            conversation_ids=list(conversation_ids),
            model=None,
            default_model=default_model,
            **limits(len(conversation_ids), bound),
        )
        return page_of(rows, lambda row: conversation_from(row, self._window_defaults))

    async def by_ids_with_usage(
        self,
        tenant_id: str,
        conversation_ids: Sequence[str],
        default_model: str | None,
        bound: Bound = UNBOUNDED,
    ) -> Page[tuple[Conversation, ListedTotals]]:
        rows = await self._session.all(
            BY_IDS_WITH_USAGE,
            tenant_id=tenant_id,
            conversation_ids=list(conversation_ids),
            model=None,
            default_model=default_model,
            **limits(len(conversation_ids), bound),
        )
        return page_of(
            rows, lambda row: (conversation_from(row, self._window_defaults), _totals_from(row))
        )


def _totals_from(row: Any) -> ListedTotals:
    last = None
    if row["last_compaction_id"] is not None:
        last = LastCompaction(
            str(row["last_compaction_id"]), row["last_compacted_at"], row["last_trigger"]
        )
    calls = CallTotals(
        calls=int(row["calls"]),
        cost_usd=row["cost_usd"],
        unpriced_calls=int(row["unpriced_calls"]),
    )
    return ListedTotals(calls.known_cost_usd, int(row["saved_tokens"]), last)


def _range(wanted: ConversationFilter, lead: Lead, before: Place | None) -> dict[str, Any]:
    """Return the range of an index: the filter's, up to the place before the page."""
    times = wanted.active if lead.index is ListIndex.ACTIVE else wanted.created
    until, until_id = min(before or (LATEST, FIRST_ID), (times.end, FIRST_ID))
    return {"since": times.start, "until": until, "until_id": UUID(until_id)}


def _filters(tenant_id: str, wanted: ConversationFilter, lead: Lead) -> dict[str, Any]:
    """Return the values of the filters; rows are not compared with that of the index itself."""
    others = {key: value for key, value in wanted.labels.items() if key != lead.label}
    return {
        "tenant_id": tenant_id,
        "label": lead.label,
        "label_value": wanted.labels[lead.label] if lead.label is not None else None,
        "agent_id": wanted.agent_id,
        "own_model": wanted.model,
        "created_after": wanted.created.start,
        "created_before": wanted.created.end,
        "any_active": not wanted.active or lead.index is ListIndex.ACTIVE,
        "active_after": wanted.active.start,
        "active_before": wanted.active.end,
        "keys": list(others),
        "values": list(others.values()),
    }
