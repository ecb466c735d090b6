"""The rows of a conversation, as every copy has them: one list of columns for each table.

1. An export is these rows as records, by kind and key; an import writes records as rows; a fork
   copies rows inside the database. Both end with `set_head` and `show`.
2. What follows from a message (`COMPUTED`) is in no record: an import computes it.
3. A page of records is read by the primary key of its table.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from app.common import json_text
from app.common.pages import Bound, Page
from app.conversations.compaction_receipt import FACTS, Compaction
from app.conversations.settings_resolver import SettingsResolver
from app.conversations.windows.active_window import ActiveWindow
from app.conversations.windows.service import store_window, view_state_of, with_window
from app.database.connections import Session, Statement
from app.database.sql import assigned, bounded, equal, insert, lengths, limits, page_of, plain
from app.database.tables import NOT_EXPIRED, TABLES
from app.repositories import Repositories


class RecordKind(StrEnum):
    """The kinds of records, in the order of an export."""

    SETTINGS = "settings"
    STATE = "state"
    VERSION = "version"
    BLOB = "blob"
    MESSAGE = "message"
    BLOB_USE = "blob_use"
    PIN = "pin"
    REDACTION = "redaction"
    COMPACTION = "compaction"


RECORD_TABLES: Mapping[RecordKind, str] = {
    RecordKind.VERSION: "conversation_versions",
    RecordKind.BLOB: "blobs",
    RecordKind.MESSAGE: "messages",
    RecordKind.BLOB_USE: "blob_uses",
    RecordKind.PIN: "pins",
    RecordKind.REDACTION: "redactions",
    RecordKind.COMPACTION: "compactions",
}
COMPUTED = (
    *("tokens", "reasoning_tokens", "call_names", "has_media", "turn", "total_tokens", "fragment"),
)
_LEFT_OUT = {"blobs": ("created_at",), "messages": COMPUTED}
COLUMNS: Mapping[RecordKind, Mapping[str, str]] = {
    kind: TABLES[table].without("conversation_id", *_LEFT_OUT.get(table, ()))
    for kind, table in RECORD_TABLES.items()
}
"""The columns of a kind's rows with their types."""
SETTINGS = (
    *("agent_id", "model", "policy", "sections", "tools", "metadata", "sections_version"),
    *("tools_version", "rolling_window_seconds", "expires_at"),
)
"""The columns of the conversation in the record of its settings, which has its counter as well."""
STATE = (
    *("head_seq", "open_calls", "resume_at", "promoted", "promoted_turn", "since", "parts"),
    *("window_seconds", "cleared_at", "cleared_seq", "oldest_at", "newest_at", "mentions"),
    *("compaction_id", "kept"),
)
_OF_CONTENT = ("content_id", "object_key", "collected_at")
FIELDS: Mapping[RecordKind, tuple[str, ...]] = {
    **{kind: tuple(columns) for kind, columns in COLUMNS.items()},
    RecordKind.SETTINGS: (*SETTINGS, "counter"),
    RecordKind.STATE: STATE,
    RecordKind.COMPACTION: (
        *(name for name in COLUMNS[RecordKind.COMPACTION] if name != "receipt"),
        *FACTS,
    ),
    RecordKind.BLOB: (
        *(name for name in COLUMNS[RecordKind.BLOB] if name not in _OF_CONTENT),
        "is_collected",
    ),
}
"""The fields of records: columns, the facts of a receipt, and whether a blob was collected."""
KEYS: Mapping[RecordKind, tuple[str, ...]] = {
    kind: TABLES[table].key[1:] for kind, table in RECORD_TABLES.items()
}
"""The fields by which the records of a kind ascend; a kind without keys has one record."""

# --- reading ------------------------------------------------------------------------------------

_LARGE: Mapping[RecordKind, tuple[str, ...]] = {
    RecordKind.VERSION: ("body",),
    RecordKind.MESSAGE: ("body", "output"),
    RecordKind.COMPACTION: ("summary", "view", "made"),
}
"""Columns with texts of any length."""
_LOWEST: Mapping[str, Any] = {"text": "", "bigint": -1, "uuid": UUID(int=0)}
_PAGE_ROWS = 500
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


