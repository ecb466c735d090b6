"""Compaction receipts, and what a conversation shows."""

from __future__ import annotations

from dataclasses import asdict

from app.common import json_text
from app.common.pages import UNBOUNDED, Bound, Page
from app.conversations.compaction_receipt import PROVIDER_ITEM_SUMMARY, Compaction, ViewState
from app.conversations.rows import compaction_from, summaries_from
from app.conversations.view import Summary
from app.database.connections import Statement
from app.database.paging import bounded, lengths, limits, page_of
from app.database.repository import Repository
from app.database.sql import fields_of, placeholders

_RECEIPT_COLUMNS = """
    conversation_id, compaction_id, parent_id, trigger, strategy, policy_strategy, strategies_run,
    span_start, span_end, summary, view, made, summary_tokens, hidden_tokens, hidden_messages,
    before_tokens, after_tokens, before_msg_count, after_msg_count, model, prompt_hash, calls,
    input_tokens, output_tokens, cost_usd, duration_ms, degraded, summary_input, cached_tokens,
    target_tokens
"""
ADD_COMPACTION = Statement(
    f"""
        INSERT INTO compactions ({_RECEIPT_COLUMNS})
        VALUES ({placeholders(_RECEIPT_COLUMNS)})
        """
)

ADD_SUMMARY = Statement(
    """
        UPDATE compactions
        SET summary = CAST(:summary AS text), view = CAST(:view AS text),
            made = CAST(:made AS text), prompt_hash = CAST(:prompt_hash AS text),
            calls = CAST(:calls AS integer), input_tokens = CAST(:input_tokens AS bigint),
            output_tokens = CAST(:output_tokens AS bigint),
            cached_tokens = CAST(:cached_tokens AS bigint),
            cost_usd = CAST(:cost_usd AS double precision)
        WHERE conversation_id = CAST(:conversation_id AS uuid)
            AND compaction_id = CAST(:compaction_id AS uuid)
        """
)

_NO_NEW_PIN = """NOT EXISTS (
    SELECT FROM pins
    WHERE pins.conversation_id = CAST(:conversation_id AS uuid)
        AND (pins.seq >= CAST(:span_start AS bigint) AND pins.seq < CAST(:span_end AS bigint)
            OR pins.seq <= CAST(:trimmed_through AS bigint))
        AND pins.seq <> ALL (CAST(:kept AS bigint[]))
        AND EXISTS (
            SELECT FROM unnest(CAST(:window_starts AS bigint[]), CAST(:window_ends AS bigint[]))
                AS part (first, past)
            WHERE pins.seq >= part.first AND pins.seq < part.past
        )
)"""

# It runs with the head's row lock, so that it sees a pin that was set before.
SHOW_VIEW = Statement(
    f"""
        UPDATE heads
        SET view_version = view_version + 1, view_cause = CAST(:cause AS text),
            compaction_id = CAST(:compaction_id AS uuid),
            span_start = CAST(:span_start AS bigint), span_end = CAST(:span_end AS bigint),
            kept = CAST(:kept AS bigint[]), trimmed_through = CAST(:trimmed_through AS bigint),
            summary_tokens = CAST(:summary_tokens AS integer),
            hidden_tokens = CAST(:hidden_tokens AS bigint),
            hidden_messages = CAST(:hidden_messages AS bigint),
            resume_at = CAST(:resume_at AS bigint),
            failures = CASE WHEN CAST(:cause AS text) = 'tool_results_cleared' THEN failures
                ELSE 0 END,
            last_failure = CASE WHEN CAST(:cause AS text) = 'tool_results_cleared'
                THEN last_failure END,
            failed_at = CASE WHEN CAST(:cause AS text) = 'tool_results_cleared'
                THEN failed_at END,
            due_at = CASE WHEN CAST(:cause AS text) = 'tool_results_cleared' THEN due_at END
        WHERE conversation_id = CAST(:conversation_id AS uuid)
            AND view_version = CAST(:view_version AS bigint)
            AND {_NO_NEW_PIN}
        """
)

HIDE_COMPACTION = Statement(
    """
        UPDATE heads
        SET view_version = view_version + 1, view_cause = 'policy_changed', compaction_id = NULL,
            span_start = NULL, span_end = NULL, kept = '{}', trimmed_through = 0,
            summary_tokens = 0, hidden_tokens = outside_tokens,
            hidden_messages = outside_messages, resume_at = 0, failures = 0,
            last_failure = NULL, failed_at = NULL
        WHERE conversation_id = CAST(:conversation_id AS uuid)
            AND view_version = CAST(:view_version AS bigint)
        """
)

SUSPEND_COMPACTION = Statement(
    """
        UPDATE heads SET resume_at = CAST(:resume_at AS bigint)
        WHERE conversation_id = CAST(:conversation_id AS uuid)
        """
)

MARK_UNDONE = Statement(
    """
        UPDATE compactions SET undone_at = now()
        WHERE conversation_id = CAST(:conversation_id AS uuid)
            AND compaction_id = CAST(:compaction_id AS uuid)
        """
)

