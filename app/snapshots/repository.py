"""Snapshots: records of active windows that can be read, exported and restored; a row each.

A transaction that adds a part holds a key-share lock on the head of its conversation, so that a
deletion, which locks the head, leaves no part behind [log.delete-everything].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import asyncpg

from app.common import json_text
from app.common.pages import UNBOUNDED, Bound, Page
from app.conversations.snapshot_removal import DELETE_PARTS
from app.conversations.view import Span, count_in
from app.database.connections import Session, Statement
from app.database.sql import bounded, fields_of, insert, lengths, limits, page_of, read
from app.database.tables import NOT_EXPIRED, TABLES
from app.snapshots.schemas import Snapshot, SnapshotModel

UNSTORABLE = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
)
"""The errors of the database about values from outside."""


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """The messages of one conversation in a snapshot: ascending spans of seqs, each with an end."""

    conversation_id: str
    public_id: str
    spans: tuple[Span, ...]

    @property
    def message_count(self) -> int:
        """The number of messages."""
        return count_in(self.spans)


LOCK_CONVERSATION = Statement(
    f"""
        SELECT h.redacted_version
        FROM heads h
        JOIN conversations c ON c.conversation_id = h.conversation_id
        WHERE h.conversation_id = :conversation_id AND c.conversation_id = :conversation_id
            AND c.tenant_id = :tenant_id AND {NOT_EXPIRED}
        FOR KEY SHARE OF h
        """
)
_OWN = TABLES["snapshots"].without("created_at")
ADD = Statement(
    f"""
        WITH added AS (
            {insert("snapshots", *_OWN, created_at="CAST(:created_at AS timestamptz)")}
            ON CONFLICT (tenant_id, snapshot_id) DO NOTHING
            RETURNING tenant_id, snapshot_id
        ), parts AS (
            INSERT INTO snapshot_parts (
                conversation_id, snapshot_id, tenant_id, spans, message_count
            )
            SELECT part.id, added.snapshot_id, added.tenant_id, part.spans, part.count
            FROM added, json_to_recordset(CAST(:parts AS json))
                AS part (id uuid, spans bigint[], count bigint)
        )
        SELECT snapshot_id FROM added
        """
)
_READ = (*TABLES["snapshots"].without("tenant_id"),)
_ROWS = f"""
    SELECT {", ".join(_READ)}
    FROM snapshots s WHERE s.tenant_id = :tenant_id
