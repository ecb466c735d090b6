"""Background compactions that become due; workers also find them when they poll."""

from __future__ import annotations

from app.conversations.events.events import EventType
from app.repositories import Repositories


async def make_compaction_due(session: Repositories, conversation_id: str) -> None:
    """Make a compaction due and announce it, unless one is due already."""
    if await session.jobs.set_due(conversation_id):
        await announce_due_compaction(session, conversation_id)


async def announce_due_compaction(session: Repositories, conversation_id: str) -> None:
    """Store the event of a compaction that became due, and notify the workers."""
    await session.events.add(conversation_id, EventType.DUE, "{}")
    await session.jobs.notify()
