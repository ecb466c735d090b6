"""Snapshots in PostgreSQL: a row each, with its parts.

A transaction that adds a part holds a key-share lock on the head of its conversation, so that a
deletion, which locks the head, leaves no part behind [log.delete-everything].
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from app.common import json_text
from app.common.pages import UNBOUNDED, Bound, Page
from app.conversations.snapshot_removal import DELETE_PARTS
from app.conversations.view import Span
from app.database.connections import Repository, Statement
from app.database.sql import bounded, fields_of, insert, lengths, limits, page_of, read
from app.database.tables import NOT_EXPIRED, TABLES
from app.snapshots.snapshot import Snapshot, SnapshotModel, SnapshotPart

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
            {insert("snapshots", *_OWN, created_at="CAST(:timestamp AS timestamptz)")}
            ON CONFLICT (tenant_id, session_id) DO NOTHING
            RETURNING tenant_id, session_id
        ), parts AS (
            INSERT INTO snapshot_parts (
                conversation_id, session_id, tenant_id, spans, message_count
            )
            SELECT part.id, added.session_id, added.tenant_id, part.spans, part.count
            FROM added, json_to_recordset(CAST(:parts AS json))
                AS part (id uuid, spans bigint[], count bigint)
        )
        SELECT session_id FROM added
        """
)

_READ = (*TABLES["snapshots"].without("tenant_id", "created_at"),)
_COLUMNS = f"{', '.join(_READ)}, created_at AS timestamp"


def _with_ids(rows: str) -> str:
    """Return a query for these snapshots of a tenant, with the ids of their conversations."""
    return f"""
        WITH page AS MATERIALIZED ({rows}), parts AS MATERIALIZED (
            SELECT p.session_id, c.created_at, c.conversation_id,
                coalesce(c.own_id, CAST(c.conversation_id AS text)) AS public_id
            FROM snapshot_parts p
            JOIN conversations c ON c.conversation_id = p.conversation_id
            WHERE p.tenant_id = :tenant_id
                AND p.session_id = ANY (ARRAY(SELECT session_id FROM page))
        )
        SELECT page.*, ARRAY(
                SELECT public_id FROM parts
                WHERE parts.session_id = page.session_id ORDER BY created_at, conversation_id
            ) AS conversation_ids
        FROM page
    """


FIND = Statement(
    _with_ids(
        f"""
            SELECT {_COLUMNS} FROM snapshots s
            WHERE s.tenant_id = :tenant_id AND s.session_id = :session_id
        """
    )
)
_BEFORE = """
    (CAST(:before AS timestamptz) IS NULL OR (s.created_at, s.session_id)
        < (CAST(:before AS timestamptz), CAST(:before_id AS text)))
    ORDER BY s.created_at DESC, s.session_id DESC LIMIT :limit
"""


def _list(source: str) -> Statement:
    """Return a statement for a page of snapshots; `source` is the text from FROM on."""
    ids = {"conversation_ids": "octet_length(CAST(conversation_ids AS text))"}
    large = lengths("description", "summary", "models") | ids
    rows = _with_ids(f"SELECT {_COLUMNS} {source} AND {_BEFORE}")
    columns = (*_READ, "timestamp", "conversation_ids")
    return Statement(bounded(rows, columns, large, "timestamp DESC, session_id DESC"))


_OF_TENANT = "FROM snapshots s WHERE s.tenant_id = :tenant_id"
LIST = _list(_OF_TENANT)
LIST_OF_AGENT = _list(f"{_OF_TENANT} AND s.agent_id = :agent_id")
LIST_OF_CONVERSATION = _list(
    """
        FROM snapshots s
        WHERE s.tenant_id = :tenant_id
            AND s.session_id = ANY (ARRAY(
                SELECT session_id FROM snapshot_parts
                WHERE conversation_id = :conversation_id
            ))
            AND (:agent_id IS NULL OR s.agent_id = :agent_id)
    """
)
PARTS = Statement(
    """
        SELECT p.conversation_id, p.spans,
            coalesce(c.own_id, CAST(c.conversation_id AS text)) AS public_id
        FROM snapshot_parts p
        JOIN conversations c ON c.conversation_id = p.conversation_id
        WHERE p.tenant_id = :tenant_id AND p.session_id = :session_id
        ORDER BY c.created_at, c.conversation_id
        """
)
SEQS_OF = Statement(
    """
        SELECT message_id, seq FROM messages
        WHERE conversation_id = :conversation_id AND message_id = ANY (CAST(:ids AS text[]))
        """
)
CALLS_IN = Statement(
    """
        SELECT DISTINCT used.call_id
        FROM unnest(:starts, :ends) AS span (start, past)
        JOIN messages m ON m.conversation_id = :conversation_id
            AND m.seq >= span.start AND m.seq < span.past
            AND m.role = 'assistant' AND m.call_ids IS NOT NULL
        CROSS JOIN LATERAL json_array_elements_text(CAST(m.call_ids AS json)) AS used (call_id)
        """
)

