"""Exports and imports in PostgreSQL: rows as records, and records as rows.

1. A page of records is read by the primary key of its table.
2. An import stores its rows under the tenant `IMPORTING_TENANT`, in batches that commit by
   themselves: no reader finds them. Each batch renews `updated_at` of the conversation. The last
   statement gives it to its tenant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from app.common.pages import Bound, Page
from app.database.connections import Session, Statement
from app.database.sql import assigned, bounded, equal, lengths, limits, page_of, plain
from app.database.tables import NOT_EXPIRED, TABLES
from app.snapshots.export_format import (
    COLUMNS,
    COMPUTED,
    IMPORTING_TENANT,
    KEYS,
    RECORD_TABLES,
    SETTINGS,
    STATE,
    RecordKind,
)

_LARGE: Mapping[RecordKind, tuple[str, ...]] = {
    RecordKind.VERSION: ("body",),
    RecordKind.MESSAGE: ("body", "output"),
    RecordKind.COMPACTION: ("summary", "view", "made"),
}
"""Columns with texts of any length."""
_LOWEST: Mapping[str, Any] = {"text": "", "bigint": -1, "uuid": UUID(int=0)}
PAGE_ROWS = 500

_OWN = equal("conversation_id")


def _page(kind: RecordKind) -> Statement:
    columns, keys = COLUMNS[kind], ", ".join(KEYS[kind])
    after = ", ".join(f"CAST(:after_{name} AS {columns[name]})" for name in KEYS[kind])
    ends = "AND seq <= :head_seq" if "seq" in columns else ""
    rows = f"""
        SELECT {", ".join(columns)} FROM {RECORD_TABLES[kind]}
        WHERE {_OWN} AND ({keys}) > ({after}) {ends}
        ORDER BY {keys} LIMIT :limit"""
    large = lengths(*_LARGE.get(kind, ())) or {"": "0"}
    return Statement(bounded(rows, tuple(columns), large, keys))


PAGES = {kind: _page(kind) for kind in RECORD_TABLES}

READ_SETTINGS = Statement(
    f"""
        SELECT c.conversation_id, c.created_at AS conversation_created_at, c.own_id, h.counter,
            {", ".join((*(f"c.{name}" for name in SETTINGS), *(f"h.{name}" for name in STATE)))}
        FROM conversations c JOIN heads h ON h.conversation_id = c.conversation_id
        WHERE c.conversation_id = :conversation_id AND c.tenant_id = :tenant_id AND {NOT_EXPIRED}
        """
)
BEGIN = Statement(
    f"""
        WITH added AS (
            INSERT INTO conversations (conversation_id, tenant_id)
            VALUES (:conversation_id, '{IMPORTING_TENANT}')
            ON CONFLICT (conversation_id) DO NOTHING
            RETURNING conversation_id
        )
        INSERT INTO heads (conversation_id, counter)
        SELECT added.conversation_id, 'tokenizer' FROM added
        """
)
# The lock orders a batch and a removal of the import.
RENEW = Statement(
    f"""
        UPDATE conversations SET updated_at = statement_timestamp()
        WHERE {_OWN} AND tenant_id = '{IMPORTING_TENANT}'
        """
)


def _add(kind: RecordKind) -> Statement:
    columns = dict(COLUMNS[kind])
    if kind is RecordKind.MESSAGE:
        columns |= {name: TABLES["messages"].columns[name] for name in COMPUTED}
    typed = ", ".join(f'"{name}" {type}' for name, type in columns.items())
    return Statement(
        f"""
        INSERT INTO {RECORD_TABLES[kind]} (conversation_id, {", ".join(columns)})
        SELECT :conversation_id, item.*
        FROM json_to_recordset(CAST(:rows AS json)) AS item ({typed})
        ON CONFLICT DO NOTHING
        """,
        is_long=True,
    )


ADDITIONS = {kind: _add(kind) for kind in RECORD_TABLES}


PUBLISH = Statement(
    f"""
        UPDATE conversations
        SET {assigned("tenant_id", "own_id", *SETTINGS)},
            created_at = statement_timestamp(), updated_at = statement_timestamp()
        WHERE {_OWN} AND tenant_id = '{IMPORTING_TENANT}'
        """
)
STALE = Statement(
    f"""
        SELECT conversation_id FROM conversations
        WHERE tenant_id = '{IMPORTING_TENANT}' AND updated_at < CAST(:before AS timestamptz)
        LIMIT :limit
        """
)
LOCK = Statement(
    f"""
        SELECT FROM conversations
        WHERE {_OWN} AND tenant_id = '{IMPORTING_TENANT}'
            AND updated_at < CAST(:before AS timestamptz)
        FOR UPDATE
        """
)


async def page(
    session: Session,
    kind: RecordKind,
    state: Mapping[str, Any],
    after: Mapping[str, Any] | None,
    bound: Bound,
) -> Page[Mapping[str, Any]]:
    """Return the records of a kind after one of them, those with a seq up to the head.

    `state` is the row of `READ_SETTINGS`.
    """
    columns = COLUMNS[kind]
    start = after or {name: _LOWEST[columns[name]] for name in KEYS[kind]}
    rows = await session.all(
        PAGES[kind],
        conversation_id=state["conversation_id"],
        head_seq=state["head_seq"],
        **{f"after_{name}": start[name] for name in KEYS[kind]},
        **limits(PAGE_ROWS, bound),
    )
    return page_of(rows, lambda row: {name: plain(row[name]) for name in columns})
