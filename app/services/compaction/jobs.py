"""Jobs: work in the background that a caller can poll."""

from __future__ import annotations

from collections.abc import Callable

from app.domain.common.errors import NotFound
from app.domain.conversations.job import Job
from app.services.ports import Database


class JobService:
    """Starts jobs and returns their state."""

    def __init__(self, database: Database, new_id: Callable[[], str]) -> None:
        self._database = database
        self._new_id = new_id

    async def start(self, tenant_id: str, conversation_id: str, kind: str, ask: str) -> Job:
        """Store a job for the workers and return it; `ask` is JSON.

        Raises NotFound for a conversation that this tenant does not have.
        """
        job_id = self._new_id()
        async with self._database.transaction() as session:
            if await session.conversations.find(tenant_id, conversation_id, None) is None:
                raise NotFound.conversation(conversation_id)
            await session.jobs.add(tenant_id, conversation_id, job_id, kind, ask)
            job = await session.jobs.find(tenant_id, job_id)
        if job is None:  # the conversation was deleted meanwhile
            raise NotFound.conversation(conversation_id)
        return job

    async def get(self, tenant_id: str, job_id: str) -> Job:
        """Return a job; raises NotFound for what this tenant does not have."""
        async with self._database.session() as session:
            job = await session.jobs.find(tenant_id, job_id)
        if job is None:
            raise NotFound(f"No job {job_id}", {"job_id": job_id})
        return job
