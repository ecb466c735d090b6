"""Lists of conversations in PostgreSQL (rules in `app.conversations.listing_filters`).

A page is read in two statements: the places of those that match, and the items by their ids. An
index is read in a subquery with a LIMIT: PostgreSQL reads it only as far as the page needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from app.common import json_text
from app.common.pages import UNBOUNDED, Bound, Page
from app.conversations.conversation import Conversation
from app.conversations.listing_filters import (
    FIRST_ID,
    LATEST,
    MAX_SCANNED,
    ConversationFilter,
    LastCompaction,
    ListedTotals,
    Place,
    Places,
)
from app.conversations.rows import (
    LISTED_COLUMNS,
    SETTINGS_COLUMNS,
    SETTINGS_JOINS,
    STATE_COLUMNS,
    conversation_from,
    newest_message_at,
)
from app.database.connections import Statement
from app.database.conversation_tables import NOT_EXPIRED
from app.database.paging import bounded, lengths, limits, page_of
from app.database.repository import Repository
from app.models.usage_totals import MAX_DAYS, CallTotals

_WANTED: Final = "labels_of(:tenant_id, CAST(:labels AS text))"
_COLUMNS: Final = "conversation_id, tenant_id, agent_id, model, metadata, created_at, expires_at"
_MATCHES: Final = f"""
    {NOT_EXPIRED}
    AND (:agent_id IS NULL OR c.agent_id = :agent_id)
    AND (CAST(:own_model AS text) IS NULL OR c.model = CAST(:own_model AS text))
    AND (CAST(:any_active AS boolean) OR tstzrange(
            CAST(:active_after AS timestamptz), CAST(:active_before AS timestamptz), '()'
        ) @> greatest(c.created_at, {newest_message_at("c.conversation_id")}))
"""


def _places(column: str = "", value: str = "") -> Statement:
    """Return the statement for the places of rule 1, and where the read ended if they are few.

    `column` and its `value` are those of an agent, or empty. As a column of the order it leaves
    PostgreSQL no other index; without statistics that of the tenant's conversations would cost the
    same. `:until` and `:until_id` are the end of the range: its time, or the place before the page.
    """
    order = f"{column}created_at, conversation_id".replace(",", " DESC,") + " DESC"
    rows = f"""
        SELECT {_COLUMNS} FROM conversations
        WHERE tenant_id = :tenant_id AND ({column}created_at) > ({value}CAST(:since AS timestamptz))
            AND ({column}created_at, conversation_id)
                < ({value}CAST(:until AS timestamptz), CAST(:until_id AS uuid))
        ORDER BY {order}
    """
    return Statement(f"""
        (
            SELECT c.conversation_id, c.created_at, true AS matches
            FROM ({rows} LIMIT CAST(:scanned AS bigint)) c
            WHERE {_MATCHES} AND (
                CAST(:labels AS text) = '{{}}' OR labels_of(c.tenant_id, c.metadata) @> {_WANTED}
            )
            ORDER BY {order} LIMIT :limit
        ) UNION ALL (
            SELECT conversation_id, created_at, false
            FROM ({rows} OFFSET CAST(:scanned AS bigint) - 1 LIMIT 1) last
        )
        LIMIT :limit
    """)


PLACES = _places()
PLACES_OF_AGENT = _places("agent_id, ", ":agent_id, ")
# Labels have the tenant: its column would only give PostgreSQL a choice of indexes.
LABELLED = Statement(f"""
    WITH labelled AS MATERIALIZED (
        SELECT conversation_id, agent_id, model, created_at, expires_at FROM conversations
        WHERE labels_of(tenant_id, metadata) @> {_WANTED}
        LIMIT CAST(:scanned AS bigint) + 1
    )
    SELECT NULL AS conversation_id, NULL AS created_at, count(*) AS count FROM labelled
    UNION ALL (
        SELECT c.conversation_id, c.created_at, NULL
        FROM labelled c
        WHERE {_MATCHES}
            AND c.created_at > CAST(:since AS timestamptz)
            AND (c.created_at, c.conversation_id)
                < (CAST(:until AS timestamptz), CAST(:until_id AS uuid))
        ORDER BY c.created_at DESC, c.conversation_id DESC LIMIT :limit
    )