async def page(
    session: Session,
    kind: RecordKind,
    state: Mapping[str, Any],
    after: Mapping[str, Any] | None,
    bound: Bound,
) -> Page[dict[str, Any]]:
    """Return the rows of a kind after one of them, those with a seq up to the head.

    `state` is the row of `READ_SETTINGS`.
    """
    columns = COLUMNS[kind]
    start = after or {name: _LOWEST[columns[name]] for name in KEYS[kind]}
    rows = await session.all(
        PAGES[kind],
        conversation_id=state["conversation_id"],
        head_seq=state["head_seq"],
        **{f"after_{name}": start[name] for name in KEYS[kind]},
        **limits(_PAGE_ROWS, bound),
    )
    return page_of(rows, lambda row: {name: plain(row[name]) for name in columns})


# --- writing ------------------------------------------------------------------------------------

ADD = Statement(
    f"""
        WITH added AS (
            {insert("conversations", "conversation_id", "tenant_id", "own_id", *SETTINGS)}
            ON CONFLICT (conversation_id) DO NOTHING
            RETURNING conversation_id
        )
        INSERT INTO heads (conversation_id, counter)
        SELECT added.conversation_id, :counter FROM added
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


async def write(
    session: Session, key: str, kind: RecordKind, records: Sequence[Mapping[str, Any]]
) -> int:
    """Write records of one kind as rows of a conversation; return how many were new."""
    rows = json_text.dumps(records)
    return await session.run(ADDITIONS[kind], conversation_id=key, rows=rows)


# --- ending -------------------------------------------------------------------------------------

_GIVEN = (
    *("counter", "head_seq", "open_calls", "open_seqs", "group_seq", "provider_calls"),
    *("is_answering", "resume_at", "window_seconds", "cleared_at", "cleared_seq"),
)
# The sums of the log are those of its last row. Promoted tools are promoted for one turn.
SET_HEAD = Statement(
    f"""
        UPDATE heads h
        SET {assigned(*_GIVEN)},
            turns = coalesce(last.turn, 0), tokens = coalesce(last.total_tokens, 0),
            promoted = CASE WHEN :promoted_turn <= last.turn THEN :promoted ELSE '{{}}' END,
            promoted_turn = CASE WHEN :promoted_turn <= last.turn THEN :promoted_turn ELSE 0 END,
            newest_at = greatest(last.newest_at, :cleared_at + interval '1 microsecond'),
            unindexed_at = now()
        FROM (SELECT 1) AS this
        LEFT JOIN LATERAL (
            SELECT m.turn, m.total_tokens, coalesce(m.at, m.created_at) AS newest_at
            FROM messages m WHERE m.conversation_id = :conversation_id
            ORDER BY m.seq DESC LIMIT 1
        ) last ON true
        WHERE h.conversation_id = :conversation_id
        """
)


@dataclass(frozen=True, slots=True)
class Shown:
    """What a copied log shows: its window with the facts about it, and the compaction's view.

    `kept` are the seqs that are visible although the `receipt` hides or clears them.
    """

    window: ActiveWindow
    oldest_at: datetime | None
    mentions: Collection[str]
    receipt: Compaction | None
    kept: tuple[int, ...]


async def set_head(session: Repositories, key: str, head: Mapping[str, Any]) -> None:
    """Set the head of a copied log, without its window and its view."""
    values = {name: head[name] for name in SET_HEAD.names if name in head}
    await session.session.run(SET_HEAD, **values, conversation_id=key)


async def show(
    session: Repositories, resolver: SettingsResolver, tenant_id: str, key: str, shown: Shown
) -> None:
    """Store the window and the view of a conversation whose head is set."""
    conversation = await session.conversations.get(tenant_id, key)
    state = await with_window(session, key, conversation.state, shown.window)
    state = replace(
        state,
        oldest_at=shown.oldest_at,
        mentions=tuple(shown.mentions),
        hidden_tokens=state.outside_tokens,
        hidden_messages=state.outside_messages,
    )
    await store_window(session, key, state)
    with_kept = replace(conversation, state=replace(state, kept_seqs=shown.kept))
    visible = await view_state_of(session, resolver, with_kept, shown.receipt)
    if visible.compaction_id is not None:
        await session.contexts.show(
            key,
            visible,
            view_version=state.view_version,
            cause="compaction",
            resume_at_tokens=state.resume_at_tokens,
        )
