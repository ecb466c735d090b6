"""Stores what a compaction did: its receipt, the view it made, its events.

A compaction is applied only to the view that it was planned on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from app.domain.common import json_text
from app.domain.common.errors import Conflict, ContextError, NotFound
from app.domain.compaction.reduction.truncation import RESULTS_CLEARED
from app.domain.compaction.results import result_of
from app.domain.compaction.thresholds import compaction_threshold, resume_at
from app.domain.compaction.views import kept_seqs, shown_entries, view_summary_tokens
from app.domain.conversations.compaction_receipt import Compaction, Trigger, VisibleState
from app.domain.conversations.events import EventType
from app.domain.conversations.view import Span
from app.services.compaction.runs import CompactionRun, ExecutedPlan
from app.services.ports import Database

SUMMARISER_UNAVAILABLE = "summariser_unavailable"
"""In `degraded`: messages were left out without the summary that the policy asks for."""

_log = logging.getLogger("app.compaction")


class CompactionStore:
    """Writes receipts, views and events of compactions."""

    def __init__(
        self, database: Database, new_id: Callable[[], str], now_ms: Callable[[], float]
    ) -> None:
        self._database = database
        self._new_id = new_id
        self._now_ms = now_ms

    def receipt(self, run: CompactionRun, executed: ExecutedPlan) -> Compaction:
        """Return the receipt of a plan that was carried out."""
        source, view, calls = run.source, executed.view, run.calls
        state, resolved = source.state, source.resolved
        left = shown_entries(source.entries, view)
        lacks_summary = executed.lacks_summary or executed.plan.drops
        return Compaction(
            compaction_id=self._new_id(),
            parent_id=state.compaction_id,
            trigger=run.trigger,
            strategy=run.strategy,
            policy_strategy=resolved.policy.strategy,
            strategies_run=executed.plan.steps,
            span=executed.plan.hidden or view.hidden or Span(1, view.trimmed_through + 1),
            view=view,
            made=tuple(executed.made),
            summary_tokens=view_summary_tokens(view, resolved.count),
            hidden_tokens=state.tokens - sum(entry.tokens for entry in left),
            hidden_messages=state.head_seq - len(left),
            before_tokens=source.tokens_in(source.view),
            after_tokens=source.tokens_in(view),
            before_msg_count=source.messages_in(source.view),
            after_msg_count=source.messages_in(view),
            model=calls.model if executed.made else None,
            prompt_hash=calls.prompt_hash if executed.made else None,
            calls=calls.calls,
            input_tokens=calls.input_tokens,
            output_tokens=calls.output_tokens,
            cost_usd=calls.cost_usd,
            duration_ms=round(self._now_ms() - run.started_ms),
            degraded=(SUMMARISER_UNAVAILABLE,) if lacks_summary else (),
        )

    def clearing_receipt(self, run: CompactionRun, executed: ExecutedPlan) -> Compaction:
        """Return the receipt of a clearing, which hides no messages."""
        source = run.source
        left = shown_entries(source.entries, executed.view)
        freed = sum(e.tokens for e in source.shown) - sum(e.tokens for e in left)
        return replace(
            self.receipt(run, executed),
            hidden_tokens=source.state.hidden_tokens + freed,
            hidden_messages=source.state.hidden_messages,
        )

    async def apply(self, run: CompactionRun, receipt: Compaction) -> None:
        """Store a receipt and show its view.

        Raises NotFound for a conversation that was deleted meanwhile, and Conflict when the view
        is not the one that the compaction was planned on any more.
        """
        conversation_id = run.conversation_id
        shown = VisibleState(
            receipt.view,
            receipt.compaction_id,
            receipt.summary_tokens,
            receipt.hidden_tokens,
            receipt.hidden_messages,
            kept_seqs(receipt.view),
        )
        is_clearing = run.trigger is Trigger.TOOL_OUTPUT
        data = {**asdict(result_of(receipt)), "trigger": receipt.trigger}
        async with self._database.transaction() as session:
            locked = await session.log.lock(run.source.tenant_id, conversation_id, None)
            if locked is None:
                raise NotFound.conversation(conversation_id)
            await session.contexts.add_compaction(conversation_id, receipt)
            applied = await session.contexts.show(
                conversation_id,
                shown,
                view_version=run.source.state.view_version,
                cause=RESULTS_CLEARED if is_clearing else "compaction",
                resume_at=run.source.state.resume_at if is_clearing else _resume_at(run, receipt),
            )
            if not applied:
                raise Conflict("The context changed while it was being compacted; try again")
            await session.events.add(conversation_id, EventType.COMPACTED, json_text.dumps(data))

    async def add_event(self, run: CompactionRun, event: EventType, **data: Any) -> None:
        """Add an event of a compaction to the conversation."""
        data = {"trigger": run.trigger, **data}
        async with self._database.session() as session:
            await session.events.add(run.conversation_id, event, json_text.dumps(data))

    async def record_failure(self, run: CompactionRun, error: ContextError) -> None:
        """Write a failure to the events and the log; store it unless a caller gets the error."""
        reason = error.facts.get("reason", error.code)
        logged = {"trigger": run.trigger, "reason": reason, "calls": run.calls.calls}
        failure = json_text.dumps({**logged, "code": error.code, "detail": error.detail})
        async with self._database.session() as session:
            await session.events.add(run.conversation_id, EventType.FAILED, failure)
            if run.trigger is not Trigger.FORCED:
                await session.jobs.record_failure(run.conversation_id, failure)
        _log.warning("compaction_failed", extra={"data": logged})


def _resume_at(run: CompactionRun, receipt: Compaction) -> int:
    """Return how many tokens the log needs before it is compacted automatically again.

    The messages that have to stay can be more than `max_messages`: then no compaction helps.
    """
    state, resolved = run.source.state, run.source.resolved
    left = replace(state, hidden_messages=receipt.hidden_messages)
    exceeds = compaction_threshold(resolved).exceeds_messages(left)
    return resume_at(state, resolved.judging_limits()) if exceeds else 0
