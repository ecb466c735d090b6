"""Lists of conversations, newest first by creation: their filters, cursors and statements.

1. A page is read from the index of the tenant's or of an agent's conversations, in its order. Each
   row is compared with the other filters, at most MAX_SCANNED rows: the page may have fewer items
   than its limit, and the list continues after it.
2. With values of metadata their index is read, unless more than MAX_SCANNED conversations have
   these values.
3. A conversation is active at the time of its newest message; before the first one, and after a
   fork, at its creation.
4. A page is read in two statements: the places of those that match, and the items by their ids. An
   index is read in a subquery with a LIMIT: PostgreSQL reads it only as far as the page needs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal
from uuid import UUID

from fastapi import Depends, Query, Request
from pydantic import BeforeValidator

from app.common import json_text
from app.common.errors import ValidationError
from app.common.pages import UNBOUNDED, Bound, Page, Place
from app.common.schema_errors import pointer_to
from app.common.texts import is_sendable
from app.conversations.conversation import Conversation
from app.conversations.rows import (
    AGENT_JOIN,
    LISTED_COLUMNS,
    SETTINGS_COLUMNS,
    STATE_COLUMNS,
    conversation_from,
    newest_message_at,
)
from app.database.connections import Repository, Statement
from app.database.sql import bounded, lengths, limits, page_of
from app.database.tables import NOT_EXPIRED
from app.http import cursors
from app.http.fields import AgentId, ModelName, Time
from app.models.usage import MAX_DAYS, known_cost

MAX_LABELS: Final = 8
MAX_LABEL_KEY_CHARS: Final = 64
MAX_LABEL_VALUE_CHARS: Final = 512
MAX_SCANNED: Final = 5_000
"""Conversations that are compared with the filters for one page."""
LATEST: Final[Place] = datetime(9999, 12, 30, tzinfo=UTC), "ffffffff-ffff-ffff-ffff-ffffffffffff"
"""The place before which a list begins."""

# --- filters ------------------------------------------------------------------------------------

METADATA_FILTER: dict[str, Any] = {
    "type": "object",
    "title": "MetadataFilter",
    "description": "Values of metadata by key: strings, or numbers and booleans as JSON writes"
    " them.",
    "maxProperties": MAX_LABELS,
    "propertyNames": {"minLength": 1, "maxLength": MAX_LABEL_KEY_CHARS, "pattern": "^[^\\[\\]]+$"},
    "additionalProperties": {"type": "string", "maxLength": MAX_LABEL_VALUE_CHARS},
    "examples": [{"customer": "42"}],
}
"""The schema of the metadata filter, a component of openapi.json."""
METADATA_PARAMETER: dict[str, Any] = {
    "parameters": [
        {
            "name": "metadata",
            "in": "query",
            "required": False,
            "style": "deepObject",
            "explode": True,
            "description": "Only conversations whose metadata has these values, such as"
            f" `metadata[customer]=42`: up to {MAX_LABELS}, all of which must match. Top-level"
            " strings, numbers and booleans can be filtered by.",
            "schema": {"$ref": "#/components/schemas/MetadataFilter"},
            "example": {"customer": "42"},
        }
    ]
}
"""What FastAPI cannot generate: a parameter for each key of an object."""
_METADATA = re.compile(r"metadata\[(.*)\]", re.DOTALL)
QueryTime = Annotated[Time, BeforeValidator(lambda text: str(text).replace(" ", "+"))]
"""A time whose offset may have an unescaped `+`, which is a space in a query."""
Include = Annotated[
    Literal["usage"] | None,
    Query(
        description="`usage` adds to each conversation the budget of its next build, its cost and"
        " its last compaction, in one answer instead of three requests for each."
    ),
]


@dataclass(frozen=True, slots=True)
class ConversationFilter:
    """What conversations of a list have in common; `model` is their own model, not an inherited.

    `labels` are values of the metadata by key: strings, or numbers and booleans as JSON writes
    them.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    agent_id: str | None = None
    model: str | None = None
    active_after: datetime | None = None

    @property
    def digest(self) -> str:
        """A hash, which a cursor belongs to."""
        labels = sorted(self.labels.items())
        return cursors.digest_of(labels, self.agent_id, self.model, self.active_after)


def _conversation_filter(
    request: Request,
    agent_id: Annotated[AgentId | None, Query(description="Only this agent's.")] = None,
    model: Annotated[
        ModelName | None,
        Query(description="Only those with this model of their own, not an inherited one."),
    ] = None,
    active_after: Annotated[
        QueryTime | None,
        Query(description="Only those appended to later; without messages, created later."),
    ] = None,
) -> ConversationFilter:
    labels: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if (match := _METADATA.fullmatch(name)) is not None:
            if detail := _problem_of(match[1], value, labels):
                raise ValidationError.at(pointer_to(("query", name)), detail)
            labels[match[1]] = value
    if len(labels) > MAX_LABELS:
        raise ValidationError.at("/query/metadata", f"must have at most {MAX_LABELS} keys")
    return ConversationFilter(labels, agent_id, model, active_after)


Filter = Annotated[ConversationFilter, Depends(_conversation_filter)]


