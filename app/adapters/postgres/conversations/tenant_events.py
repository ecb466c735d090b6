"""The events of a tenant in PostgreSQL, in the order of their transactions.

`pg_current_xact_id()` orders events by the transaction that stored them, a sequence orders those of
one transaction. A transaction below `pg_snapshot_xmin` has ended, and its rows are visible to the
snapshot: so no row appears later among those that were read. The server's identifier tells a
restored database, whose transactions count anew, from the one that a cursor came from.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from app.adapters.postgres.common.connections import Session, Statement
from app.domain.conversations.tenant_events import (
    CREATED_SEQ,
    DELETED_SEQ,
    EventFilter,
    TenantCursor,
    TenantEventPage,
    TenantEventRow,
    TenantPosition,
)

_SERVER_ID = "(pg_control_system()).system_identifier"

POSITION_COLUMNS = "server_id, transaction_id, event_id"
POSITION_VALUES = (
    f"{_SERVER_ID}, CAST(CAST(pg_current_xact_id() AS text) AS bigint), nextval('event_ids')"
)
"""The position of an event that this statement stores."""

ADD_CREATED = f"""
    INSERT INTO events (
        conversation_id, event_seq, type, data, created_at, tenant_id, agent_id, {POSITION_COLUMNS}
    )
    SELECT added.conversation_id, {CREATED_SEQ}, 'created', '{{}}', clock_timestamp(),
        added.tenant_id, added.agent_id, {POSITION_VALUES}
    FROM added
"""
"""Stores the event of a conversation in `added`, in the statement that adds it."""

ADD_CREATED_OF = Statement(f"""
    INSERT INTO events (
        conversation_id, event_seq, type, data, created_at, tenant_id, agent_id, {POSITION_COLUMNS}
    )
    SELECT CAST(:conversation_id AS uuid), {CREATED_SEQ}, 'created', '{{}}', clock_timestamp(),
        CAST(:tenant_id AS text), CAST(:agent_id AS text), {POSITION_VALUES}
""")

ADD_DELETED = Statement(f"""
    INSERT INTO events (
        conversation_id, event_seq, type, data, created_at, tenant_id, agent_id, {POSITION_COLUMNS}
    )
    SELECT CAST(:conversation_id AS uuid), {DELETED_SEQ}, 'deleted', CAST(:data AS text),
        clock_timestamp(), CAST(:tenant_id AS text), CAST(:agent_id AS text), {POSITION_VALUES}
""")

STORE_EVENT = Statement(f"""
    INSERT INTO events (
        conversation_id, event_seq, type, data, created_at, tenant_id, agent_id, {POSITION_COLUMNS}
    )
    SELECT CAST(:conversation_id AS uuid), CAST(:event_seq AS bigint), CAST(:type AS text),
        CAST(:data AS text), clock_timestamp(), CAST(:tenant_id AS text),
        CAST(:agent_id AS text), {POSITION_VALUES}
""")

# A statement of its own: Citus would ask the nodes with the events for their own transactions.
SNAPSHOT = Statement("""
    SELECT (pg_control_system()).system_identifier AS server_id,
        CAST(CAST(pg_snapshot_xmin(now.snapshot) AS text) AS bigint) AS not_yet_ended,
        CAST(CAST(pg_snapshot_xmax(now.snapshot) AS text) AS bigint) AS next_transaction_id
    FROM pg_current_snapshot() AS now (snapshot)
""")
NEWEST = Statement("""
    SELECT transaction_id, event_id FROM events
    WHERE tenant_id = CAST(:tenant_id AS text) AND server_id = CAST(:server_id AS bigint)
        AND transaction_id < CAST(:not_yet_ended AS bigint)
    ORDER BY transaction_id DESC, event_id DESC
    LIMIT 1
""")
# The filter is applied to the rows of a page, so that a page reads no more rows than it has, and a
# stream advances past those that it leaves out.
PAGE_OF_TENANT = Statement(f"""
    SELECT found.*, c.own_id
    FROM (
        SELECT {POSITION_COLUMNS}, conversation_id, agent_id, type, created_at,
            CASE WHEN (CAST(:agent_id AS text) IS NULL OR agent_id = CAST(:agent_id AS text))
                AND (CAST(:types AS text[]) IS NULL OR type = ANY (CAST(:types AS text[])))
            THEN data END AS data
        FROM events
        WHERE tenant_id = CAST(:tenant_id AS text) AND server_id = CAST(:server_id AS bigint)
            AND (transaction_id, event_id)
                > (CAST(:after_transaction_id AS bigint), CAST(:after_number AS bigint))
            AND transaction_id < CAST(:not_yet_ended AS bigint)
        ORDER BY transaction_id, event_id
        LIMIT CAST(:limit AS bigint)
    ) AS found
    LEFT JOIN conversations c ON c.conversation_id = found.conversation_id
    ORDER BY found.transaction_id, found.event_id
""")


class TenantEventQueries:
    """The queries of an EventRepository about all conversations of a tenant."""

    _session: Session

    async def find_position(self, tenant_id: str) -> TenantPosition:
        snapshot = await self._snapshot()
        newest = await self._newest(tenant_id, snapshot)
        cursor = newest or TenantCursor(snapshot["server_id"], 0, 0)
        return TenantPosition(cursor, snapshot["next_transaction_id"])

    async def newest_of_tenants(self, tenant_ids: Collection[str]) -> Mapping[str, TenantCursor]:
        snapshot = await self._snapshot()
        found = {each: await self._newest(each, snapshot) for each in tenant_ids}
        return {each: cursor for each, cursor in found.items() if cursor is not None}

    async def page_of_tenant(
        self, tenant_id: str, after: TenantCursor, wanted: EventFilter, limit: int
    ) -> TenantEventPage:
        snapshot = await self._snapshot()
        if snapshot["server_id"] != after.server_id:
            return TenantEventPage(snapshot["server_id"], limit, [])
        rows = await self._session.all(
            PAGE_OF_TENANT,
            tenant_id=tenant_id,
            server_id=after.server_id,
            not_yet_ended=snapshot["not_yet_ended"],
            after_transaction_id=after.transaction_id,
            after_number=after.number,
            agent_id=wanted.agent_id,
            types=list(wanted.types) or None,
            limit=limit,
        )
        return TenantEventPage(after.server_id, limit, list(map(_row, rows)))

    async def _snapshot(self) -> Any:
        row = await self._session.first(SNAPSHOT)
        assert row is not None, "it has one row"
        return row

    async def _newest(self, tenant_id: str, snapshot: Any) -> TenantCursor | None:
        row = await self._session.first(
            NEWEST,
            tenant_id=tenant_id,
            server_id=snapshot["server_id"],
            not_yet_ended=snapshot["not_yet_ended"],
        )
        if row is None:
            return None
        return TenantCursor(snapshot["server_id"], row["transaction_id"], row["event_id"])


def _cursor(row: Any) -> TenantCursor:
    return TenantCursor(row["server_id"], row["transaction_id"], row["event_id"])


def _row(row: Any) -> TenantEventRow:
    return TenantEventRow(
        _cursor(row),
        row["own_id"] or str(row["conversation_id"]),
        row["agent_id"],
        row["type"],
        row["created_at"],
        row["data"],
    )
