"""The rows of a conversation, as every copy has them: one list of columns for each table.

1. An export is these rows as records, by kind and key; an import writes records as rows; a fork
   copies rows inside the database. All end with `end_copy`.
2. What follows from a message (`COMPUTED`) is in no record: an import computes it.
3. A page of records is read by the primary key of its table.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from app.common import json_text
from app.common.pages import BATCH_BYTES, Bound, Page
from app.conversations.moving_window import store_window, view_state_of, with_window
from app.conversations.receipt import FACTS, Receipt
from app.conversations.settings_resolver import SettingsResolver
from app.conversations.view import ActiveWindow
from app.conversations.view_changes import with_view
from app.database.connections import Session, Statement
from app.database.sql import assigned, bounded, insert, lengths, limits, page_of, plain
from app.database.tables import NOT_EXPIRED, TABLES
from app.repositories import Repositories

KINDS: Mapping[str, str] = {
    "version": "conversation_versions",
    "blob": "blobs",
    "message": "messages",
    "blob_use": "blob_uses",
    "pin": "pins",
    "redaction": "redactions",
    "compaction": "compactions",
}
"""The kinds of records and their tables, in the order of an export, after settings and state."""
COLUMNS = {kind: TABLES[table].without("conversation_id") for kind, table in KINDS.items()}
KEYS = {kind: TABLES[table].key[1:] for kind, table in KINDS.items()}
"""The fields by which the records of a kind ascend."""
COMPUTED = (
    *("tokens", "reasoning_tokens", "call_names", "needs_body", "turn"),
    *("total_tokens", "chat_item"),
)
SETTINGS = (
    *("agent_id", "model", "policy", "sections", "tools", "metadata", "sections_version"),
    *("tools_version", "rolling_window_seconds", "expires_at"),
)
"""The columns of the conversation in the record of its settings, which has its counter as well."""
STATE = (
    *("head_seq", "open_calls", "resume_at_tokens", "promoted", "promoted_turn", "since"),
    *("window_parts", "window_seconds", "cleared_at", "cleared_seq", "oldest_at", "newest_at"),
    *("named_tools", "compaction_id", "protected_seqs", "group_seq"),
)
_LEFT_OUT = {
    "message": COMPUTED,
    "blob": ("content_id", "object_key", "collected_at", "created_at"),
    "compaction": ("receipt",),
}
_INSTEAD = {"blob": ("is_collected",), "compaction": FACTS}
FIELDS: Mapping[str, Sequence[str]] = {
    "settings": (*SETTINGS, "counter"),
    "state": STATE,
    **{
        kind: (*TABLES[table].without("conversation_id", *left_out), *_INSTEAD.get(kind, ()))
        for kind, table in KINDS.items()
        for left_out in [_LEFT_OUT.get(kind, ())]
    },
}
"""The fields of records: columns, the facts of a receipt, and whether a blob was collected."""

# --- reading ------------------------------------------------------------------------------------

_LOWEST: Mapping[str, Any] = {"text": "", "bigint": -1, "uuid": UUID(int=0)}
_PAGE_ROWS = 500
# What is written after the state, the settings and the view were read is left out.
_KNOWN = {
    **dict.fromkeys(("message", "blob_use", "pin", "redaction"), "seq <= :head_seq"),
    "version": "version <= CASE kind WHEN 'tools' THEN :tools_version ELSE :sections_version END",
    "compaction": "hidden_end <= :head_seq + 1 AND (:compaction_id IS NULL OR undone_at IS NOT NULL"
    " OR compaction_id <= :compaction_id)",
}


def rows_of(kind: str) -> str:
    """Return the FROM of a conversation's rows of a kind, up to the state of `READ_SETTINGS`."""
    own = "conversation_id = CAST(:source_id AS uuid)"
    return f"FROM {KINDS[kind]} WHERE {own} AND {_KNOWN.get(kind, 'true')}"


def _page(kind: str) -> Statement:
    columns, keys = COLUMNS[kind], ", ".join(KEYS[kind])
    after = ", ".join(f"CAST(:after_{name} AS {columns[name]})" for name in KEYS[kind])
    rows = f"""SELECT {", ".join(columns)} {rows_of(kind)} AND ({keys}) > ({after})
        ORDER BY {keys} LIMIT :limit"""
    texts = (name for name in columns if columns[name] == "text" and name not in KEYS[kind])
    return Statement(bounded(rows, tuple(columns), lengths(*texts), keys))


PAGES = {kind: _page(kind) for kind in KINDS}
READ_SETTINGS = Statement(
    f"""
        SELECT c.conversation_id AS source_id, c.created_at AS conversation_created_at, c.own_id,
            coalesce(c.origin_id, c.conversation_id) AS origin_id, h.counter,
            {", ".join((*(f"c.{name}" for name in SETTINGS), *(f"h.{name}" for name in STATE)))}
        FROM conversations c JOIN states h ON h.conversation_id = c.conversation_id
        WHERE c.conversation_id = :conversation_id AND c.tenant_id = :tenant_id AND {NOT_EXPIRED}
        """
)