def _problem_of(key: str, value: str, found: Mapping[str, str]) -> str | None:
    if not 1 <= len(key) <= MAX_LABEL_KEY_CHARS or "[" in key or "]" in key:
        return f"must have one key of 1 to {MAX_LABEL_KEY_CHARS} characters, without brackets"
    if len(value) > MAX_LABEL_VALUE_CHARS or not is_sendable(key + value):
        return f"must have at most {MAX_LABEL_VALUE_CHARS} characters, no NUL or lone surrogates"
    return "must be given once" if key in found else None


# --- statements ---------------------------------------------------------------------------------

_WANTED: Final = "labels_of(:tenant_id, CAST(:labels AS text))"
_COLUMNS: Final = "conversation_id, tenant_id, agent_id, model, metadata, created_at, expires_at"
_MATCHES: Final = f"""
    {NOT_EXPIRED}
    AND (:agent_id IS NULL OR c.agent_id = :agent_id)
    AND (CAST(:own_model AS text) IS NULL OR c.model = CAST(:own_model AS text))
    AND (CAST(:active_after AS timestamptz) IS NULL
        OR greatest(c.created_at, {newest_message_at("c.conversation_id")})
            > CAST(:active_after AS timestamptz))
"""


def _places(column: str = "", value: str = "") -> Statement:
    """Return the statement for the places of rule 1, and the last row of the read.

    `column` and its `value` are those of an agent, or empty. As a column of the order it leaves
    PostgreSQL no other index; without statistics that of the tenant's conversations would cost the
    same. `:until` and `:until_id` are the place before the page.
    """
    order = f"{column}created_at, conversation_id".replace(",", " DESC,") + " DESC"
    of_agent = f"AND ({column}created_at) > ({value}'-infinity')" if column else ""
    rows = f"""
        SELECT {_COLUMNS} FROM conversations
        WHERE tenant_id = :tenant_id {of_agent} AND ({column}created_at, conversation_id)
            < ({value}CAST(:until AS timestamptz), CAST(:until_id AS uuid))
        ORDER BY {order}
    """
    return Statement(f"""
        SELECT conversation_id, created_at, matches, number
        FROM (
            SELECT c.agent_id, c.conversation_id, c.created_at,
                row_number() OVER (ORDER BY {order}) AS number,
                {_MATCHES} AND (CAST(:labels AS text) = '{{}}'
                    OR labels_of(c.tenant_id, c.metadata) @> {_WANTED}) AS matches
            FROM ({rows} LIMIT CAST(:scanned AS bigint)) c
        ) read
        WHERE matches OR number = CAST(:scanned AS bigint)
        ORDER BY {order} LIMIT :limit
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
        WHERE {_MATCHES} AND (c.created_at, c.conversation_id)
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
            {AGENT_JOIN}
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
                last.last_compaction_id, last.last_created_at, last.last_trigger""",
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
                SELECT CAST(newest.compaction_id AS text) AS last_compaction_id,
                    newest.created_at AS last_created_at, newest.trigger AS last_trigger
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
        self, tenant_id: str, wanted: ConversationFilter, before: Place | None, limit: int
    ) -> tuple[Sequence[Place], Place | None]:
        """Return up to `limit` places that match after the place `before` (rules 1 and 2).

        If the read ended before the list did and found too few, the second is the place of its
        last row.
        """
        until, until_id = before or LATEST
        values = {
            "tenant_id": tenant_id,
            "agent_id": wanted.agent_id,
            "own_model": wanted.model,
            "labels": json_text.dumps(dict(wanted.labels)),
            "until": until,
            "until_id": UUID(until_id),
            "active_after": wanted.active_after,
            "limit": limit,
            "scanned": MAX_SCANNED,
        }
        if wanted.labels:
            counted, *rows = await self._session.all(LABELLED, **values)
            if counted["count"] <= MAX_SCANNED:
                return list(map(_place, rows)), None
        statement = PLACES if wanted.agent_id is None else PLACES_OF_AGENT
        rows = list(await self._session.all(statement, **values))
        found = [_place(row) for row in rows if row["matches"]]
        is_cut = bool(rows) and rows[-1]["number"] == MAX_SCANNED
        return found, _place(rows[-1]) if is_cut else None

    async def by_ids(
        self,
        tenant_id: str,
        conversation_ids: Sequence[str],
        bound: Bound = UNBOUNDED,
        *,
        with_usage: bool = False,
    ) -> Page[tuple[Conversation, dict[str, Any]]]:
        """Return the existing ones of these: without sections, tools and policies, or with usage.

        Then they have all settings, of which their budgets are computed, and the other fields of
        `ConversationUsage`.
        """
        rows = await self._session.all(
            BY_IDS_WITH_USAGE if with_usage else BY_IDS,
            tenant_id=tenant_id,
            conversation_ids=list(conversation_ids),
            model=None,
            default_model=self._settings_cache.default_model,
            **limits(len(conversation_ids), bound),
        )
        return page_of(
            rows,
            lambda row: (
                conversation_from(row),
                _totals_from(row) if with_usage else {},
            ),
        )


def _totals_from(row: Any) -> dict[str, Any]:
    last = {name: row[f"last_{name}"] for name in ("compaction_id", "created_at", "trigger")}
    return {
        "cost_usd": known_cost(row["calls"], row["unpriced_calls"], row["cost_usd"]),
        "saved_tokens": int(row["saved_tokens"]),
        "last_compaction": last if last["compaction_id"] is not None else None,
    }


def _place(row: Any) -> Place:
    return row["created_at"], str(row["conversation_id"])
