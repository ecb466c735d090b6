"""Compaction receipts, and what a conversation shows."""

from __future__ import annotations

from dataclasses import asdict

from app.common import json_text
from app.common.pages import UNBOUNDED, Bound, Page
from app.conversations.conversation import BreakReason
from app.conversations.from_rows import receipt_from, summaries_from
from app.conversations.receipt import FACTS, PROVIDER_ITEM_SUMMARY, Receipt, ViewState
from app.conversations.view import Summary
from app.database.connections import Repository, Statement
from app.database.sql import assigned, bounded, equal, fields_of, insert, lengths, limits, page_of
from app.database.tables import TABLES

_OWN, _THIS = equal("conversation_id"), equal("conversation_id", "compaction_id")
_TEXTS = ("summary", "view", "made", "receipt")
ADD_RECEIPT = Statement(
    insert("compactions", *TABLES["compactions"].without("undone_at", "created_at"))
)
ADD_SUMMARY = Statement(f"UPDATE compactions SET {assigned(*_TEXTS)} WHERE {_THIS}")

PINS_RESULT = """(
    SELECT m.role FROM messages m
    WHERE m.conversation_id = :conversation_id AND m.seq >= pins.seq ORDER BY m.seq LIMIT 1
) = 'tool'"""
"""Whether a row of `pins` is of a tool result: a lookup by key, also in plans for an empty log."""

_NO_NEW_PIN = f"""NOT EXISTS (
    SELECT FROM pins
    WHERE pins.conversation_id = :conversation_id
        AND (pins.seq >= :hidden_start AND pins.seq < :hidden_end
            OR (pins.seq <= :results_cleared_through
                OR pins.seq = ANY (CAST(:repeated AS bigint[]))) AND {PINS_RESULT})
        AND pins.seq <> ALL (:protected_seqs)
        AND EXISTS (
            SELECT FROM unnest(CAST(:window_starts AS bigint[]), CAST(:window_ends AS bigint[]))
                AS part (first, past)
            WHERE pins.seq >= part.first AND pins.seq < part.past
        )
)"""

# It runs with the lock of the state, so that it sees a pin that was set before.
_CLEARS = "CAST(:cause AS text) = 'tool_results_cleared'"
SHOW_VIEW = Statement(
    f"""
        UPDATE states
        SET view_version = view_version + 1, view_cause = CAST(:cause AS text),
            compaction_id = :compaction_id, hidden_start = :hidden_start, hidden_end = :hidden_end,
            protected_seqs = :protected_seqs, results_cleared_through = :results_cleared_through,
            summary_tokens = :summary_tokens, hidden_tokens = :hidden_tokens,
            hidden_messages = :hidden_messages, resume_at_tokens = :resume_at_tokens,
            failures = CASE WHEN {_CLEARS} THEN failures ELSE 0 END,
            last_failure = CASE WHEN {_CLEARS} THEN last_failure END,
            failed_at = CASE WHEN {_CLEARS} THEN failed_at END,
            due_at = CASE WHEN {_CLEARS} THEN due_at END
        WHERE {_OWN} AND view_version = :view_version AND {_NO_NEW_PIN}
        """
)

SHOW_WHOLE_LOG = Statement(
    f"""
        UPDATE states
        SET view_version = view_version + 1, view_cause = 'policy_changed', compaction_id = NULL,
            hidden_start = NULL, hidden_end = NULL, protected_seqs = '{{}}',
            results_cleared_through = 0, summary_tokens = 0, hidden_tokens = outside_tokens,
            hidden_messages = outside_messages, resume_at_tokens = 0, failures = 0,
            last_failure = NULL, failed_at = NULL
        WHERE {_OWN} AND view_version = :view_version
        """
)

SUSPEND = Statement(f"UPDATE states SET resume_at_tokens = :resume_at_tokens WHERE {_OWN}")
MARK_UNDONE = Statement(f"UPDATE compactions SET undone_at = now() WHERE {_THIS}")
FIND_RECEIPT = Statement(f"SELECT * FROM compactions WHERE {_THIS}")

NEWEST_SUMMARIES = Statement(
    """
        SELECT made FROM compactions
        WHERE conversation_id = :conversation_id
            AND compaction_id <= CAST(:through AS uuid)
            AND undone_at IS NULL AND made <> '[]'
        ORDER BY compaction_id DESC LIMIT 1
        """
)

