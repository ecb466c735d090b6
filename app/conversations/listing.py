"""Lists of conversations, newest first by creation: their filters, cursors and statements.

1. A page is read from the index of the tenant's or of an agent's conversations, in its order. With
   values of metadata their index is read: all conversations that have them, and then the page.
2. A page is read in two statements: the places of those that match, and the items by their ids. An
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

from app.common import json_text
from app.common.errors import ValidationError
from app.common.pages import UNBOUNDED, Bound, Page, Place
from app.common.schema_errors import pointer_to
from app.common.texts import is_sendable
from app.conversations.conversation import Conversation
from app.conversations.from_rows import (
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
from app.http.fields import AgentId
from app.models.usage import MAX_DAYS, known_cost

MAX_LABELS: Final = 8
MAX_LABEL_KEY_CHARS: Final = 64
MAX_LABEL_VALUE_CHARS: Final = 512
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
Include = Annotated[
    Literal["usage"] | None,
    Query(
        description="`usage` adds to each conversation the budget of its next build, its cost and"
        " its last compaction, in one answer instead of three requests for each, and when a"
        " compaction failed or a provider refused the payload."
    ),
]


@dataclass(frozen=True, slots=True)
class ConversationFilter:
    """What conversations of a list have in common.

    `labels` are values of the metadata by key: strings, or numbers and booleans as JSON writes
    them.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    agent_id: str | None = None

    @property
    def digest(self) -> str:
        """A hash, which a cursor belongs to."""
        return cursors.digest_of(sorted(self.labels.items()), self.agent_id)


def _conversation_filter(
    request: Request,
    agent_id: Annotated[AgentId | None, Query(description="Only this agent's.")] = None,
) -> ConversationFilter:
    labels: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if (match := _METADATA.fullmatch(name)) is not None:
            if detail := _problem_of(match[1], value, labels):
                raise ValidationError.at(pointer_to(("query", name)), detail)
            labels[match[1]] = value
    if len(labels) > MAX_LABELS:
        raise ValidationError.at("/query/metadata", f"must have at most {MAX_LABELS} keys")
    return ConversationFilter(labels, agent_id)


Filter = Annotated[ConversationFilter, Depends(_conversation_filter)]


def _problem_of(key: str, value: str, found: Mapping[str, str]) -> str | None:
    if not 1 <= len(key) <= MAX_LABEL_KEY_CHARS or "[" in key or "]" in key:
        return f"must have one key of 1 to {MAX_LABEL_KEY_CHARS} characters, without brackets"
    if len(value) > MAX_LABEL_VALUE_CHARS or not is_sendable(key + value):
        return f"must have at most {MAX_LABEL_VALUE_CHARS} characters, no NUL or lone surrogates"
    return "must be given once" if key in found else None


# --- statements ---------------------------------------------------------------------------------


def _places(condition: str, source: str = "conversations", *, of_agent: bool = False) -> Statement:
    """Return the statement for the places after another one of what meets a condition.

    With `of_agent` the agent is a column of the order, which leaves PostgreSQL no other index.
    Without statistics that of the tenant's conversations would cost the same.
    """
    column, value = ("agent_id, ", ":agent_id, ") if of_agent else ("", "")
    order = f"{column}created_at, conversation_id".replace(",", " DESC,") + " DESC"
    return Statement(f"""
        SELECT conversation_id, created_at FROM {source} c
        WHERE {condition} AND {NOT_EXPIRED} AND ({column}created_at, conversation_id)
            < ({value}CAST(:until AS timestamptz), CAST(:until_id AS uuid))
        ORDER BY {order} LIMIT :limit
    """)


PLACES = _places("tenant_id = :tenant_id")
PLACES_OF_AGENT = _places(
    "tenant_id = :tenant_id AND (agent_id, created_at) > (:agent_id, '-infinity')", of_agent=True
)
# Labels have the tenant: its column would only give PostgreSQL a choice of indexes.
LABELLED = _places(
    "(:agent_id IS NULL OR agent_id = :agent_id)",
    """(
            SELECT conversation_id, agent_id, created_at, expires_at FROM conversations
            WHERE labels_of(tenant_id, metadata) @> labels_of(:tenant_id, CAST(:labels AS text))
            OFFSET 0
        )""",
)


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
            JOIN states h ON h.conversation_id = c.conversation_id
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
                last.last_compaction_id, last.last_created_at, last.last_trigger,
                last.last_degraded, h.failed_at, cut.overflowed_at""",
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
                    newest.created_at AS last_created_at, newest.trigger AS last_trigger,
                    CAST(newest.receipt AS jsonb) ->> 'degraded' AS last_degraded
                FROM compactions newest WHERE newest.conversation_id = c.conversation_id
                ORDER BY newest.compaction_id DESC LIMIT 1
            ) last ON true
            LEFT JOIN LATERAL (
                SELECT max(k.created_at) AS overflowed_at FROM compactions k
                WHERE k.conversation_id = c.conversation_id AND k.trigger = 'overflow'
            ) cut ON true""",
    lengths(
        *("metadata", "policy", "sections", "tools"),
        *("agent_policy", "agent_sections", "agent_tools"),
    ),
)


class ConversationListRepository(Repository):
    """Reads pages of a tenant's conversations."""

    async def places(
        self, tenant_id: str, wanted: ConversationFilter, before: Place | None, limit: int
    ) -> list[Place]:
        """Return up to `limit` places that match after the place `before`."""
        statement = PLACES if wanted.agent_id is None else PLACES_OF_AGENT
        until, until_id = before or LATEST
        rows = await self._session.all(
            LABELLED if wanted.labels else statement,
            tenant_id=tenant_id,
            agent_id=wanted.agent_id,
            labels=json_text.dumps(dict(wanted.labels)),
            until=until,
            until_id=UUID(until_id),
            limit=limit,
        )
        return [(row["created_at"], str(row["conversation_id"])) for row in rows]

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
            rows, lambda row: (conversation_from(row), _totals_from(row) if with_usage else {})
        )


def _totals_from(row: Any) -> dict[str, Any]:
    names = ("compaction_id", "created_at", "trigger", "degraded")
    last = {name: row[f"last_{name}"] for name in names}
    last["degraded"] = json_text.loads(last["degraded"] or "[]")
    return {
        "cost_usd": known_cost(row["calls"], row["unpriced_calls"], row["cost_usd"]),
        "saved_tokens": int(row["saved_tokens"]),
        "last_compaction": last if last["compaction_id"] is not None else None,
        "failed_at": row["failed_at"],
        "overflowed_at": row["overflowed_at"],
    }
