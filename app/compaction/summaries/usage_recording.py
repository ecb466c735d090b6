"""Adds the model calls of summaries to the usage totals."""

from __future__ import annotations

import logging

from app.common.errors import ServiceUnavailable
from app.compaction.summaries.run import SummariserRun
from app.repositories import Database, Repositories

_log = logging.getLogger("app.usage")


async def add_usage(
    session: Repositories, run: SummariserRun, conversation_id: str | None, agent_id: str | None
) -> None:
    """Add the unrecorded calls of a run; the last call in its transaction.

    After the commit, clear `run.unrecorded`.
    """
    entries = run.unrecorded_usage
    if not entries:
        return
    if conversation_id is not None:
        await session.usage.add_to_conversation(conversation_id, entries)
    await session.usage.add_to_tenant(run.tenant_id, agent_id, entries)


async def record_usage(
    database: Database,
    run: SummariserRun,
    conversation_id: str | None = None,
    agent_id: str | None = None,
) -> None:
    """Add the unrecorded calls of a run that has ended, as far as the database is available."""
    if not run.unrecorded:
        return
    try:
        async with database.transaction() as session:
            await add_usage(session, run, conversation_id, agent_id)
    except ServiceUnavailable:
        _log.warning("usage_not_recorded")
    else:
        run.unrecorded.clear()