FIND_COMPACTION = Statement(
    """
        SELECT * FROM compactions
        WHERE conversation_id = CAST(:conversation_id AS uuid)
            AND compaction_id = CAST(:compaction_id AS uuid)
        """
)

NEWEST_SUMMARIES = Statement(
    """
        SELECT made FROM compactions
        WHERE conversation_id = CAST(:conversation_id AS uuid)
            AND compaction_id <= CAST(:through AS uuid)
            AND undone_at IS NULL AND made <> '[]'
        ORDER BY compaction_id DESC
        LIMIT 1
        """
)

LIST_COMPACTIONS = Statement(
    bounded(
        """
            SELECT * FROM compactions
            WHERE conversation_id = CAST(:conversation_id AS uuid)
                AND (CAST(:before AS uuid) IS NULL OR compaction_id < CAST(:before AS uuid))
            ORDER BY compaction_id DESC
            LIMIT CAST(:limit AS bigint)
        """,
        ("*",),
        lengths("summary", "view", "made"),
        "compaction_id DESC",
    )
)


class CompactionQueries(Repository):
    """The queries of a ContextRepository about compactions."""

    async def add_compaction(self, conversation_id: str, compaction: Compaction) -> None:
        """Store a receipt."""
        values = fields_of(compaction) | {
            "conversation_id": conversation_id,
            "span_start": compaction.hidden_span.start,
            "span_end": compaction.hidden_span.end,
            **_texts(compaction),
        }
        await self._session.run(ADD_COMPACTION, **values)

    async def add_summary(self, conversation_id: str, receipt: Compaction) -> None:
        """Store the summaries of a receipt whose provider's item had none, and what they cost."""
        tokens = ("input_tokens", "output_tokens", "cached_tokens")
        costs = ("prompt_hash", "calls", *tokens, "cost_usd")
        await self._session.run(
            ADD_SUMMARY,
            conversation_id=conversation_id,
            compaction_id=receipt.compaction_id,
            **_texts(receipt),
            **{name: getattr(receipt, name) for name in costs},
        )

    async def show(
        self,
        conversation_id: str,
        visible: ViewState,
        *,
        view_version: int,
        cause: str,
        resume_at_tokens: int = 0,
    ) -> bool:
        """Change the view if it has this version and hides no new pin; False otherwise.

        Call it in a transaction that holds the lock of the conversation's head.
        """
        view, hidden = visible.view, visible.view.hidden
        values = fields_of(visible) | {
            "conversation_id": conversation_id,
            "span_start": hidden.start if hidden is not None else None,
            "span_end": hidden.end if hidden is not None else None,
            "kept": visible.kept_seqs,
            "trimmed_through": view.results_cleared_through,
            "window_starts": [span.start for span in view.window],
            "window_ends": [span.end for span in view.window],
            "view_version": view_version,
            "cause": cause,
            "resume_at": resume_at_tokens,
        }
        changed = await self._session.run(SHOW_VIEW, **values)
        return changed == 1

    async def hide_compaction(self, conversation_id: str, view_version: int) -> None:
        """Show the whole log again, if the view has this version."""
        await self._session.run(
            HIDE_COMPACTION, conversation_id=conversation_id, view_version=view_version
        )

    async def suspend_compaction(self, conversation_id: str, resume_at_tokens: int) -> None:
        """Suspend background compaction until the log has this many tokens."""
        await self._session.run(
            SUSPEND_COMPACTION, conversation_id=conversation_id, resume_at=resume_at_tokens
        )

    async def mark_undone(self, conversation_id: str, compaction_id: str) -> None:
        """Mark a receipt as undone."""
        await self._session.run(
            MARK_UNDONE, conversation_id=conversation_id, compaction_id=compaction_id
        )

    async def compactions(
        self, conversation_id: str, limit: int, before: str | None, bound: Bound = UNBOUNDED
    ) -> Page[Compaction]:
        """Return receipts, the newest first, starting after the one with the id `before`."""
        rows = await self._session.all(
            LIST_COMPACTIONS,
            conversation_id=conversation_id,
            before=before,
            **limits(limit, bound),
        )
        return page_of(rows, compaction_from)

    async def find_compaction(self, conversation_id: str, compaction_id: str) -> Compaction | None:
        """Return a receipt, or None."""
        row = await self._session.first(
            FIND_COMPACTION, conversation_id=conversation_id, compaction_id=compaction_id
        )
        return compaction_from(row) if row is not None else None

    async def newest_summaries(self, conversation_id: str, through: str) -> list[Summary]:
        """Return what the newest compaction made that made summaries, up to this receipt."""
        row = await self._session.first(
            NEWEST_SUMMARIES, conversation_id=conversation_id, through=through
        )
        return list(summaries_from(row["made"])) if row is not None else []


def _texts(compaction: Compaction) -> dict[str, str]:
    return {
        "summary": compaction.summary or _stand_in(compaction),
        "view": compaction.view.as_json(),
        "made": json_text.dumps([asdict(summary) for summary in compaction.made]),
    }


def _stand_in(compaction: Compaction) -> str:
    """Return the stored summary of a receipt without one; redactions find receipts by it."""
    return PROVIDER_ITEM_SUMMARY if compaction.view.provider_item is not None else ""