async def read_settings(
    session: Session, tenant_id: str, conversation_id: str
) -> dict[str, Any] | None:
    """Return the settings and the state of a conversation, None if there is none."""
    found = await session.first(READ_SETTINGS, tenant_id=tenant_id, conversation_id=conversation_id)
    return {name: plain(value) for name, value in found.items()} if found is not None else None


async def page(
    session: Session, kind: str, state: Mapping[str, Any], after: Mapping[str, Any] | None
) -> Page[dict[str, Any]]:
    """Return the rows of a kind after one of them; `state` is from `read_settings`."""
    columns = COLUMNS[kind]
    start = after or {name: _LOWEST[columns[name]] for name in KEYS[kind]}
    after_keys = {f"after_{name}": start[name] for name in KEYS[kind]}
    bound = limits(_PAGE_ROWS, Bound(BATCH_BYTES))
    rows = await session.all(PAGES[kind], **state, **after_keys, **bound)
    return page_of(rows, lambda row: {name: plain(row[name]) for name in columns})


# --- writing ------------------------------------------------------------------------------------

_CONVERSATION = ("conversation_id", "tenant_id", "own_id", "origin_id", *SETTINGS)
ADD = Statement(
    f"""
        WITH added AS (
            {insert("conversations", *_CONVERSATION)}
            ON CONFLICT (conversation_id) DO NOTHING
            RETURNING conversation_id
        )
        INSERT INTO states (conversation_id, counter)
        SELECT added.conversation_id, :counter FROM added
        """
)


def insert_rows(kind: str, rows: str, **others: str) -> str:
    """Return an INSERT of rows of a conversation; `rows` begins with FROM."""
    columns = COLUMNS[kind]
    values = ", ".join(others.get(name, name) for name in columns)
    return f"""INSERT INTO {KINDS[kind]} (conversation_id, {", ".join(columns)})
        SELECT CAST(:conversation_id AS uuid), {values} {rows}"""


def _add(kind: str) -> Statement:
    typed = ", ".join(f'"{name}" {type}' for name, type in COLUMNS[kind].items())
    rows = f"FROM json_to_recordset(CAST(:rows AS json)) AS item ({typed}) ON CONFLICT DO NOTHING"
    defaults = TABLES[KINDS[kind]].defaults.items()
    others = {name: f"coalesce(item.{name}, {default})" for name, default in defaults}
    return Statement(insert_rows(kind, rows, **others), is_long=True)


ADDITIONS = {kind: _add(kind) for kind in KINDS}


async def write(session: Session, key: str, kind: str, records: Sequence[Mapping[str, Any]]) -> int:
    """Write records of one kind as rows of a conversation; return how many were new."""
    rows = json_text.dumps(records)
    return await session.run(ADDITIONS[kind], conversation_id=key, rows=rows)


# --- ending -------------------------------------------------------------------------------------

_GIVEN = (
    *("head_seq", "open_calls", "open_seqs", "group_seq", "provider_calls", "is_answering"),
    *("resume_at_tokens", "window_seconds", "cleared_at", "cleared_seq"),
)
# The sums of the log are those of its last row. Promoted tools are promoted for one turn.
SET_STATE = Statement(
    f"""
        UPDATE states h
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
    """What a copied log shows: its active window with facts about it, and the compaction's view.

    `protected_seqs` are the seqs that are visible although the `receipt` hides or clears them.
    """

    window: ActiveWindow
    oldest_at: datetime | None
    named_tools: Collection[str]
    receipt: Receipt | None
    protected_seqs: tuple[int, ...]


async def end_copy(
    session: Repositories,
    resolver: SettingsResolver,
    owner: tuple[str, str],
    values: Mapping[str, Any],
    shown: Shown,
) -> None:
    """Store state, active window and view of a copied log; `owner` is its tenant and key."""
    tenant_id, key = owner
    await session.session.run(SET_STATE, **{**values, "conversation_id": key})
    conversation = await session.conversations.get(tenant_id, key)
    state = await with_window(session, key, conversation.state, shown.window)
    state = replace(state, oldest_at=shown.oldest_at, protected_seqs=shown.protected_seqs)
    state = replace(state, named_tools=tuple(shown.named_tools))
    conversation = replace(conversation, state=state)
    visible = await view_state_of(session, resolver, conversation, shown.receipt)
    is_compacted = visible.compaction_id is not None
    state = with_view(state, visible, "compaction" if is_compacted else None)
    await store_window(session, key, state)