""")
"""The number of conversations with the labels, then the places of those that match."""


def _by_ids(columns: str, joins: str, large: Mapping[str, str]) -> Statement:
    """Return the statement for conversations by their ids, in the order of these."""
    return Statement(
        bounded(
            f"""
            SELECT {columns}, {STATE_COLUMNS},
                {newest_message_at("c.conversation_id")} AS last_message_at,
                array_position(
                    :conversation_ids, c.conversation_id) AS number
            FROM conversations c
            JOIN heads h ON h.conversation_id = c.conversation_id
            {SETTINGS_JOINS}
            {joins}
            WHERE c.conversation_id = ANY (:conversation_ids)
                AND h.conversation_id = ANY (:conversation_ids)
                AND greatest(c.tenant_id) = :tenant_id AND {NOT_EXPIRED}
            ORDER BY number LIMIT :limit
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
                FROM compactions newest WHERE newest.conversation_id = c.conversation_id
                ORDER BY newest.compaction_id DESC LIMIT 1
            ) last ON true""",
    lengths(
        *("metadata", "policy", "sections", "tools"),
        *("agent_policy", "agent_sections", "agent_tools"),
    ),
)


class ConversationListRepository(Repository):
    """Reads pages of a tenant's conversations."""

    async def places(
        self,
        tenant_id: str,
        wanted: ConversationFilter,
        before: Place | None,
        limit: int,
        scanned: int,
    ) -> Places:
        """Return up to `limit` places that match after the place `before`.

        Up to `scanned` conversations of the tenant or of the agent are compared.
        """
        rows = await self._session.all(
            PLACES if wanted.agent_id is None else PLACES_OF_AGENT,
            **_values(tenant_id, wanted, before, limit, scanned),
        )
        found = tuple(_place(row) for row in rows if row["matches"])
        return Places(found, _place(rows[-1]) if len(rows) > len(found) else None)

    async def labelled_places(
        self, tenant_id: str, wanted: ConversationFilter, before: Place | None, limit: int
    ) -> Places | None:
        """Return the same by the index of metadata; None if too many have the values (rule 2)."""
        counted, *rows = await self._session.all(
            LABELLED, **_values(tenant_id, wanted, before, limit, MAX_SCANNED)
        )
        if counted["count"] > MAX_SCANNED:
            return None
        return Places(tuple(_place(row) for row in rows))

    async def by_ids(
        self,
        tenant_id: str,
        conversation_ids: Sequence[str],
        default_model: str | None,
        bound: Bound = UNBOUNDED,
    ) -> Page[Conversation]:
        """Return the existing ones of these, without sections, tools and policies."""
        rows = await self._session.all(
            BY_IDS,
            tenant_id=tenant_id,
            conversation_ids=list(conversation_ids),
            model=None,
            default_model=default_model,
            **limits(len(conversation_ids), bound),
        )
        return page_of(rows, lambda row: conversation_from(row, self._settings_cache.defaults))

    async def by_ids_with_usage(
        self,
        tenant_id: str,
        conversation_ids: Sequence[str],
        default_model: str | None,
        bound: Bound = UNBOUNDED,
    ) -> Page[tuple[Conversation, ListedTotals]]:
        """Return the existing ones of these with all settings, and their totals."""
        rows = await self._session.all(
            BY_IDS_WITH_USAGE,
            tenant_id=tenant_id,
            conversation_ids=list(conversation_ids),
            model=None,
            default_model=default_model,
            **limits(len(conversation_ids), bound),
        )
        return page_of(
            rows,
            lambda row: (conversation_from(row, self._settings_cache.defaults), _totals_from(row)),
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


def _place(row: Any) -> Place:
    return row["created_at"], str(row["conversation_id"])


def _values(
    tenant_id: str, wanted: ConversationFilter, before: Place | None, limit: int, scanned: int
) -> dict[str, Any]:
    """Return the values of the filters, and the range up to the place before the page."""
    until, until_id = min(before or (LATEST, FIRST_ID), (wanted.created.end, FIRST_ID))
    return {
        "tenant_id": tenant_id,
        "agent_id": wanted.agent_id,
        "own_model": wanted.model,
        "labels": json_text.dumps(dict(wanted.labels)),
        "since": wanted.created.start,
        "until": until,
        "until_id": UUID(until_id),
        "any_active": not wanted.active,
        "active_after": wanted.active.start,
        "active_before": wanted.active.end,
        "limit": limit,
        "scanned": scanned,
    }