REMOVE = Statement(
    f"""
        WITH deleted AS (
            DELETE FROM snapshots WHERE tenant_id = :tenant_id AND session_id = :session_id
            RETURNING tenant_id, session_id
        ), {DELETE_PARTS}
        """
)


class SnapshotRepository(Repository):
    """Statements on snapshots."""

    async def lock_conversations(
        self, tenant_id: str, conversation_ids: Sequence[str]
    ) -> dict[str, int]:
        """Lock conversations against deletion and redaction in this transaction.

        Returns those that exist, each with the view version of its last redaction.
        """
        versions = {}
        for each in sorted(conversation_ids):  # one order, so that locks cannot deadlock
            row = await self._session.first(
                LOCK_CONVERSATION, tenant_id=tenant_id, conversation_id=each
            )
            if row is not None:
                versions[each] = row["redacted_version"]
        return versions

    async def add(
        self,
        tenant_id: str,
        snapshot: Snapshot,
        parts: Sequence[SnapshotPart],
    ) -> bool:
        """Store a snapshot; return False for a used id."""
        row = await self._session.first(
            ADD,
            tenant_id=tenant_id,
            **fields_of(snapshot)
            | {"models": json_text.dumps({it.conversation_id: it.model for it in snapshot.models})},
            parts=json_text.dumps(
                [
                    {
                        "id": part.conversation_id,
                        "spans": [edge for it in part.spans for edge in (it.start, it.end)],
                        "count": part.message_count,
                    }
                    for part in parts
                ]
            ),
        )
        return row is not None

    async def find(self, tenant_id: str, session_id: str) -> Snapshot | None:
        """Return a snapshot without its messages, or None."""
        row = await self._session.first(FIND, tenant_id=tenant_id, session_id=session_id)
        return _snapshot_from(row) if row is not None else None

    async def page(
        self,
        tenant_id: str,
        agent_id: str | None,
        conversation_id: str | None,
        limit: int,
        before: tuple[datetime, str] | None,
        bound: Bound = UNBOUNDED,
    ) -> Page[Snapshot]:
        """Return a page, newest first, after the time and id in `before`."""
        statement = LIST if agent_id is None else LIST_OF_AGENT
        if conversation_id is not None:
            statement = LIST_OF_CONVERSATION
        before_time, before_id = before or (None, None)
        rows = await self._session.all(
            statement,
            tenant_id=tenant_id,
            agent_id=agent_id,
            conversation_id=conversation_id,
            before=before_time,
            before_id=before_id,
            **limits(limit, bound),
        )
        return page_of(rows, _snapshot_from)

    async def parts(self, tenant_id: str, session_id: str) -> list[SnapshotPart]:
        """Return the parts of a snapshot, the oldest conversation first."""
        rows = await self._session.all(PARTS, tenant_id=tenant_id, session_id=session_id)
        return [
            SnapshotPart(str(row["conversation_id"]), row["public_id"], _spans(row["spans"]))
            for row in rows
        ]


def _snapshot_from(row: Any) -> Snapshot:
    ids: Sequence[str] = row["conversation_ids"]
    # Models of deleted conversations are left out.
    models: dict[str, str] = json_text.loads(row["models"])
    return read(
        Snapshot,
        row,
        models=tuple(SnapshotModel(each, models[each]) for each in ids if each in models),
    )


def _spans(edges: Sequence[int]) -> tuple[Span, ...]:
    return tuple(map(Span, edges[::2], edges[1::2]))
