"""Compactions that become due, and those that are stored; workers also poll for due ones."""

from __future__ import annotations

from dataclasses import asdict

from app.common import json_text
from app.conversations.compaction_receipt import Compaction, CompactResult, ViewState, result_of
from app.conversations.events import EventType
from app.conversations.views import kept_seqs
from app.repositories import Repositories


async def make_compaction_due(session: Repositories, conversation_id: str) -> None:
    """Make a compaction due and announce it, unless one is due already."""
    if await session.jobs.set_due(conversation_id):
        await announce_due_compaction(session, conversation_id)


async def announce_due_compaction(session: Repositories, conversation_id: str) -> None:
    """Store the event of a compaction that became due."""
    await session.events.add(conversation_id, EventType.DUE, "{}")


async def store_compaction(
    session: Repositories,
    conversation_id: str,
    receipt: Compaction,
    cause: str,
    **after: int,
) -> CompactResult | None:
    """Store a receipt, show its view and announce it; None if the view was changed meanwhile.

    `after` are the `view_version` that it replaces, and the `resume_at_tokens`. Call it in a
    transaction that holds the lock of the conversation's head.
    """
    await session.contexts.add_compaction(conversation_id, receipt)
    visible = ViewState(
        receipt.view,
        receipt.compaction_id,
        receipt.summary_tokens,
        receipt.hidden_tokens,
        receipt.hidden_messages,
        kept_seqs(receipt.view),
    )
    if not await session.contexts.show(conversation_id, visible, cause=cause, **after):
        return None
    result = result_of(receipt)
    data = {**asdict(result), "trigger": receipt.trigger}
    await session.events.add(conversation_id, EventType.COMPACTED, json_text.dumps(data))
    return result