LIST_RECEIPTS = Statement(
    bounded(
        """
            SELECT * FROM compactions
            WHERE conversation_id = :conversation_id
                AND (CAST(:before AS uuid) IS NULL OR compaction_id < CAST(:before AS uuid))
            ORDER BY compaction_id DESC LIMIT :limit
        """,
        ("*",),
        lengths("summary", "view", "made"),
        "compaction_id DESC",
    )
)


class ReceiptQueries(Repository):
    """The queries of a ContextRepository about receipts, and the view of a conversation."""

    async def add_receipt(self, conversation_id: str, receipt: Receipt) -> None:
        """Store a receipt."""
        await self._session.run(
            ADD_RECEIPT,
            conversation_id=conversation_id,
            compaction_id=receipt.compaction_id,
            parent_id=receipt.parent_id,
            trigger=receipt.trigger,
            policy_strategy=receipt.policy_strategy,
            hidden_start=receipt.hidden_span.start,
            hidden_end=receipt.hidden_span.end,
            **_texts(receipt),
        )

    async def add_summary(self, conversation_id: str, receipt: Receipt) -> None:
        """Store the summaries of a receipt whose provider's item had none, and what they cost."""
        await self._session.run(
            ADD_SUMMARY,
            conversation_id=conversation_id,
            compaction_id=receipt.compaction_id,
            **_texts(receipt),
        )

    async def show(
        self,
        conversation_id: str,
        visible: ViewState,
        *,
        view_version: int,
        cause: BreakReason,
        resume_at_tokens: int = 0,
    ) -> bool:
        """Change the view if it has this version and hides no new pin; False otherwise.

        Call it in a transaction that holds the lock of the conversation's state.
        """
        view, hidden = visible.view, visible.view.hidden
        values = fields_of(visible) | {
            "conversation_id": conversation_id,
            "hidden_start": hidden.start if hidden is not None else None,
            "hidden_end": hidden.end if hidden is not None else None,
            "protected_seqs": visible.protected_seqs,
            "results_cleared_through": view.results_cleared_through,
            "repeated": [item.seq for item in view.repeated_results],
            "window_starts": [span.start for span in view.window],
            "window_ends": [span.end for span in view.window],
            "view_version": view_version,
            "cause": cause,
            "resume_at_tokens": resume_at_tokens,
        }
        return await self._session.run(SHOW_VIEW, **values) == 1

    async def show_whole_log(self, conversation_id: str, view_version: int) -> None:
        """Show the whole log again, if the view has this version."""
        await self._session.run(
            SHOW_WHOLE_LOG, conversation_id=conversation_id, view_version=view_version
        )

    async def suspend_compaction(self, conversation_id: str, resume_at_tokens: int) -> None:
        """Suspend background compaction until the log has this many tokens."""
        await self._session.run(
            SUSPEND, conversation_id=conversation_id, resume_at_tokens=resume_at_tokens
        )

    async def mark_undone(self, conversation_id: str, compaction_id: str) -> None:
        """Mark a receipt as undone."""
        await self._session.run(
            MARK_UNDONE, conversation_id=conversation_id, compaction_id=compaction_id
        )

    async def receipts(
        self, conversation_id: str, limit: int, before: str | None, bound: Bound = UNBOUNDED
    ) -> Page[Receipt]:
        """Return receipts, the newest first, starting after the one with the id `before`."""
        rows = await self._session.all(
            LIST_RECEIPTS, conversation_id=conversation_id, before=before, **limits(limit, bound)
        )
        return page_of(rows, receipt_from)

    async def find_receipt(self, conversation_id: str, compaction_id: str | None) -> Receipt | None:
        """Return a receipt, or None."""
        if compaction_id is None:
            return None
        row = await self._session.first(
            FIND_RECEIPT, conversation_id=conversation_id, compaction_id=compaction_id
        )
        return receipt_from(row) if row is not None else None

    async def newest_summaries(self, conversation_id: str, through: str) -> list[Summary]:
        """Return what the newest compaction made that made summaries, up to this receipt."""
        row = await self._session.first(
            NEWEST_SUMMARIES, conversation_id=conversation_id, through=through
        )
        return list(summaries_from(row["made"])) if row is not None else []


def _texts(receipt: Receipt) -> dict[str, str]:
    # Redactions find receipts by the summary: one without it has this stand-in.
    stand_in = PROVIDER_ITEM_SUMMARY if receipt.view.provider_item is not None else ""
    return {
        "summary": receipt.summary or stand_in,
        "view": receipt.view.as_json(),
        "made": json_text.dumps([asdict(summary) for summary in receipt.made]),
        "receipt": json_text.dumps({name: getattr(receipt, name) for name in FACTS}),
    }
