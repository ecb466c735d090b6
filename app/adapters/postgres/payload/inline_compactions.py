"""Compactions inside a build: each of their steps is one statement.

A build that needs no model plans on what it has read, without a lease. What it reads besides, and
the whole result, are one statement each.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from app.adapters.postgres.common.connections import Session, Statement
from app.adapters.postgres.common.inserts import placeholders
from app.adapters.postgres.common.rows import (
    SettingsCache,
    compaction_from,
    log_rows_from,
    summaries_from,
)
from app.adapters.postgres.conversations.events import STORE_EVENT
from app.adapters.postgres.payload.compactions import (
    NO_NEW_PIN,
    RECEIPT_COLUMNS,
    SHOWN_VIEW,
    receipt_values,
    view_values,
)
from app.domain.common.messages import FormatName
from app.domain.compaction.views import state_after
from app.domain.conversations.inline_compaction import InlineBasis, InlineChange, InlineRows
from app.domain.conversations.turns import MAX_PLACEHOLDER_TOKENS
from app.domain.conversations.view import Span, View, spans_through

# Citus refuses a join of which NULL would make nothing.
_NO_COMPACTION = UUID(int=0)
BASIS = Statement(
    """
        SELECT h.event_seq,
            EXISTS (
                SELECT FROM compaction_leases lease
                WHERE lease.conversation_id = CAST(:conversation_id AS uuid)
                    AND lease.expires_at > now()
            ) AS is_leased,
            CASE WHEN active.made = '[]' THEN (
                SELECT newest.made FROM compactions newest
                WHERE newest.conversation_id = CAST(:conversation_id AS uuid)
                    AND newest.compaction_id <= CAST(:compaction_id AS uuid)
                    AND newest.undone_at IS NULL AND newest.made <> '[]'
                ORDER BY newest.compaction_id DESC
                LIMIT 1
            ) END AS newest_made,
            active.*
        FROM heads h
        LEFT JOIN compactions active
            ON active.conversation_id = CAST(:conversation_id AS uuid)
            AND active.compaction_id = CAST(:compaction_id AS uuid)
        WHERE h.conversation_id = CAST(:conversation_id AS uuid)
        """
)

# Rows from `shown_from` on and those in `also` are read as a build renders them. The stored form of
# a user's message is read as well, because a summary compares what it states.
_IS_SHOWN = "(r.seq >= CAST(:shown_from AS bigint) OR r.seq = ANY (CAST(:also AS bigint[])))"
_AS_CHAT = (
    f"({_IS_SHOWN} AND CAST(:as_chat AS boolean) AND NOT r.has_media AND r.reasoning_tokens = 0)"
)
_IS_CLEARED = f"""({_IS_SHOWN} AND r.seq <= CAST(:trimmed_through AS bigint) AND r.role = 'tool'
    AND r.output IS NOT NULL AND r.tokens > {MAX_PLACEHOLDER_TOKENS}
    AND r.seq <> ALL (CAST(:untrimmed AS bigint[])))"""
ROWS = Statement(
    f"""
        SELECT
            array_agg(r.message_id ORDER BY r.seq) AS ids,
            array_agg(r.seq ORDER BY r.seq) AS seqs,
            array_agg(r.role ORDER BY r.seq) AS roles,
            array_agg(r.tokens ORDER BY r.seq) AS row_tokens,
            array_agg(r.reasoning_tokens ORDER BY r.seq) AS row_reasoning,
            array_agg(r.call_ids ORDER BY r.seq) AS row_calls,
            array_agg(r.has_media ORDER BY r.seq) AS row_media,
            array_agg(CASE WHEN {_AS_CHAT} THEN 'openai_chat' ELSE r.format END
                ORDER BY r.seq) AS row_formats,
            array_agg(CASE WHEN {_IS_CLEARED} THEN ''
                ELSE convert_to(CASE WHEN {_AS_CHAT} THEN coalesce(r.fragment, r.body)
                    ELSE r.body END, 'UTF8') END ORDER BY r.seq) AS bodies,
            array_agg(r.output ORDER BY r.seq) AS outputs,
            array_agg(r.format ORDER BY r.seq) AS stored_formats,
            array_agg(CASE WHEN {_AS_CHAT} AND r.role = 'user' AND r.fragment IS NOT NULL
                THEN convert_to(r.body, 'UTF8') END ORDER BY r.seq) AS stored_bodies
        FROM (
            (SELECT * FROM messages
            WHERE conversation_id = CAST(:conversation_id AS uuid)
                AND seq = ANY (CAST(:also AS bigint[])) AND seq < CAST(:start AS bigint))
            UNION ALL
            (SELECT * FROM messages
            WHERE conversation_id = CAST(:conversation_id AS uuid)
                AND seq >= CAST(:start AS bigint) AND seq < CAST(:end AS bigint)
            ORDER BY seq)
        ) r
        """
)

_RECEIPT_VALUES = re.sub(
    ":(?!conversation_id)", ":receipt_", placeholders(RECEIPT_COLUMNS)
).replace(":conversation_id", "CAST(:conversation_id AS uuid)")

# A pin adds an event under the lock of the head. So one that was set while this statement waited
# for the lock changed `event_seq`.
_SHOW = f"""UPDATE heads
            SET {SHOWN_VIEW}, event_seq = event_seq + cardinality(CAST(:types AS text[]))
            WHERE conversation_id = CAST(:conversation_id AS uuid)
                AND view_version = CAST(:view_version AS bigint)
                AND event_seq = CAST(:event_seq AS bigint)
                AND {NO_NEW_PIN}
            RETURNING conversation_id, state_version"""
STORE = Statement(
    f"""
        WITH shown AS (
            {_SHOW}
        ), receipt AS (
            INSERT INTO compactions ({RECEIPT_COLUMNS})
            SELECT {_RECEIPT_VALUES} FROM shown
            RETURNING created_at
        ), added AS (
            INSERT INTO events (conversation_id, event_seq, type, data, created_at)
            SELECT CAST(:conversation_id AS uuid),
                CAST(:event_seq AS bigint) + event.number, event.type, event.data,
                clock_timestamp()
            FROM shown, unnest(CAST(:types AS text[]), CAST(:data AS text[]))
                WITH ORDINALITY AS event (type, data, number)
            ORDER BY event.number
        )
        SELECT receipt.created_at, shown.state_version FROM receipt CROSS JOIN shown
        """
)
# On Citus, statements of one table instead, and `STORE_EVENT`.
SHOW = Statement(_SHOW)
STORE_RECEIPT = Statement(
    f"""
        INSERT INTO compactions ({RECEIPT_COLUMNS})
        VALUES ({_RECEIPT_VALUES})
        RETURNING created_at
        """
)


class InlineCompactionQueries:
    """The queries of a ContextRepository about compactions inside a build."""

    _session: Session
    _settings_cache: SettingsCache

    async def inline_basis(
        self, conversation_id: str, compaction_id: str | None
    ) -> InlineBasis | None:
        row = await self._session.first(
            BASIS, conversation_id=conversation_id, compaction_id=compaction_id or _NO_COMPACTION
        )
        if row is None:
            return None
        active = compaction_from(row) if row["compaction_id"] is not None else None
        made = row["newest_made"]
        newest = summaries_from(made) if made is not None else ()
        return InlineBasis(row["event_seq"], row["is_leased"], active, newest)

    async def inline_rows(
        self, conversation_id: str, read: Span, shown_from: int, view: View, *, as_chat: bool
    ) -> InlineRows:
        spans = spans_through(view.spans, shown_from - 1)
        also = [seq for span in spans for seq in range(span.start, span.end)]
        row = await self._session.first(
            ROWS,
            conversation_id=conversation_id,
            start=read.start,
            end=read.end,
            shown_from=shown_from,
            also=also,
            as_chat=as_chat,
            trimmed_through=view.results_cleared_through,
            untrimmed=view.uncleared_results,
        )
        rows = log_rows_from(row)
        stored = list(rows)
        if row is not None and rows:
            for place, body in enumerate(row["stored_bodies"]):
                if body is not None:
                    format = FormatName(row["stored_formats"][place])
                    stored[place] = replace(rows[place], format=format, text=body)
        shown = [item for item in rows if view.shows(item.seq)]
        return InlineRows(read, stored, shown, view.spans)

    async def store_inline(
        self, tenant_id: str, conversation_id: str, change: InlineChange
    ) -> datetime | None:
        receipt = receipt_values(conversation_id, change.receipt)
        view = view_values(
            conversation_id,
            change.visible,
            change.view_version,
            change.cause,
            change.resume_at_tokens,
        )
        values = {
            **view,
            **{f"receipt_{name}": value for name, value in receipt.items()},
            "event_seq": change.event_seq,
            "types": [type for type, _ in change.events],
            "data": [data for _, data in change.events],
        }
        if self._session.is_distributed:
            row = await self._store_on_citus(change, values)
        else:
            row = await self._session.first(STORE, **values)
        if row is None:
            return None
        known = self._settings_cache.get(tenant_id, conversation_id).conversation
        if known is not None and known.state.version + 1 == row["state_version"]:
            after = replace(known, state=state_after(known.state, change))
            self._settings_cache.put(tenant_id, after)
        created_at: datetime = row["created_at"]
        return created_at

    async def _store_on_citus(self, change: InlineChange, values: dict[str, Any]) -> Any | None:
        async with self._session.together():
            shown = await self._session.first(SHOW, **values)
            if shown is None:
                return None
            receipt = await self._session.first(STORE_RECEIPT, **values)
            assert receipt is not None
            for event_seq, (type, data) in enumerate(change.events, start=change.event_seq + 1):
                event = {"event_seq": event_seq, "type": type, "data": data}
                await self._session.run(STORE_EVENT, **values | event)
        return {"created_at": receipt["created_at"], "state_version": shown["state_version"]}