"""
_PUBLIC_ID = "coalesce(c.own_id, CAST(c.conversation_id AS text)) AS public_id"


def _with_ids(where: str) -> str:
    """Return a query for these snapshots of a tenant, with the ids of their conversations."""
    return f"""
        WITH page AS MATERIALIZED ({_ROWS} AND {where}), parts AS MATERIALIZED (
            SELECT p.snapshot_id, c.created_at, c.conversation_id, {_PUBLIC_ID}
            FROM snapshot_parts p
            JOIN conversations c ON c.conversation_id = p.conversation_id
            WHERE p.tenant_id = :tenant_id
                AND p.snapshot_id = ANY (ARRAY(SELECT snapshot_id FROM page))
        )
        SELECT page.*, ARRAY(
                SELECT public_id FROM parts
                WHERE parts.snapshot_id = page.snapshot_id ORDER BY created_at, conversation_id
            ) AS conversation_ids
        FROM page
    """


FIND = Statement(_with_ids("s.snapshot_id = :snapshot_id"))
LIST = Statement(
    bounded(
        _with_ids(
            """
            (CAST(:before AS timestamptz) IS NULL OR (s.created_at, s.snapshot_id)
                < (CAST(:before AS timestamptz), CAST(:before_id AS text)))
            AND (:agent_id IS NULL OR s.agent_id = :agent_id)
            AND (:conversation_id IS NULL OR s.snapshot_id = ANY (ARRAY(
                SELECT snapshot_id FROM snapshot_parts WHERE conversation_id = :conversation_id
            )))
            ORDER BY s.created_at DESC, s.snapshot_id DESC LIMIT :limit
            """
        ),
        (*_READ, "conversation_ids"),
        lengths("description", "summary", "models")
        | {"conversation_ids": "octet_length(CAST(conversation_ids AS text))"},
        "created_at DESC, snapshot_id DESC",
    )
)
PARTS = Statement(
    f"""
        SELECT p.conversation_id, p.spans, {_PUBLIC_ID}
        FROM snapshot_parts p
        JOIN conversations c ON c.conversation_id = p.conversation_id
        WHERE p.tenant_id = :tenant_id AND p.snapshot_id = :snapshot_id
        ORDER BY c.created_at, c.conversation_id
        """
)
REMOVE = Statement(
    f"""
        WITH deleted AS (
            DELETE FROM snapshots WHERE tenant_id = :tenant_id AND snapshot_id = :snapshot_id
            RETURNING tenant_id, snapshot_id
        ), {DELETE_PARTS}
        """
)


async def lock_conversations(
    session: Session, tenant_id: str, conversation_ids: Sequence[str]
) -> dict[str, int]:
    """Lock conversations against deletion and redaction in this transaction.

    Returns those that exist, each with the view version of its last redaction.
    """
    versions = {}
    for each in sorted(conversation_ids):  # one order, so that locks cannot deadlock
        row = await session.first(LOCK_CONVERSATION, tenant_id=tenant_id, conversation_id=each)
        if row is not None:
            versions[each] = row["redacted_version"]
    return versions


async def add_snapshot(
    session: Session, tenant_id: str, snapshot: Snapshot, parts: Sequence[SnapshotPart]
) -> bool:
    """Store a snapshot; return False for a used id."""
    models = json_text.dumps({item.conversation_id: item.model for item in snapshot.models})
    rows = [
        {
            "id": part.conversation_id,
            "spans": [edge for span in part.spans for edge in (span.start, span.end)],
            "count": part.message_count,
        }
        for part in parts
    ]
    own = fields_of(snapshot) | {"models": models, "parts": json_text.dumps(rows)}
    return await session.value(ADD, tenant_id=tenant_id, **own) is not None


async def find_snapshot(session: Session, tenant_id: str, snapshot_id: str) -> Snapshot | None:
    """Return a snapshot without its messages, or None."""
    row = await session.first(FIND, tenant_id=tenant_id, snapshot_id=snapshot_id)
    return _snapshot_from(row) if row is not None else None


async def parts_of(session: Session, tenant_id: str, snapshot_id: str) -> list[SnapshotPart]:
    """Return the parts of a snapshot, the oldest conversation first."""
    rows = await session.all(PARTS, tenant_id=tenant_id, snapshot_id=snapshot_id)
    return [
        SnapshotPart(
            str(row["conversation_id"]),
            row["public_id"],
            tuple(map(Span, row["spans"][::2], row["spans"][1::2])),
        )
        for row in rows
    ]


async def page_of_snapshots(
    session: Session,
    tenant_id: str,
    limit: int,
    before: tuple[datetime, str] | None,
    bound: Bound = UNBOUNDED,
    **filters: str | None,
) -> Page[Snapshot]:
    """Return a page, newest first, after the time and id in `before`.

    The filters are `agent_id` and `conversation_id`, None for all.
    """
    at, id = before or (None, None)
    start = {"tenant_id": tenant_id, "before": at, "before_id": id}
    return page_of(
        await session.all(LIST, **start, **filters, **limits(limit, bound)), _snapshot_from
    )


def _snapshot_from(row: Any) -> Snapshot:
    ids: Sequence[str] = row["conversation_ids"]
    # Models of deleted conversations are left out.
    models: dict[str, str] = json_text.loads(row["models"])
    named = tuple(SnapshotModel(each, models[each]) for each in ids if each in models)
    return read(Snapshot, row, models=named)
